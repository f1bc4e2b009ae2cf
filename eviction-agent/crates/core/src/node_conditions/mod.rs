//! What the node's own object is to say of its pressure: conditions and taints of the agent's own.
//!
//! What is the kubelet's (`MemoryPressure`, `DiskPressure`, `PIDPressure` and the taints
//! `node.kubernetes.io/*`) is never written. Everything here is a pure function of the node's
//! object and of how hard it is pressed.

mod condition;
mod taint;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use condition::{ConditionInputs, Conditions, Due, conditions, over_since};
pub use taint::{Effect, TaintChange, effects, taints, wanted};

use super::signal::NodeCondition;
use super::units::GoDuration;

/// Conditions that do not change are written anew after so long.
pub const HEARTBEAT: GoDuration = GoDuration::from_secs(300);

/// Conditions and taints that an agent that acts writes to the Node object, in either profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeStatusSettings {
    /// Whether the agent sets the conditions `EvictionAgentMemoryPressure`, `EvictionAgentDiskPressure` and
    /// `EvictionAgentPIDPressure`.
    pub conditions: bool,
    /// Whether the agent taints the node `PreferNoSchedule` while a soft threshold is met.
    pub prefer_no_schedule: bool,
    /// Whether the agent taints the node `NoSchedule` while a hard threshold is met.
    pub no_schedule: bool,
}

impl Default for NodeStatusSettings {
    fn default() -> Self {
        Self { conditions: true, prefer_no_schedule: true, no_schedule: true }
    }
}

impl NodeStatusSettings {
    /// Nothing at all: what is there of the agent's is taken away.
    pub const NONE: Self = Self { conditions: false, prefer_no_schedule: false, no_schedule: false };
}

/// The type of the agent's own condition.
pub const fn condition_type(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "EvictionAgentDiskPressure",
        NodeCondition::MemoryPressure => "EvictionAgentMemoryPressure",
        NodeCondition::PidPressure => "EvictionAgentPIDPressure",
    }
}

/// The key of the agent's own taint.
pub const fn taint_key(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "eviction-agent.io/disk-pressure",
        NodeCondition::MemoryPressure => "eviction-agent.io/memory-pressure",
        NodeCondition::PidPressure => "eviction-agent.io/pid-pressure",
    }
}
