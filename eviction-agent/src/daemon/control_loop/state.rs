//! The state that the loop keeps from one iteration to the next.

use std::collections::BTreeMap;

use eviction_core::decision::{Decision, ProposalState};
use eviction_core::eviction::EvaluationEnd;
use eviction_core::rank::Candidate;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::{NodeCondition, Signal, SignalSet};
use eviction_core::time::Timestamp;

use super::oom::OomGroupCoalescer;

/// The state that the loop keeps from one iteration to the next.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The number of decisions so far, which is the number of the last one.
    pub(super) decisions: u64,
    /// The UIDs of terminating pods that have no object any more but still have processes in their cgroups, with the
    /// time when they stop counting, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) terminating: BTreeMap<Box<str>, u64>,
    /// Whether a threshold may be met, or is about to be, by the last sample.
    pub(super) under_pressure: bool,
    pub(super) last_change: LoopDelta,
    pub(super) unknown: [Option<UnknownReason>; Signal::COUNT],
    /// When the kernel reported a crossing of a disk threshold that is still met. Pods are ranked once their
    /// storage is read.
    pub(super) disk_crossed_ns: Option<u64>,
    pub(super) last_full_ns: u64,
    /// When something other than process IDs is to be sampled.
    pub(super) sync_due_ns: u64,
    /// Whether the engine still has to get the pods of the last full sample for their trends.
    pub(super) needs_trends: bool,
    pub(super) tree_due_ns: Option<u64>,
    /// When the cgroup tree was read last.
    pub(super) tree_read_ns: u64,
    pub(super) oom_groups: OomGroupCoalescer,
    /// Whether the buffers are large enough for an evaluation of the present pods.
    pub(super) is_warm: bool,
    /// When the timer fires next.
    pub(super) due_ns: u64,
    pub(super) last_left: Option<(u64, u64)>,
    pub(super) charged: Vec<u64>,
    /// A buffer for the order of pods before a decision.
    pub(super) ahead: Vec<Candidate>,
}

/// The parts of a decision that are published when they change.
#[derive(Debug, Default)]
pub(super) struct LoopDelta {
    /// The indexes of the thresholds that are met.
    pub(super) met: Vec<u8>,
    conditions: Vec<NodeCondition>,
    unavailable: SignalSet,
    rejected: SignalSet,
    /// Whether a threshold was about to be met.
    pub(super) imminent: bool,
    /// Whether an evaluation waited for space that xfs has allocated ahead of files.
    awaits_space: bool,
    /// Since when a changed configuration is pending.
    pub(super) pending_since: Option<Timestamp>,
}

impl LoopDelta {
    /// Records a decision. Returns true if something changed. Otherwise it allocates nothing: the kernel thresholds are
    /// set after this.
    pub(super) fn update(&mut self, decision: &Decision) -> bool {
        let evaluation = decision.evaluation();
        let mut rejected = SignalSet::EMPTY;
        for refusal in evaluation.map_or(&[][..], |it| &it.context.rejected) {
            rejected.insert(refusal.signal);
        }
        let met = evaluation.map_or(&[][..], |it| &it.met).iter().map(|met| met.threshold);
        let awaits_space = evaluation.is_some_and(|it| it.end == EvaluationEnd::AwaitingSpace);
        let pending_since = match decision.proposal {
            Some(ProposalState::Pending { since, .. }) => Some(since),
            _ => None,
        };
        let changes = [
            set_list(&mut self.met, met),
            set_list(&mut self.conditions, decision.conditions.iter().map(|raised| raised.condition)),
            set(&mut self.unavailable, decision.unavailable),
            set(&mut self.rejected, rejected),
            set(&mut self.imminent, evaluation.is_some_and(|it| !it.context.imminent.is_empty())),
            set(&mut self.awaits_space, awaits_space),
            set(&mut self.pending_since, pending_since),
        ];
        let is_decided = matches!(decision.proposal, Some(ProposalState::Unchanged | ProposalState::Applied));
        is_decided || changes.contains(&true)
    }
}

/// Sets a value. Returns whether that changes it.
fn set<T: PartialEq + Copy>(value: &mut T, new: T) -> bool {
    std::mem::replace(value, new) != new
}

/// Sets a list, in its own memory. Returns whether that changes it.
fn set_list<T: PartialEq + Copy>(list: &mut Vec<T>, new: impl Iterator<Item = T> + Clone) -> bool {
    let is_same = new.clone().eq(list.iter().copied());
    if !is_same {
        list.clear();
        list.extend(new);
    }
    !is_same
}

#[cfg(test)]
mod tests {
    use ::tests::allocations::trace_allocations;
    use eviction_core::fixture;
    use eviction_core::input::Event;

    use super::*;

    #[test]
    fn a_decision_like_the_one_before_is_no_change_and_allocates_nothing() {
        let pods = fixture::set(vec![fixture::pod("a", "50")]);
        let soft = fixture::soft(Signal::MemoryAvailable, "200", 60);
        let mut engine = fixture::engine(fixture::policy(vec![soft]), &pods);
        let mut decide = |seconds, available| {
            let snapshot = fixture::snapshot(fixture::node(available, 900, fixture::at(seconds)), &[]);
            fixture::step(&mut engine, seconds, Event::Sample(snapshot))
        };
        let mut last = LoopDelta::default();
        assert!(!last.update(&decide(1, 900)), "nothing is met");
        assert!(last.update(&decide(2, 150)));
        assert_eq!(
            (last.met.as_slice(), last.conditions.as_slice()),
            (&[0][..], &[NodeCondition::MemoryPressure][..])
        );
        let decision = decide(3, 149);
        let (is_changed, allocated) = trace_allocations(|| last.update(&decision));
        assert!(!is_changed && allocated.blocks == 0, "{allocated}");
        assert!(last.update(&decide(4, 900)) && last.met.is_empty());
    }
}
