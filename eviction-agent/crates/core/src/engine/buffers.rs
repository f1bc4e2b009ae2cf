//! The memory of decisions that nobody needs any more, for the next ones.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::condition::RaisedCondition;
use crate::decision::{Action, Decision, DecisionKind, Evaluation};
use crate::engine::Engine;
use crate::eviction::{Deficit, PlannedVictim, SkippedVictim};
use crate::in_flight::InFlightEviction;
use crate::input::{Event, Input};
use crate::observation::Observations;
use crate::protection::RefusedPod;
use crate::rank::Candidate;
use crate::signal::{NodeCondition, Signal};
use crate::signal_filter::{RejectedReading, SignalContext};
use crate::snapshot::Snapshot;
use crate::threshold::Met;
use crate::time::Timestamp;

/// Lists of a kind that are kept: an evaluation that waits for garbage collection and the decision
/// that says so are there at the same time, and each threshold has lists of its own.
const MAX_BUFFERS: usize = 32;

/// Pods that are skipped before one goes, or are terminating; usually fewer.
pub(super) const FEW: usize = 32;

/// Lists, all of them empty, for the sake of their memory.
#[derive(Clone, Debug)]
pub(super) struct Buffers<T>(Vec<Vec<T>>);

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Buffers<T> {
    /// The largest there is.
    pub(super) fn take(&mut self) -> Vec<T> {
        let largest = (0..self.0.len()).max_by_key(|&place| self.0[place].capacity());
        largest.map_or_else(Vec::new, |place| self.0.swap_remove(place))
    }

    /// One with the same content.
    fn copy_of(&mut self, list: &[T]) -> Vec<T>
    where
        T: Clone,
    {
        let mut copy = self.take();
        copy.extend_from_slice(list);
        copy
    }

    /// Makes so many lists have room for so much each.
    fn make_room(&mut self, lists: usize, each: usize) {
        self.0.reserve(MAX_BUFFERS.saturating_sub(self.0.len()));
        self.0.sort_by_key(|list| Reverse(list.capacity()));
        let lists = lists.min(MAX_BUFFERS);
        if self.0.len() < lists {
            self.0.resize_with(lists, Vec::new);
        }
        for list in self.0.iter_mut().take(lists) {
            list.reserve(each);
        }
    }

    pub(super) fn keep(&mut self, mut list: Vec<T>) {
        if list.capacity() > 0 && self.0.len() < MAX_BUFFERS {
            list.clear();
            self.0.push(list);
        }
    }
}

/// What comes back, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferPool {
    pub(super) actions: Buffers<Action>,
    pub(super) conditions: Buffers<RaisedCondition>,
    pub(super) met: Buffers<Met>,
    pub(super) ranked: Buffers<Candidate>,
    pub(super) rejected: Buffers<RejectedReading>,
    pub(super) refused_pods: Buffers<RefusedPod>,
    pub(super) imminent: Buffers<u8>,
    pub(super) in_flight: Buffers<InFlightEviction>,
    pub(super) deficits: Buffers<Deficit>,
    /// Places of pods: those that were spared, and those that were shortened.
    pub(super) pods: Buffers<u32>,
    pub(super) victims: Buffers<PlannedVictim>,
    pub(super) skipped: Buffers<SkippedVictim>,
    boxed: Option<Box<Observations>>,
}

impl BufferPool {
    /// Makes room for an evaluation of so many pods in which each of so many thresholds is met, and for a copy of it while
    /// it waits for garbage collection.
    pub(super) fn reserve(&mut self, thresholds: usize, pods: usize) {
        let each = 2 * thresholds;
        self.actions.make_room(2, FEW);
        self.conditions.make_room(2, NodeCondition::COUNT);
        self.met.make_room(2, thresholds);
        self.ranked.make_room(2, pods);
        self.rejected.make_room(2, Signal::COUNT);
        self.refused_pods.make_room(2, FEW);
        self.imminent.make_room(2, thresholds);
        self.in_flight.make_room(2, FEW);
        self.deficits.make_room(2, thresholds);
        // The walk has its own beside those of each threshold: whose budget said no, who frees little, who did not go
        // lately.
        self.pods.make_room(each + 3, FEW);
        self.victims.make_room(each, FEW);
        self.skipped.make_room(each + 2, FEW);
    }

    /// A deficit with lists that have room.
    pub(super) fn deficit(&mut self, new: Deficit) -> Deficit {
        Deficit {
            shortened: self.pods.take(),
            victims: self.victims.take(),
            skipped: self.skipped.take(),
            ..new
        }
    }

    pub(super) fn boxed(&mut self, seen: Observations) -> Box<Observations> {
        match self.boxed.take() {
            Some(mut spare) => {
                *spare = seen;
                spare
            }
            None => Box::new(seen),
        }
    }

    /// A copy of an evaluation, in memory that is spare.
    pub(super) fn copy_of(&mut self, evaluation: &Evaluation) -> Evaluation {
        let context = SignalContext {
            rejected: self.rejected.copy_of(&evaluation.context.rejected),
            imminent: self.imminent.copy_of(&evaluation.context.imminent),
            memory_conditions: evaluation.context.memory_conditions,
            unavailable: evaluation.context.unavailable,
            slopes: evaluation.context.slopes,
        };
        let mut deficits = self.deficits.take();
        deficits.extend(evaluation.deficits.iter().map(|deficit| self.copy_of_deficit(deficit)));
        Evaluation {
            end: evaluation.end,
            observations: evaluation.observations,
            context,
            met: self.met.copy_of(&evaluation.met),
            driving: evaluation.driving,
            left_to_kubelet: evaluation.left_to_kubelet,
            observations_after_reclaim: evaluation.observations_after_reclaim.clone(),
            ranked: self.ranked.copy_of(&evaluation.ranked),
            critical_pods: self.pods.copy_of(&evaluation.critical_pods),
            refused_pods: self.refused_pods.copy_of(&evaluation.refused_pods),
            in_flight: self.in_flight.copy_of(&evaluation.in_flight),
            deficits,
            unknown_volumes: evaluation.unknown_volumes,
            layout: evaluation.layout,
            thresholds: evaluation.thresholds.clone(),
            visible: evaluation.visible.clone(),
            pods: evaluation.pods.clone(),
            snapshot: evaluation.snapshot.clone(),
        }
    }

    fn copy_of_deficit(&mut self, deficit: &Deficit) -> Deficit {
        Deficit {
            shortened: self.pods.copy_of(&deficit.shortened),
            victims: self.victims.copy_of(&deficit.victims),
            skipped: self.skipped.copy_of(&deficit.skipped),
            ..*deficit
        }
    }

    fn keep_deficits(&mut self, mut deficits: Vec<Deficit>) {
        for Deficit { shortened, victims, skipped, .. } in deficits.drain(..) {
            self.pods.keep(shortened);
            self.victims.keep(victims);
            self.skipped.keep(skipped);
        }
        self.deficits.keep(deficits);
    }

    /// Keeps what an evaluation lists.
    pub(super) fn keep_evaluation(&mut self, evaluation: Evaluation) {
        // In full: a list that is added to an evaluation has to come back as well.
        let Evaluation {
            met,
            ranked,
            critical_pods,
            refused_pods,
            context,
            in_flight,
            deficits,
            observations_after_reclaim: seen_after_reclaim,
            end: _,
            observations: _,
            driving: _,
            left_to_kubelet: _,
            unknown_volumes: _,
            layout: _,
            thresholds: _,
            visible: _,
            pods: _,
            snapshot: _,
        } = evaluation;
        let SignalContext { rejected: refused, imminent, memory_conditions: _, unavailable: _, slopes: _ } =
            context;
        self.rejected.keep(refused);
        self.imminent.keep(imminent);
        self.met.keep(met);
        self.ranked.keep(ranked);
        self.pods.keep(critical_pods);
        self.in_flight.keep(in_flight);
        self.refused_pods.keep(refused_pods);
        self.keep_deficits(deficits);
        self.boxed = seen_after_reclaim.or(self.boxed.take());
    }
}

impl Engine {
    /// Takes back a decision that is no longer needed, for the sake of its memory; to drop one
    /// instead does no harm. While all decisions come back, an evaluation allocates nothing, unless
    /// there is more to list than there ever was.
    pub fn recycle(&mut self, decision: Decision) {
        let Decision { actions, conditions, kind: subject, .. } = decision;
        self.pool.actions.keep(actions);
        self.pool.conditions.keep(conditions);
        if let DecisionKind::Evaluated(evaluation) = subject {
            self.pool.keep_evaluation(evaluation);
        }
    }
}

impl Engine {
    /// Finds the room that a sample like this one takes, so that the real one asks the allocator for
    /// nothing: an engine like this takes the sample, and only its buffers are kept. What the engine knows
    /// stays as it is. Beside what this sample takes there is room for what others may.
    pub fn warm_up(&mut self, at: Timestamp, snapshot: Arc<Snapshot>) {
        // A copy of lists that are empty has no room.
        let spare = std::mem::take(&mut self.pool);
        let mut stage = self.clone();
        stage.pool = spare;
        let decision = stage.step(Input { at, event: Event::Sample(snapshot) });
        stage.recycle(decision);
        self.pool = stage.pool;
        self.joined = stage.joined;
        self.threshold_order = stage.threshold_order;
        let (thresholds, pods) = (self.thresholds.all().len(), self.pods.len());
        self.pool.reserve(thresholds, pods);
        self.threshold_order.clear();
        self.threshold_order.reserve(thresholds);
        // Used where nobody has looked up whose statistics these are.
        self.joined.clear();
        self.joined.reserve(pods);
        self.in_flight.reserve(FEW);
        self.thresholds.reserve();
        self.conditions.reserve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, engine, hard, node, policy, set, snapshot};
    use crate::signal::Signal::MemoryAvailable;

    #[test]
    fn there_is_room_however_often_it_was_warmed_up() {
        let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &set(Vec::new()));
        for second in 0..100 {
            engine.warm_up(at(second), snapshot(node(50, 900, at(second)), &[]));
        }
        let selection = [engine.pool.skipped.take(), engine.pool.skipped.take()];
        assert!(selection.iter().all(|list| list.capacity() >= FEW));
    }
}
