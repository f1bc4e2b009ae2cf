//! One pass: `eviction_manager.go: synchronize`.

use std::mem::take;
use std::sync::Arc;

use crate::decision::{Action, DecisionKind, Evaluation, NotEvaluated};
use crate::disk_layout::DiskLayout;
use crate::engine::{Engine, Layout};
use crate::eviction::EvaluationEnd;
use crate::in_flight::InFlightEviction;
use crate::oom::{ContainerEnded, ContainerTerminated, OomKill, OomTracker, OomUpdate};
use crate::policy::preferences::PredictionMode;
use crate::policy::{ReclaimGoal, TrendPolicy, Urgency, VictimsPerSync};
use crate::rank::{Candidate, Measure, rank};
use crate::reading::UnknownReason;
use crate::signal::{Resource, Signal};
use crate::signal_filter::SignalContext;
use crate::snapshot::Snapshot;
use crate::threshold::{Met, ResolvedThreshold};
use crate::time::Timestamp;

impl Engine {
    /// Everything from the observations on.
    pub(super) fn evaluate(
        &mut self,
        at: Timestamp,
        layout: DiskLayout,
        snapshot: Arc<Snapshot>,
        actions: &mut Vec<Action>,
    ) -> Evaluation {
        let rules = &self.policy.rules;
        let mut sight = SignalContext {
            rejected: self.pool.rejected.take(),
            imminent: self.pool.imminent.take(),
            ..SignalContext::default()
        };
        let seen = self.signal_filter.observe(at, &snapshot, &self.policy.thresholds, rules, &mut sight);
        self.unavailable = sight.unavailable;
        let mut pass = Evaluation {
            end: EvaluationEnd::NoPressure,
            observations: seen,
            context: sight,
            met: self.pool.met.take(),
            driving: None,
            observations_after_reclaim: None,
            ranked: self.pool.ranked.take(),
            critical_pods: self.pool.pods.take(),
            refused_pods: self.pool.refused_pods.take(),
            in_flight: self.remembered_evictions(),
            deficits: self.pool.deficits.take(),
            unknown_volumes: 0,
            layout,
            thresholds: Arc::clone(self.thresholds.all()),
            visible: Arc::clone(self.thresholds.visible()),
            pods: Arc::clone(&self.pods),
            snapshot,
        };
        let predicted = self.predict(&mut pass);
        let gate = pass.context.memory_conditions;
        let acted_on: &[u8] = if predicted == PredictionMode::Evict { &pass.context.imminent } else { &[] };
        self.thresholds.observe(at, &pass.observations, gate, acted_on, &mut pass.met);
        let raising: &[u8] = if predicted == PredictionMode::Off { &[] } else { &pass.context.imminent };
        self.raise_conditions(at, &pass.met, raising);
        if self.policy.local_storage_capacity_isolation && self.evict_above_limits(at, &mut pass, actions) {
            pass.end = EvaluationEnd::LocalStorage;
            // What one pod did to its own limits does not keep the node waiting for the next one.
            if self.policy.rules.victims == VictimsPerSync::One {
                return pass;
            }
        }
        let mut urgent = take(&mut self.threshold_order);
        self.policy.rules.urgency.order(&pass.met, &pass.thresholds, &mut urgent);
        for &line in &urgent {
            pass.driving = Some(line);
            let ends = self.handle_threshold(at, &mut pass, line, actions);
            pass.end_deficit();
            if ends {
                break;
            }
        }
        self.threshold_order = urgent;
        pass
    }

    /// The evictions in flight that a pass reckons with: by the kubelet's rules none.
    fn remembered_evictions(&mut self) -> Vec<InFlightEviction> {
        let mut flights = self.pool.in_flight.take();
        if self.policy.rules.victims != VictimsPerSync::One {
            flights.extend(self.in_flight.known().cloned());
        }
        flights
    }

    /// Does what a threshold asks for. Whether the pass ends with it; if not, the next one has
    /// its turn.
    fn handle_threshold(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        line: u8,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(signal) = pass.driving_signal() else {
            return false;
        };
        if self.is_covered(pass, line, actions) {
            pass.end = EvaluationEnd::ReleaseInProgress;
            return false;
        }
        record_event(signal.resource(), actions);
        let reclaims = pass.layout.reclaims(signal);
        if reclaims.is_empty() || !self.can_rank() {
            self.evict_for_threshold(at, pass, actions);
            return pass.end == EvaluationEnd::Evicted;
        }
        actions.extend(reclaims.iter().copied().map(Action::Reclaim));
        pass.end = EvaluationEnd::AwaitingReclaim;
        self.awaiting_reclaim = Some(self.pool.copy_of(pass));
        true
    }

    /// `reclaimNodeLevelResources` from the second look on. Without a look it was no success.
    pub(super) fn resume(
        &mut self,
        at: Timestamp,
        second: Result<Arc<Snapshot>, UnknownReason>,
        actions: &mut Vec<Action>,
    ) -> DecisionKind {
        let Some(mut pass) = self.awaiting_reclaim.take() else {
            return DecisionKind::NotEvaluated(NotEvaluated::NotAwaitingReclaim);
        };
        if let Ok(snapshot) = second {
            let seen = self.signal_filter.observe_again(&snapshot.node, &self.policy.rules);
            pass.observations_after_reclaim = Some(self.pool.boxed(seen));
            let lacks = match (self.policy.rules.reclaim, pass.driving) {
                (ReclaimGoal::ItsOwnSignal, Some(line)) => self.thresholds.is_unresolved(line, &seen),
                (ReclaimGoal::EveryThreshold, _) | (_, None) => self.thresholds.any_unresolved(&seen),
            };
            if !lacks {
                pass.end = EvaluationEnd::Reclaimed;
                return DecisionKind::Evaluated(pass);
            }
        }
        self.evict_for_threshold(at, &mut pass, actions);
        pass.end_deficit();
        DecisionKind::Evaluated(pass)
    }

    /// Finds the thresholds that are about to be met; returns what is done about them.
    fn predict(&self, pass: &mut Evaluation) -> PredictionMode {
        let TrendPolicy::Trend { predict, within } = self.policy.rules.prediction else {
            return PredictionMode::Off;
        };
        let mut imminent = take(&mut pass.context.imminent);
        for &place in pass.visible.iter() {
            let line = pass.threshold(place);
            if line.is_some_and(|line| pass.context.is_imminent(line, &pass.observations, within)) {
                imminent.push(place);
            }
        }
        pass.context.imminent = imminent;
        match predict {
            // Nobody goes by prediction on a look that saw no pod.
            PredictionMode::Evict if pass.snapshot.is_empty() => PredictionMode::Condition,
            predict => predict,
        }
    }

    fn raise_conditions(&mut self, at: Timestamp, met: &[Met], imminent: &[u8]) {
        let lines = self.thresholds.all();
        let places = met.iter().map(|met| met.threshold).chain(imminent.iter().copied());
        let raised = places
            .filter_map(|place| lines.get(usize::from(place)))
            .map(|line| line.threshold.signal.condition());
        self.conditions.raise(at, raised, self.policy.pressure_transition_period);
    }

    /// Whether it is known how to collect garbage and to rank pods: not in a layout that the
    /// gates do not allow.
    pub(super) fn can_rank(&self) -> bool {
        matches!(self.layout, Layout::Known { .. })
    }
}

/// Says once what the node is short of.
pub(super) fn record_event(resource: Resource, actions: &mut Vec<Action>) {
    let announcement = Action::RecordEvent(resource);
    if !actions.contains(&announcement) {
        actions.push(announcement);
    }
}

impl Urgency {
    /// Writes the thresholds that may evict to `urgent`, the most urgent first.
    pub(super) fn order(self, met: &[Met], lines: &[ResolvedThreshold], urgent: &mut Vec<u8>) {
        urgent.clear();
        match self {
            Self::Kubelet => urgent.extend(most_urgent(met, lines)),
            Self::HardFirst => {
                urgent.extend(met.iter().filter(|met| met.may_evict).map(|met| met.threshold));
                // Stable: what is alike keeps its place in the configuration.
                urgent.sort_by_key(|&line| {
                    lines.get(usize::from(line)).map(|ResolvedThreshold { threshold, .. }| {
                        (!threshold.is_hard(), threshold.signal.resource() != Resource::Memory)
                    })
                });
            }
        }
    }
}

/// The threshold that the pass deals with: `helpers.go: byEvictionPriority`.
///
/// Memory goes before everything else, and nothing is said about the rest. The kubelet's sort
/// turns thresholds of memory around and leaves the others as its map gave them. Of the
/// outcomes it can have, this is the one for thresholds in their configured order: the last
/// one of memory, else the first one.
fn most_urgent(met: &[Met], lines: &[ResolvedThreshold]) -> Option<u8> {
    let is_memory = |met: &&Met| {
        lines
            .get(usize::from(met.threshold))
            .is_some_and(|line| line.threshold.signal.resource() == Resource::Memory)
    };
    let fresh = || met.iter().filter(|met| met.may_evict);
    let urgent = fresh().rfind(is_memory).or_else(|| fresh().next());
    urgent.map(|met| met.threshold)
}

impl Engine {
    /// OOM kills, and why containers terminated.
    pub fn oom(&self) -> &OomTracker {
        &self.oom
    }

    /// What this engine decides is not carried out (a dry run): its evictions explain no
    /// container's end.
    pub fn set_dry_run(&mut self) {
        self.oom.only_advises();
    }

    pub(super) fn oom_kill(&mut self, at: Timestamp, kill: OomKill) -> DecisionKind {
        DecisionKind::Oom(OomUpdate::Kill(Box::new(self.oom.kill(at, kill, &self.pods))))
    }

    pub(super) fn container_ended(&mut self, at: Timestamp, end: ContainerEnded) -> DecisionKind {
        DecisionKind::Oom(OomUpdate::End(self.oom.end(at, &end, &self.pods)))
    }

    /// The causes that can be decided after this input. What it evicts itself explains no end
    /// that came before.
    pub(super) fn ended_containers(
        &mut self,
        at: Timestamp,
        subject: &DecisionKind,
        actions: &[Action],
    ) -> Vec<ContainerTerminated> {
        let touched = match subject {
            DecisionKind::Oom(OomUpdate::Kill(kill)) => kill.pod_uid.as_deref(),
            DecisionKind::Oom(OomUpdate::End(end)) => Some(&*end.uid),
            DecisionKind::StateUpdated
            | DecisionKind::Evaluated(_)
            | DecisionKind::NotEvaluated(_)
            | DecisionKind::Admission(_) => None,
        };
        let ended = self.oom.settle(at, touched, &self.pods);
        if let DecisionKind::Evaluated(pass) = subject {
            for action in actions {
                let Action::Evict(eviction) = action else { continue };
                if let Some(known) = pass.pods.pods().get(eviction.pod as usize) {
                    self.oom.evicting(at, known, &pass.pods);
                }
            }
        }
        ended
    }
}

impl Engine {
    /// Ranks the pods for want of memory as a pass on this snapshot would, the first to go first.
    /// Nothing is decided or remembered by it.
    pub fn rank_ahead(&mut self, snapshot: &Snapshot, ranked: &mut Vec<Candidate>) {
        let joined = snapshot.joined(&self.pods, &mut self.joined);
        let measure = Measure::of(Signal::MemoryAvailable, DiskLayout::default());
        rank(measure, &self.pods, snapshot, joined, ranked);
    }
}
