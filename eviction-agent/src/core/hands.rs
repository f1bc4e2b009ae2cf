//! How evictions are carried out, as far as it is a matter of policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kill_on_growth::KillOnGrowth;
use super::marks::NodeMarks;

/// How evictions through the API server are carried out, in either profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Hands {
    /// What is done about a victim of a hard memory threshold.
    pub hard_action: HardAction,
    /// Whether a pod goes for a hard threshold although its PodDisruptionBudget says no, when
    /// nobody else of its class can go instead.
    #[serde(rename = "hardIgnoresPDB")]
    pub hard_ignores_pdb: bool,
    /// What the node's own object is told of its pressure by an agent that acts.
    pub node: NodeMarks,
    /// What is done about hard thresholds while the API server cannot be asked. Soft ones wait.
    pub api_unreachable: ApiUnreachable,
    /// How much the memory of a pod may grow between SIGTERM and the end of its grace period, where the agent
    /// ends its processes for a hard memory threshold: they get SIGKILL as soon as it is more. `0`: as
    /// much as it likes.
    #[serde(skip)]
    pub kill_on_growth: KillOnGrowth,
}

impl Default for Hands {
    /// The kubelet asks no budget at all.
    fn default() -> Self {
        Self {
            hard_action: HardAction::default(),
            hard_ignores_pdb: true,
            node: NodeMarks::default(),
            api_unreachable: ApiUnreachable::default(),
            kill_on_growth: KillOnGrowth::default(),
        }
    }
}

/// What is done about a victim of a hard memory threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HardAction {
    /// Its eviction is requested, and the kubelet ends it.
    #[default]
    Evict,
    /// Its processes are killed at the same moment. Needs the host's PID namespace.
    EvictAndKill,
}

/// What is done about hard thresholds while the API server cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ApiUnreachable {
    /// Nothing: the kubelet evicts by its own lines.
    #[default]
    Hold,
    /// The processes of victims are killed. Needs the host's PID namespace.
    Kill,
}
