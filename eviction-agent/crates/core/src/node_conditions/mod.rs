//! What the node's own object is to say of its pressure: conditions and taints of the agent's own.
//!
//! What is the kubelet's (`MemoryPressure`, `DiskPressure`, `PIDPressure` and the taints
//! `node.kubernetes.io/*`) is never written. Everything here is a pure function of the node's
//! object and of how hard it is pressed.

mod condition;
pub mod pressure;
mod taint;
#[cfg(test)]
mod tests;

pub use condition::{ConditionInputs, Conditions, Due, conditions, over_since};
pub use taint::{Effect, TaintChange, effects, taints, wanted};

use super::signal::NodeCondition;
use super::units::GoDuration;

/// Conditions that do not change are written anew after so long.
pub const HEARTBEAT: GoDuration = GoDuration::from_secs(300);

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
