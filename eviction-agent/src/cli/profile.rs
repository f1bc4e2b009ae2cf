//! The option `--profile`.

use clap::ValueEnum;

use eviction_core::policy::preferences::Profile;

/// Whose decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProfileArg {
    /// The kubelet's own eviction rules, unchanged
    Kubelet,
    /// The kubelet's rules with the settings under `policy` of the AgentConfiguration
    Enhanced,
}

impl From<ProfileArg> for Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Kubelet => Self::Kubelet,
            ProfileArg::Enhanced => Self::Enhanced,
        }
    }
}
