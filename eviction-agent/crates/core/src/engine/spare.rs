//! The lists of a decision that is no longer needed, for the next one: from a kernel event to an eviction, the
//! engine asks the allocator for nothing, which may wait for the very memory that is short.

use std::sync::Arc;

use crate::condition::RaisedCondition;
use crate::decision::{Action, Decision, DecisionKind};
use crate::engine::Engine;
use crate::engine::multi_victim::Postponed;
use crate::eviction::{Deficit, SizedPod};
use crate::in_flight::InFlightEviction;
use crate::input::{Event, Input};
use crate::protection::RefusedPod;
use crate::rank::Candidate;
use crate::signal::{NodeCondition, Signal};
use crate::signal_filter::RejectedReading;
use crate::snapshot::Snapshot;
use crate::threshold::Met;
use crate::time::Timestamp;

/// Empty lists. The first are those of a decision, the last four are used within an evaluation.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) actions: Vec<Action>,
    pub(super) conditions: Vec<RaisedCondition>,
    pub(super) met: Vec<Met>,
    pub(super) rejected: Vec<RejectedReading>,
    pub(super) imminent: Vec<u8>,
    pub(super) ranked: Vec<Candidate>,
    pub(super) critical_pods: Vec<u32>,
    pub(super) refused_pods: Vec<RefusedPod>,
    pub(super) in_flight: Vec<InFlightEviction>,
    pub(super) deficits: Vec<Deficit>,
    pub(super) sized_pods: Vec<SizedPod>,
    pub(super) threshold_order: Vec<u8>,
    pub(super) small: Vec<Postponed>,
    pub(super) failed_before: Vec<Postponed>,
    pub(super) pdb_refused: Vec<u32>,
}

/// Copies of an engine decide on trial, and need none.
impl Clone for Spare {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Spare {
    /// Makes room for what an evaluation of so many pods lists, each threshold met.
    fn reserve(&mut self, thresholds: usize, pods: usize) {
        self.actions.reserve(pods + Signal::COUNT);
        self.conditions.reserve(NodeCondition::COUNT);
        self.met.reserve(thresholds);
        self.rejected.reserve(Signal::COUNT);
        self.imminent.reserve(thresholds);
        self.ranked.reserve(pods);
        self.critical_pods.reserve(pods);
        self.refused_pods.reserve(pods);
        self.in_flight.reserve(pods);
        self.deficits.reserve(2 * thresholds);
        self.sized_pods.reserve(pods);
        self.threshold_order.reserve(thresholds);
        self.small.reserve(pods);
        self.failed_before.reserve(pods);
        self.pdb_refused.reserve(pods);
    }
}

impl Engine {
    /// Takes back a decision that is no longer needed, for its memory. To drop one instead does no harm.
    pub fn recycle(&mut self, decision: Decision) {
        let Decision { actions, conditions, kind, .. } = decision;
        keep(&mut self.spare.actions, actions);
        keep(&mut self.spare.conditions, conditions);
        if let DecisionKind::Evaluated(evaluation) = kind {
            keep(&mut self.spare.met, evaluation.met);
            keep(&mut self.spare.rejected, evaluation.context.rejected);
            keep(&mut self.spare.imminent, evaluation.context.imminent);
            keep(&mut self.spare.ranked, evaluation.ranked);
            keep(&mut self.spare.critical_pods, evaluation.critical_pods);
            keep(&mut self.spare.refused_pods, evaluation.refused_pods);
            keep(&mut self.spare.in_flight, evaluation.in_flight);
            keep(&mut self.spare.deficits, evaluation.deficits);
            keep(&mut self.spare.sized_pods, evaluation.sized_pods);
        }
    }

    /// Decides on a sample and forgets the decision, so that the memory for one like it, and for larger ones, is
    /// there. Nothing else changes.
    pub fn warm_up(&mut self, at: Timestamp, snapshot: Arc<Snapshot>) {
        self.spare.reserve(self.thresholds.all().len(), self.pods.len());
        let mut trial = self.clone();
        trial.spare = std::mem::take(&mut self.spare);
        let decision = trial.step(Input { at, event: Event::Sample(snapshot) });
        trial.recycle(decision);
        self.spare = trial.spare;
        self.in_flight.reserve(self.pods.len());
    }
}

/// Keeps the larger of two lists, empty.
fn keep<T>(spare: &mut Vec<T>, mut list: Vec<T>) {
    if list.capacity() > spare.capacity() {
        list.clear();
        *spare = list;
    }
}
