//! The record of the node's memory.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::reading::{Reading, UnknownReason};
use crate::snapshot::MemoryDetail;
use crate::threshold::MemoryConditions;

/// The node's memory by every measure, whichever the policy uses. Amounts are in bytes. An absent value is
/// one that the node does not have, or one that is listed in `unknown`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRecord {
    /// Capacity less working set, as in the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_by_working_set: Option<u64>,
    /// The same, with active file pages counted as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_without_active_file: Option<u64>,
    /// The kernel's own estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_available: Option<u64>,
    /// Usage without inactive file pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
    /// Page cache that was used recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_file: Option<u64>,
    /// The share of the last ten seconds in which some task stalled for memory, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some_avg10: Option<f64>,
    /// The share in which all tasks stalled at once, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the policy's trigger requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled: Option<bool>,
    /// Swap in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_used: Option<u64>,
    /// The total swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total: Option<u64>,
    /// Whether the further conditions of memory thresholds are fulfilled.
    pub conditions: MemoryConditions,
    /// Values that should exist but are unknown, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownValue>,
}

/// A value that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownValue {
    /// The name of the value.
    pub value: &'static str,
    /// Why the value is unknown.
    pub reason: UnknownReason,
}

impl MemoryRecord {
    /// Returns the memory by every measure. None if only the usage and the working set were read.
    pub(super) fn of(evaluation: &Evaluation) -> Option<Self> {
        let detail = evaluation.snapshot.node.memory_detail;
        if detail == MemoryDetail::default()
            && evaluation.context.memory_conditions == MemoryConditions::Fulfilled
        {
            return None;
        }
        let MemoryDetail {
            mem_available,
            active_file,
            some_avg10,
            full_avg10,
            stalled,
            swap_used,
            swap_total,
        } = detail;
        let memory = evaluation.snapshot.node.memory.known();
        let available = memory.and_then(|memory| memory.available);
        let percent = |hundredths: Reading<u64>| hundredths.known().map(|share| share as f64 / 100.0);
        let values = [
            ("mem_available", why(mem_available)),
            ("active_file", why(active_file)),
            ("some_avg10", why(some_avg10)),
            ("full_avg10", why(full_avg10)),
            ("stalled", why(stalled)),
            ("swap_used", why(swap_used)),
            ("swap_total", why(swap_total)),
        ];
        let unknown =
            values.into_iter().filter_map(|(value, reason)| Some(UnknownValue { value, reason: reason? }));
        Some(Self {
            available_by_working_set: available,
            available_without_active_file: available
                .zip(active_file.known())
                .map(|(available, cache)| available.saturating_add(cache)),
            mem_available: mem_available.known(),
            working_set: memory.and_then(|memory| memory.working_set),
            active_file: active_file.known(),
            some_avg10: percent(some_avg10),
            full_avg10: percent(full_avg10),
            stalled: stalled.known(),
            swap_used: swap_used.known(),
            swap_total: swap_total.known(),
            conditions: evaluation.context.memory_conditions,
            unknown: unknown.collect(),
        })
    }
}

/// Returns why a value is unknown. None for a value that the node does not have.
fn why<T>(reading: Reading<T>) -> Option<UnknownReason> {
    match reading {
        Reading::Known(_) | Reading::Unknown(UnknownReason::Absent) => None,
        Reading::Unknown(why) => Some(why),
    }
}
