//! What is done to victims.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is done to victims. A change takes effect when the agent is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Say what would be done.
    #[default]
    DryRun,
    /// End the processes of the victim's cgroup.
    Kill,
    /// Ask the API server to evict the victim.
    Evict,
    /// Ask it whether it would, with everything checked and nothing done.
    EvictDryRun,
}

impl Act {
    /// Whether nothing is done.
    pub fn is_dry(self) -> bool {
        match self {
            Self::DryRun | Self::EvictDryRun => true,
            Self::Kill | Self::Evict => false,
        }
    }

    /// Whether evictions go through the API server, and so to a kubelet.
    pub fn asks_server(self) -> bool {
        match self {
            Self::DryRun | Self::Kill => false,
            Self::Evict | Self::EvictDryRun => true,
        }
    }

    /// As files and the command line have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DryRun => "dry-run",
            Self::Kill => "kill",
            Self::Evict => "evict",
            Self::EvictDryRun => "evict-dry-run",
        }
    }
}
