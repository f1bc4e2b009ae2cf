//! What was seen beside the observations: every measure of memory, readings that were not
//! believed, where figures are going; and a policy that waits.

use serde::Serialize;

use crate::decision::{Action, Decision, Evaluation, ProposalState};
use crate::disk_layout::Reclaim;
use crate::reading::{Reading, UnknownReason};
use crate::snapshot::MemoryDetail;
use crate::threshold::MemoryConditions;
use crate::time::Timestamp;
use crate::trend::Slope;

use super::PodName;

/// The node's memory by every measure, whichever decides. Bytes; a figure that is absent is
/// one that the node does not have, or one that is named in `unknown`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRecord {
    /// Capacity less working set, as the kubelet has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_by_working_set: Option<u64>,
    /// The same, active file pages not counted either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_without_active_file: Option<u64>,
    /// The kernel's own estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_available: Option<u64>,
    /// Usage without inactive file pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
    /// Page cache that was used lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_file: Option<u64>,
    /// The share of the last ten seconds in which some task stalled for memory, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some_avg10: Option<f64>,
    /// The share in which all tasks stalled at once, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the policy's trigger asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled: Option<bool>,
    /// Swap in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_used: Option<u64>,
    /// All swap there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total: Option<u64>,
    /// Whether what else thresholds of memory ask for is there.
    pub gate: MemoryConditions,
    /// Figures that should be there and are not, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownValue>,
}

/// A figure that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownValue {
    /// Which.
    pub figure: &'static str,
    /// Why.
    pub why: UnknownReason,
}

/// A pod whose memory grows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthRecord {
    /// Which.
    pub uid: Box<str>,
    /// How fast.
    #[serde(flatten)]
    pub slope: Slope,
}

/// What becomes of a policy that was proposed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalRecord {
    /// It is the one in force already.
    Unchanged,
    /// It is in force from now on.
    TookEffect,
    /// It would do more than the policy in force.
    Waits {
        /// Since when it waits.
        since: Timestamp,
        /// When it takes effect in any case; absent if only by hand.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Pods that it would evict now, if it was held against a look yet.
        would_evict: Vec<PodName>,
        /// Garbage that it would collect first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        would_reclaim: Vec<Reclaim>,
    },
}

impl MemoryRecord {
    /// Nothing if nobody read more than usage and working set.
    pub(super) fn of(evaluation: &Evaluation) -> Option<Self> {
        let detail = evaluation.snapshot.node.memory_detail;
        if detail == MemoryDetail::default() && evaluation.sight.gate == MemoryConditions::Open {
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
        let mut unknown = Vec::new();
        let figures = [
            ("mem_available", why(mem_available)),
            ("active_file", why(active_file)),
            ("some_avg10", why(some_avg10)),
            ("full_avg10", why(full_avg10)),
            ("stalled", why(stalled)),
            ("swap_used", why(swap_used)),
            ("swap_total", why(swap_total)),
        ];
        for (figure, why) in figures {
            unknown.extend(why.map(|why| UnknownValue { figure, why }));
        }
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
            gate: evaluation.sight.gate,
            unknown,
        })
    }
}

/// What a node does not have at all is left out without a word.
fn why<T>(figure: Reading<T>) -> Option<UnknownReason> {
    match figure {
        Reading::Known(_) | Reading::Unknown(UnknownReason::Absent) => None,
        Reading::Unknown(why) => Some(why),
    }
}

impl GrowthRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        let record = |growth: &crate::signal_filter::PodGrowth| {
            let uid = evaluation.snapshot.pod(growth.stats)?.uid().into();
            Some(Self { uid, slope: growth.slope })
        };
        evaluation.sight.growing.iter().flatten().filter_map(record).collect()
    }
}

impl ProposalRecord {
    /// What a decision says of one, if it says something.
    pub fn of_decision(decision: &Decision) -> Option<Self> {
        decision.proposal.as_ref().map(Self::of)
    }

    pub(super) fn of(state: &ProposalState) -> Self {
        match state {
            ProposalState::Unchanged => Self::Unchanged,
            ProposalState::TookEffect => Self::TookEffect,
            ProposalState::Waits(waiting) => {
                let trial = waiting.trial.as_deref();
                let actions = |decision: &Decision| decision.actions.clone();
                let actions = trial.map_or_else(Vec::new, actions);
                let pods = trial.and_then(Decision::pass).map(|evaluation| &evaluation.pods);
                let evicted = actions.iter().filter_map(|action| match action {
                    Action::Evict(eviction) | Action::ShortenGrace(eviction) => {
                        Some(PodName::of(&pods?.get(eviction.place)?.pod))
                    }
                    Action::RecordEvent(_) | Action::Reclaim(_) => None,
                });
                let would_evict = evicted.collect();
                let reclaim = actions.iter().filter_map(|action| match action {
                    Action::Reclaim(reclaim) => Some(*reclaim),
                    Action::RecordEvent(_) | Action::Evict(_) | Action::ShortenGrace(_) => None,
                });
                Self::Waits {
                    since: waiting.since,
                    until: waiting.until,
                    would_evict,
                    would_reclaim: reclaim.collect(),
                }
            }
        }
    }
}
