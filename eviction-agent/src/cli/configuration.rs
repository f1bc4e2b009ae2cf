//! The options that name the configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::profile::ProfileArg;
use crate::agent::{Act, Caller, ConfigurationFiles, NodeFacts};
use crate::config::AskConfigz;

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
    /// Ask the kubelet itself what it runs with, its command line included (its port 10250, /configz).
    /// Where it does not answer, what it said last counts (`run --state-dir`), else its files.
    #[arg(long)]
    kubelet_configz: bool,
    /// File with those who vouch for the kubelet's serving certificate; default: who vouches for the
    /// API server.
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Take any serving certificate of the kubelet for right. Whoever has its address gets the agent's
    /// token then.
    #[arg(long)]
    kubelet_insecure_tls: bool,
    /// AgentConfiguration file (eviction-agent.io/v1alpha1): profile and policy of the agent.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Whose decisions, whatever the AgentConfiguration says; default: what it says, else kubelet.
    #[arg(long, value_enum)]
    profile: Option<ProfileArg>,
}

/// What is done, and where HTTP is served.
#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    /// What is done to victims; default: what the AgentConfiguration says, else dry-run.
    #[arg(long, value_enum)]
    act: Option<ActArg>,
    /// Address of /metrics, /healthz and /readyz; port 0 lets the system choose; default: what the
    /// AgentConfiguration says, else 127.0.0.1:9095.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// What the node has.
#[derive(Debug, Args)]
pub(super) struct CapacityArgs {
    /// Memory that the node has, a quantity; default: MemTotal.
    #[arg(long, value_name = "QUANTITY")]
    pub(super) memory_capacity: Option<String>,
    /// Process ids that the node has; default: what the kernel allows.
    #[arg(long, value_name = "N")]
    pub(super) pid_capacity: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ActArg {
    /// Say what would be done.
    DryRun,
    /// End the processes of the victim's cgroup.
    Kill,
    /// Ask the API server to evict the victim.
    Evict,
    /// Ask the API server whether it would, with everything checked and nothing done.
    EvictDryRun,
}

impl From<ActArg> for Act {
    fn from(act: ActArg) -> Self {
        match act {
            ActArg::DryRun => Self::DryRun,
            ActArg::Kill => Self::Kill,
            ActArg::Evict => Self::Evict,
            ActArg::EvictDryRun => Self::EvictDryRun,
        }
    }
}

impl ConfigurationArgs {
    /// Where the configuration of this node is, and what is said in its place.
    pub(super) fn files(self, service: ServiceArgs, node: NodeFacts, caller: Caller) -> ConfigurationFiles {
        let Self {
            kubelet_config,
            kubelet_config_dir,
            kubelet_configz,
            kubelet_certificate_authority,
            kubelet_insecure_tls,
            config,
            profile,
        } = self;
        let ServiceArgs { act, listen } = service;
        ConfigurationFiles {
            kubelet: kubelet_config,
            kubelet_drop_ins: kubelet_config_dir,
            configz: AskConfigz {
                ask: kubelet_configz,
                certificate_authority: kubelet_certificate_authority,
                insecure: kubelet_insecure_tls,
            },
            caller,
            last_heard: None,
            last_said: None,
            are_copies: false,
            agent: config,
            profile: profile.map(Into::into),
            act: act.map(Into::into),
            listen,
            node,
        }
    }
}
