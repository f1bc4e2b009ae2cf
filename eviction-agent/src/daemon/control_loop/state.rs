//! The state that the loop keeps from one iteration to the next.

use eviction_core::decision::{Decision, ProposalState};
use eviction_core::eviction::EvaluationEnd;
use eviction_core::rank::Candidate;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::{NodeCondition, Signal, SignalSet};
use eviction_core::time::Timestamp;

use super::oom::OomGroupCoalescer;
use super::terminating::TerminatingPod;

/// The state that the loop keeps from one iteration to the next.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The number of decisions so far, which is the number of the last one.
    pub(super) decisions: u64,
    /// Terminating pods that have no object any more but still have processes in their cgroups.
    pub(super) terminating: Vec<TerminatingPod>,
    pub(super) last_change: LoopDelta,
    pub(super) unknown: [Option<UnknownReason>; Signal::COUNT],
    /// When the kernel reported a crossing of a disk threshold that is still met. Pods are ranked once their
    /// storage is read.
    pub(super) disk_crossed_ns: Option<u64>,
    pub(super) last_full_ns: u64,
    /// When something other than process IDs is to be sampled.
    pub(super) sync_due_ns: u64,
    /// The time of the full sample with which the engine got the pods for their trends.
    pub(super) trends_updated_ns: u64,
    pub(super) tree_due_ns: Option<u64>,
    /// Whether a policy has come into force that is not handed on to be saved yet.
    pub(super) is_policy_new: bool,
    /// When the cgroup tree was read last.
    pub(super) tree_read_ns: u64,
    pub(super) oom_groups: OomGroupCoalescer,
    /// Whether the buffers are large enough for an evaluation of the present pods.
    pub(super) is_warm: bool,
    /// When the timer fires next.
    pub(super) due_ns: u64,
    pub(super) last_left: Option<(u64, u64)>,
    /// Whether the kernel threshold of the node's tasks must be set again.
    pub(super) rearm_pids: bool,
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
    /// Reserves memory for all thresholds and conditions.
    pub(super) fn reserve(&mut self) {
        self.met.reserve(2 * Signal::COUNT);
        self.conditions.reserve(2 * Signal::COUNT);
    }

    /// Records a decision. Returns true if something changed.
    pub(super) fn update(&mut self, decision: &Decision) -> bool {
        let met = decision
            .evaluation()
            .map_or(&[][..], |evaluation| &evaluation.met)
            .iter()
            .map(|met| met.threshold);
        let conditions = decision.conditions.iter().map(|raised| raised.condition);
        let same = met.clone().eq(self.met.iter().copied())
            && conditions.clone().eq(self.conditions.iter().copied());
        let context = decision.evaluation().map(|evaluation| &evaluation.context);
        let mut rejected = SignalSet::EMPTY;
        for refusal in context.map_or(&[][..], |context| &context.rejected) {
            rejected.insert(refusal.signal);
        }
        let imminent = context.is_some_and(|context| !context.imminent.is_empty());
        let awaits_space = decision.evaluation().is_some_and(|it| it.end == EvaluationEnd::AwaitingSpace);
        let (pending_since, is_decided) = match &decision.proposal {
            Some(ProposalState::Pending { since, .. }) => (Some(*since), false),
            Some(ProposalState::Unchanged | ProposalState::Applied) => (None, true),
            None => (None, false),
        };
        let other = (decision.unavailable, rejected, imminent, awaits_space, pending_since);
        let before = (self.unavailable, self.rejected, self.imminent, self.awaits_space, self.pending_since);
        let same = same && !is_decided && other == before;
        (self.unavailable, self.rejected, self.imminent, self.awaits_space, self.pending_since) = other;
        if !same {
            self.met.clear();
            self.met.extend(met);
            self.conditions.clear();
            self.conditions.extend(conditions);
        }
        !same
    }
}
