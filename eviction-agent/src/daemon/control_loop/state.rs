//! What the loop keeps from one iteration to the next.

use eviction_core::decision::{Decision, ProposalState};
use eviction_core::input::ApiReachability;
use eviction_core::rank::Candidate;
use eviction_core::reading::UnknownReason;
use eviction_core::signal::{NodeCondition, Signal, SignalSet};
use eviction_core::time::Timestamp;

use super::oom::OomGroupCoalescer;
use super::terminating::TerminatingPod;

/// What the loop keeps from one iteration to the next.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Whether the API server is available.
    pub(super) reach: ApiReachability,
    /// Decisions so far: the next one's number.
    pub(super) decisions: u64,
    /// Terminating pods whose objects are gone and in whose cgroups there are processes.
    pub(super) terminating: Vec<TerminatingPod>,
    pub(super) last_change: LoopDelta,
    pub(super) unknown: [Option<UnknownReason>; Signal::COUNT],
    /// When the kernel reported a crossing of a disk that is still met: pods are ranked once their storage is read.
    pub(super) disk_crossed_ns: Option<u64>,
    pub(super) last_full_ns: u64,
    /// When something else than process IDs is to be sampled.
    pub(super) sync_due_ns: u64,
    /// The full sample with which the engine got the pods for their trends.
    pub(super) followed_ns: u64,
    pub(super) tree_due_ns: Option<u64>,
    /// When the tree was read last.
    pub(super) tree_read_ns: u64,
    pub(super) oom_groups: OomGroupCoalescer,
    /// Whether buffers are large enough for an evaluation of these pods.
    pub(super) is_warm: bool,
    /// When the timer fires next.
    pub(super) due_ns: u64,
    pub(super) last_left: Option<(u64, u64)>,
    /// The kernel threshold of the node's tasks is to be set again.
    pub(super) rearm_pids: bool,
    pub(super) charged: Vec<u64>,
    /// Room for the order of pods before it is decided on.
    pub(super) ahead: Vec<Candidate>,
}

impl State {
    /// Events were lost: the next sync takes a full sample of a tree that was read again.
    pub(super) fn resample_all(&mut self) {
        (self.last_full_ns, self.tree_read_ns) = (0, 0);
    }
}

/// The parts of a decision that are published when they change.
#[derive(Debug, Default)]
pub(super) struct LoopDelta {
    met: Vec<u8>,
    conditions: Vec<NodeCondition>,
    blind: SignalSet,
    refused: SignalSet,
    imminent: bool,
    /// Since when a changed configuration waits.
    waits: Option<Timestamp>,
}

impl LoopDelta {
    /// Whether a threshold was about to be met.
    pub(super) fn predicts(&self) -> bool {
        self.imminent
    }

    /// Whether a threshold is met.
    pub(super) fn is_met(&self) -> bool {
        !self.met.is_empty()
    }

    /// Reserves memory for all of it.
    pub(super) fn make_room(&mut self) {
        self.met.reserve(2 * Signal::COUNT);
        self.conditions.reserve(2 * Signal::COUNT);
    }

    /// Takes note of a decision; true if something changed.
    pub(super) fn take(&mut self, decision: &Decision) -> bool {
        let met = decision
            .evaluation()
            .map_or(&[][..], |evaluation| &evaluation.met)
            .iter()
            .map(|met| met.threshold);
        let conditions = decision.conditions.iter().map(|raised| raised.condition);
        let same = met.clone().eq(self.met.iter().copied())
            && conditions.clone().eq(self.conditions.iter().copied());
        let context = decision.evaluation().map(|evaluation| &evaluation.context);
        let mut refused = SignalSet::EMPTY;
        for refusal in context.map_or(&[][..], |context| &context.rejected) {
            refused.insert(refusal.signal);
        }
        let imminent = context.is_some_and(|context| !context.imminent.is_empty());
        let (waits, is_decided) = match &decision.proposal {
            Some(ProposalState::Pending(waiting)) => (Some(waiting.since), false),
            Some(ProposalState::Unchanged | ProposalState::Applied) => (None, true),
            None => (None, false),
        };
        let beside = (decision.unavailable, refused, imminent, waits);
        let same = same && !is_decided && beside == (self.blind, self.refused, self.imminent, self.waits);
        (self.blind, self.refused, self.imminent, self.waits) = beside;
        if !same {
            self.met.clear();
            self.met.extend(met);
            self.conditions.clear();
            self.conditions.extend(conditions);
        }
        !same
    }
}
