//! The option `--profile`.

use clap::ValueEnum;

use crate::core::preferences::Profile;

/// Whose decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProfileArg {
    /// Those of the kubelet's own eviction manager, to the letter.
    Kubelet,
    /// What operators would want instead.
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
