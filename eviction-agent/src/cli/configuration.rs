//! The options that name the configuration.

use std::path::PathBuf;

use clap::Args;

use super::profile::ProfileArg;
use crate::agent::ConfigurationFiles;

/// Where the configuration is.
#[derive(Debug, Args)]
pub(super) struct ConfigurationArgs {
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) that the thresholds are taken
    /// from; without it the kubelet's defaults hold.
    #[arg(long, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// Folder of drop-in files (*.conf) that are laid over it.
    #[arg(long, value_name = "DIR")]
    kubelet_config_dir: Option<PathBuf>,
    /// AgentConfiguration file (eviction-agent.io/v1alpha1): profile and policy of the agent.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Whose decisions, whatever the AgentConfiguration says; default: what it says, else kubelet.
    #[arg(long, value_enum)]
    profile: Option<ProfileArg>,
}

impl From<ConfigurationArgs> for ConfigurationFiles {
    fn from(args: ConfigurationArgs) -> Self {
        let ConfigurationArgs { kubelet_config, kubelet_config_dir, config, profile } = args;
        Self {
            kubelet: kubelet_config,
            kubelet_drop_ins: kubelet_config_dir,
            agent: config,
            profile: profile.map(Into::into),
        }
    }
}
