//! One evaluation: `eviction_manager.go: synchronize`.

use std::mem::take;
use std::sync::Arc;

use crate::decision::{Action, DecisionKind, Evaluation, NotEvaluated};
use crate::disk_layout::{DiskLayout, Parts};
use crate::engine::Engine;
use crate::eviction::EvaluationEnd;
use crate::in_flight::InFlightEviction;
use crate::policy::preferences::{Prediction, PredictionMode};
use crate::policy::{Rules, Threshold};
use crate::rank::{Candidate, Measure, rank};
use crate::reading::UnknownReason;
use crate::signal::Resource;
use crate::signal_filter::SignalContext;
use crate::snapshot::Snapshot;
use crate::threshold::Met;
use crate::time::Timestamp;

impl Engine {
    /// Evaluates a sample: everything from the observations on.
    pub(super) fn evaluate(
        &mut self,
        at: Timestamp,
        layout: DiskLayout,
        snapshot: &Arc<Snapshot>,
        actions: &mut Vec<Action>,
    ) -> Evaluation {
        let rules = &self.policy.rules;
        let mut context = SignalContext {
            rejected: take(&mut self.buffers.rejected),
            imminent: take(&mut self.buffers.imminent),
            ..SignalContext::default()
        };
        let observations =
            self.signal_filter.observe(at, snapshot, &self.policy.thresholds, rules, &mut context);
        self.unavailable = context.unavailable;
        let mut evaluation = Evaluation {
            end: EvaluationEnd::NoPressure,
            observations,
            context,
            met: take(&mut self.buffers.met),
            driving: None,
            left_to_kubelet: None,
            observations_after_reclaim: None,
            ranked: take(&mut self.buffers.ranked),
            critical_pods: take(&mut self.buffers.critical_pods),
            refused_pods: take(&mut self.buffers.refused_pods),
            in_flight: self.considered_evictions(),
            deficits: take(&mut self.buffers.deficits),
            sized_pods: take(&mut self.buffers.sized_pods),
            unknown_volumes: 0,
            layout,
            thresholds: Arc::clone(self.thresholds.all()),
            visible: Arc::clone(self.thresholds.visible()),
            pods: Arc::clone(&self.pods),
            snapshot: snapshot.indexed(&self.pods),
        };
        let predicted = self.predict(&mut evaluation);
        let gate = evaluation.context.memory_conditions;
        let counted_as_met: &[u8] =
            if predicted == PredictionMode::Evict { &evaluation.context.imminent } else { &[] };
        self.thresholds.observe(at, &evaluation.observations, gate, counted_as_met, &mut evaluation.met);
        let raising: &[u8] =
            if predicted == PredictionMode::Off { &[] } else { &evaluation.context.imminent };
        self.raise_conditions(at, &evaluation.met, raising);
        if self.policy.local_storage_capacity_isolation
            && self.evict_above_limits(at, &mut evaluation, actions)
        {
            evaluation.end = EvaluationEnd::LocalStorage;
            // Under the kubelet's rules, evicting a pod for its own limits ends the evaluation. Otherwise the
            // thresholds are handled in the same evaluation.
            if self.policy.rules.are_kubelets() {
                return evaluation;
            }
        }
        let mut urgent = take(&mut self.buffers.threshold_order);
        sort_by_urgency(&self.policy.rules, &evaluation.met, &evaluation.thresholds, &mut urgent);
        for &threshold_index in &urgent {
            evaluation.driving = Some(threshold_index);
            let ends = self.handle_driving_threshold(at, &mut evaluation, actions);
            evaluation.end_deficit();
            if ends {
                break;
            }
        }
        self.buffers.threshold_order = urgent;
        evaluation
    }

    /// Returns the in-flight evictions that the evaluation takes into account. Empty under the kubelet's rules.
    fn considered_evictions(&mut self) -> Vec<InFlightEviction> {
        let mut in_flight = take(&mut self.buffers.in_flight);
        if !self.policy.rules.are_kubelets() {
            in_flight.extend(self.in_flight.known().cloned());
        }
        in_flight
    }

    /// Handles the driving threshold. Returns whether the evaluation ends here; if not, the next threshold is
    /// handled.
    fn handle_driving_threshold(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(signal) = evaluation.driving_signal() else {
            return false;
        };
        if self.is_covered(at, evaluation, actions) {
            evaluation.end = EvaluationEnd::ReleaseInProgress;
            return false;
        }
        let parts = evaluation.layout.parts(signal);
        if parts != Parts::default() && parts.are_within(evaluation.snapshot.node.unmeasured) {
            evaluation.end = match evaluation.snapshot.node.awaited_bytes {
                0 => EvaluationEnd::CannotRank,
                _ => EvaluationEnd::AwaitingSpace,
            };
            return false;
        }
        record_event(signal.resource(), actions);
        let reclaims = evaluation.layout.reclaims(signal);
        if reclaims.is_empty() || !self.can_rank() {
            self.evict_for_threshold(at, evaluation, actions);
            return evaluation.end == EvaluationEnd::Evicted;
        }
        actions.extend(reclaims.iter().copied().map(Action::Reclaim));
        evaluation.end = EvaluationEnd::AwaitingReclaim;
        self.awaiting_reclaim = Some(evaluation.clone());
        true
    }

    /// `reclaimNodeLevelResources` from the second sample on. Without a sample the reclaim counts as failed.
    pub(super) fn resume(
        &mut self,
        at: Timestamp,
        second: Result<Arc<Snapshot>, UnknownReason>,
        actions: &mut Vec<Action>,
    ) -> DecisionKind {
        let Some(mut evaluation) = self.awaiting_reclaim.take() else {
            return DecisionKind::NotEvaluated(NotEvaluated::NotAwaitingReclaim);
        };
        if let Ok(snapshot) = second {
            let seen = self.signal_filter.observe_again(at, &snapshot.node, &self.policy.rules);
            evaluation.observations_after_reclaim = Some(Box::new(seen));
            // For the kubelet, reclaim was sufficient if every threshold of the node is resolved. Under the
            // other rules, only the driving threshold has to be resolved.
            let is_unresolved = match evaluation.driving.filter(|_| !self.policy.rules.are_kubelets()) {
                Some(threshold_index) => self.thresholds.is_unresolved(threshold_index, &seen),
                None => self.thresholds.any_unresolved(&seen),
            };
            if !is_unresolved {
                evaluation.end = EvaluationEnd::Reclaimed;
                return DecisionKind::Evaluated(evaluation);
            }
        }
        self.evict_for_threshold(at, &mut evaluation, actions);
        evaluation.end_deficit();
        DecisionKind::Evaluated(evaluation)
    }

    /// Finds the thresholds that are predicted to be met soon. Returns how the policy reacts to them.
    fn predict(&self, evaluation: &mut Evaluation) -> PredictionMode {
        let Some(Prediction { mode: predict, horizon: within }) = self.policy.rules.prediction() else {
            return PredictionMode::Off;
        };
        let mut imminent = take(&mut evaluation.context.imminent);
        let is_imminent = |threshold: &Threshold| {
            evaluation.context.is_imminent(threshold, &evaluation.observations, within)
        };
        let visible = evaluation.visible.iter().copied();
        imminent.extend(visible.filter(|&index| evaluation.threshold(index).is_some_and(is_imminent)));
        evaluation.context.imminent = imminent;
        match predict {
            // On a sample without pods no pod may be evicted by prediction.
            PredictionMode::Evict if evaluation.snapshot.is_empty() => PredictionMode::Condition,
            predict => predict,
        }
    }

    fn raise_conditions(&mut self, at: Timestamp, met: &[Met], imminent: &[u8]) {
        let thresholds = self.thresholds.all();
        let indices = met.iter().map(|met| met.threshold).chain(imminent.iter().copied());
        let raised = indices
            .filter_map(|index| thresholds.get(usize::from(index)))
            .map(|threshold| threshold.signal.condition());
        self.conditions.raise(at, raised, self.policy.pressure_transition_period);
    }

    /// Returns whether garbage can be collected and pods can be ranked. Both need a disk layout that the
    /// feature gates allow.
    pub(super) fn can_rank(&self) -> bool {
        self.layout.is_some_and(|layout| !layout.is_refused_by(self.policy.gates))
    }

    /// Ranks the pods for memory as an evaluation of this snapshot would, the first to be evicted first. The
    /// snapshot must be indexed for the engine's pods. The engine does not change.
    pub fn rank_ahead(&self, snapshot: &Snapshot, ranked: &mut Vec<Candidate>) {
        rank(Measure::Memory, &self.pods, snapshot, ranked);
    }
}

/// Adds the event that a resource is short, unless it was added before.
pub(super) fn record_event(resource: Resource, actions: &mut Vec<Action>) {
    let announcement = Action::RecordEvent(resource);
    if !actions.contains(&announcement) {
        actions.push(announcement);
    }
}

/// Writes the thresholds that may evict to `urgent`, the most urgent first. Under the kubelet's rules this is
/// one threshold; otherwise hard before soft, then memory before the rest, then in configured order.
fn sort_by_urgency(rules: &Rules, met: &[Met], thresholds: &[Threshold], urgent: &mut Vec<u8>) {
    urgent.clear();
    if rules.are_kubelets() {
        urgent.extend(most_urgent(met, thresholds));
        return;
    }
    urgent.extend(met.iter().filter(|met| met.may_evict).map(|met| met.threshold));
    // The sort is stable: equal thresholds stay in configured order.
    urgent.sort_by_key(|&threshold_index| {
        thresholds
            .get(usize::from(threshold_index))
            .map(|threshold| (!threshold.is_hard(), threshold.signal.resource() != Resource::Memory))
    });
}

/// Returns the threshold that the evaluation handles: `helpers.go: byEvictionPriority`.
///
/// Memory comes before everything else; the order of the rest is not defined. The kubelet gets the thresholds
/// from a map, so any one of memory may come first. Of the possible results, this is one in which a soft
/// threshold does not hide a hard one: the last hard one of memory, else the last one of memory, else the
/// first one in configured order.
fn most_urgent(met: &[Met], thresholds: &[Threshold]) -> Option<u8> {
    let threshold = |met: &Met| thresholds.get(usize::from(met.threshold));
    let is_memory =
        |met: &&Met| threshold(met).is_some_and(|found| found.signal.resource() == Resource::Memory);
    let is_hard = |met: &&Met| threshold(met).is_some_and(Threshold::is_hard);
    let may_evict = || met.iter().filter(|met| met.may_evict);
    let of_memory = || may_evict().filter(is_memory);
    let urgent = of_memory().rfind(is_hard).or_else(|| of_memory().next_back());
    urgent.or_else(|| may_evict().next()).map(|met| met.threshold)
}
