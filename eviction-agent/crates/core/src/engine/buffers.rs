//! Buffer pool: the lists of a decision that is no longer needed are reused for the next one. Between a
//! kernel event and an eviction the engine does not allocate, because an allocation may wait for the very
//! memory that is short.

use std::mem::MaybeUninit;

use crate::condition::RaisedCondition;
use crate::decision::{Action, Decision, DecisionKind};
use crate::engine::Engine;
use crate::eviction::{Deficit, SizedPod};
use crate::in_flight::InFlightEviction;
use crate::protection::RefusedPod;
use crate::rank::Candidate;
use crate::signal::{NodeCondition, Signal};
use crate::signal_filter::RejectedReading;
use crate::threshold::Met;

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
    pub(super) pdb_refused: Vec<RefusedPod>,
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
        reserve_resident(&mut self.actions, pods + Signal::COUNT);
        reserve_resident(&mut self.conditions, NodeCondition::COUNT);
        reserve_resident(&mut self.met, thresholds);
        reserve_resident(&mut self.rejected, Signal::COUNT);
        reserve_resident(&mut self.imminent, thresholds);
        reserve_resident(&mut self.ranked, pods);
        reserve_resident(&mut self.critical_pods, pods);
        reserve_resident(&mut self.refused_pods, pods);
        // Large entries, of which few are used.
        self.in_flight.reserve(pods);
        reserve_resident(&mut self.deficits, 2 * thresholds);
        reserve_resident(&mut self.sized_pods, pods);
        reserve_resident(&mut self.threshold_order, thresholds);
        reserve_resident(&mut self.small, pods);
        reserve_resident(&mut self.failed_before, pods);
        reserve_resident(&mut self.pdb_refused, pods);
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

    /// Reserves space for the evaluation and the eviction of all pods. To be called for each set of pods, and after
    /// a change of the policy: the engine may be a copy of the former one, in which lists have no more space than
    /// they use.
    pub fn reserve_buffers(&mut self) {
        self.buffers.reserve(self.thresholds.all().len(), self.pods.len());
        self.in_flight.reserve(self.pods.len());
        self.thresholds.reserve();
        self.conditions.reserve();
    }
}

/// Reserves space, and writes to all of it: the kernel gives memory at the first write, which may wait for memory
/// that is short.
fn reserve_resident<T>(list: &mut Vec<T>, additional: usize) {
    list.reserve(additional);
    list.spare_capacity_mut().fill_with(MaybeUninit::zeroed);
}

/// Keeps the list with the larger capacity, empty.
fn keep_larger<T>(buffer: &mut Vec<T>, mut list: Vec<T>) {
    if list.capacity() > buffer.capacity() {
        list.clear();
        *buffer = list;
    }
}
