//! What the engine is told between two passes of a scenario.

use serde::Deserialize;
use serde_json::Value;

use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryDetail;

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evicted {
    /// Whose.
    pub uid: Box<str>,
    /// Why the pod is not gone; empty if it is.
    #[serde(default)]
    pub error: Box<str>,
}

/// What the kernel says of the node's memory beside the Summary; what is left out is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// `MemAvailable`, bytes.
    pub mem_available: Option<u64>,
    /// Active file pages, bytes.
    pub active_file: Option<u64>,
    /// Share of the last ten seconds in which some task stalled, in percent.
    pub some_avg10: Option<f64>,
    /// Share in which all tasks did.
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the trigger asks for.
    pub stalled: Option<bool>,
    /// Swap in use, bytes.
    pub swap_used: Option<u64>,
    /// All swap, bytes.
    pub swap_total: Option<u64>,
}

impl Memory {
    /// As a look has it.
    pub(super) fn detail(self) -> MemoryDetail {
        let Self { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
            self;
        // A conversion of floats ends at the least and the greatest integer.
        let hundredths =
            |percent: Option<f64>| known(percent.map(|percent| (percent * 100.0).round() as u64));
        MemoryDetail {
            mem_available: known(mem_available),
            active_file: known(active_file),
            some_avg10: hundredths(some_avg10),
            full_avg10: hundredths(full_avg10),
            stalled: known(stalled),
            swap_used: known(swap_used),
            swap_total: known(swap_total),
        }
    }
}

fn known<T>(figure: Option<T>) -> Reading<T> {
    figure.map_or(Reading::Unknown(UnknownReason::Absent), Reading::Known)
}

/// A changed configuration. What is left out is that of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Proposed {
    /// The kubelet's.
    pub kubelet_configuration: Option<Value>,
    /// The agent's own.
    pub agent_configuration: Option<Value>,
}
