//! Buffer pool: the lists of a decision that is no longer needed are reused for the next one. Between a
//! kernel event and an eviction the engine does not allocate, because an allocation may wait for the very
//! memory that is short.

use std::sync::Arc;

use crate::condition::RaisedCondition;
use crate::decision::{Action, Decision, DecisionKind};
use crate::engine::Engine;
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

/// Empty lists for reuse. The first ones belong to a decision, the last four are used within an evaluation.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
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
    pub(super) small: Vec<SizedPod>,
    pub(super) failed_before: Vec<SizedPod>,
    pub(super) pdb_refused: Vec<u32>,
}

/// Copies of an engine are used for trials and need no buffers.
impl Clone for BufferPool {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl BufferPool {
    /// Reserves space for an evaluation of this many pods and thresholds, with each threshold met.
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
    /// Takes back the buffers of a decision that is no longer needed. Dropping a decision instead does no harm.
    pub fn recycle(&mut self, decision: Decision) {
        let Decision { actions, conditions, kind, .. } = decision;
        keep_larger(&mut self.buffers.actions, actions);
        keep_larger(&mut self.buffers.conditions, conditions);
        if let DecisionKind::Evaluated(evaluation) = kind {
            keep_larger(&mut self.buffers.met, evaluation.met);
            keep_larger(&mut self.buffers.rejected, evaluation.context.rejected);
            keep_larger(&mut self.buffers.imminent, evaluation.context.imminent);
            keep_larger(&mut self.buffers.ranked, evaluation.ranked);
            keep_larger(&mut self.buffers.critical_pods, evaluation.critical_pods);
            keep_larger(&mut self.buffers.refused_pods, evaluation.refused_pods);
            keep_larger(&mut self.buffers.in_flight, evaluation.in_flight);
            keep_larger(&mut self.buffers.deficits, evaluation.deficits);
            keep_larger(&mut self.buffers.sized_pods, evaluation.sized_pods);
        }
    }

    /// Evaluates a sample on a copy of the engine and drops the decision, so that the buffers for such a
    /// decision, and for larger ones, are allocated. Nothing else changes. After a change of the policy the engine
    /// may be a copy of the former one, in which lists have no more space than they use.
    pub fn warm_up(&mut self, at: Timestamp, snapshot: Arc<Snapshot>) {
        self.buffers.reserve(self.thresholds.all().len(), self.pods.len());
        let mut trial = self.clone();
        trial.buffers = std::mem::take(&mut self.buffers);
        let decision = trial.step(Input { at, event: Event::Sample(snapshot) });
        trial.recycle(decision);
        self.buffers = trial.buffers;
        self.in_flight.reserve(self.pods.len());
        self.thresholds.reserve();
        self.conditions.reserve();
    }
}

/// Keeps the list with the larger capacity, empty.
fn keep_larger<T>(buffer: &mut Vec<T>, mut list: Vec<T>) {
    if list.capacity() > buffer.capacity() {
        list.clear();
        *buffer = list;
    }
}
