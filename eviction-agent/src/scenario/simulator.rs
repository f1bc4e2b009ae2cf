//! The simulated node of a scenario: samples, failing calls, and the remaining pods.
//!
//! The engine makes all decisions, and [`eviction_core::message`] has all texts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use eviction_core::condition::RaisedCondition;
use eviction_core::decision::{Action, Decision, ProposalState};
use eviction_core::disk_layout::DiskLayout;
use eviction_core::engine::Engine;
use eviction_core::input::{Event, Input};
use eviction_core::message::{REASON_EVICTED, REASON_THRESHOLD_MET, announcement};
use eviction_core::pod::{Pod, PodCondition};
use eviction_core::pods::{KnownPod, PodSet};
use eviction_core::policy::Policy;
use eviction_core::reading::UnknownReason;
use eviction_core::record::{DecisionRecord, EvictionRecord, RecordSubject};
use eviction_core::signal::Resource;
use eviction_core::snapshot::Snapshot;

use super::format::{
    AdmitOutcome, ConditionOutcome, EventOutcome, EvictedPod, EvictionOutcome, Filesystems, Step, StepOutcome,
};
use crate::scenario::expected::ExpectedStep;
use crate::source::summary::Summary;

/// An engine, and the sources of its inputs.
pub(super) struct Simulator {
    engine: Engine,
    filesystems: Filesystems,
    pods: Vec<(Arc<KnownPod>, TerminationState)>,
    indexes: HashMap<Box<str>, usize>,
    /// The records of all decisions.
    pub(super) reports: Vec<DecisionRecord>,
    /// The number of records of which the outcomes of steps have a short form.
    reported: usize,
}

/// How far the termination of a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TerminationState {
    Active,
    /// Evicted, and the engine does not have the result yet.
    Terminating,
    Terminated,
}

impl Simulator {
    pub(super) fn new(policy: Policy, filesystems: Filesystems, pods: Vec<Pod>) -> Self {
        let indexes = pods.iter().enumerate().map(|(index, pod)| (pod.uid.clone(), index)).collect();
        let active = |pod| (Arc::new(KnownPod::new(pod, &policy)), TerminationState::Active);
        let pods = pods.into_iter().map(active).collect();
        Self { engine: Engine::new(policy), filesystems, indexes, pods, reports: Vec::new(), reported: 0 }
    }

    /// One sync, and admissions after it. `proposed`: the policy of the step's changed configuration.
    pub(super) fn step(&mut self, step: &Step, proposed: Option<Policy>) -> StepOutcome {
        self.report_results(step);
        let active = Arc::new(PodSet::new(self.active(step)));
        let mut outcome = StepOutcome { at: step.at.to_string(), ..StepOutcome::default() };
        self.step_engine(step, Event::Pods(Arc::clone(&active)));
        for kill in &step.oom_kills {
            self.step_engine(step, Event::OomKill(Box::new(kill.clone())));
        }
        for end in &step.terminated_containers {
            self.step_engine(step, Event::ContainerEnded(Box::new(end.clone())));
        }
        if let Some(policy) = proposed {
            self.step_engine(step, Event::Propose(Box::new(policy)));
        }
        if step.apply_config_now {
            self.step_engine(step, Event::ApplyProposed);
        }
        if self.engine.wants_layout() {
            let layout = self.layout(step);
            self.step_engine(step, Event::DiskLayout(layout));
        }
        let first = sample(step, step.summary.as_ref(), &step.summary_error);
        let first = first.map_or_else(Event::SampleFailed, Event::Sample);
        let (mut decision, mut report) = self.step_engine(step, first);
        self.apply_actions(step, &decision, &report, &mut outcome);
        if decision.awaits_reclaim() {
            let summary = step.summary_after_reclaim.as_ref();
            let summary = summary.or(step.summary.as_ref());
            let second = sample(step, summary, &step.summary_after_reclaim_error);
            (decision, report) = self.step_engine(step, Event::Reclaimed(second));
            self.apply_actions(step, &decision, &report, &mut outcome);
        }
        // The kubelet's profile keeps the form of the kubelet's outcomes.
        if self.engine.policy().rules.preferences.is_some() {
            outcome.report = Some(ExpectedStep::of(&report, &self.reports[self.reported..]));
            self.reported = self.reports.len();
        }
        outcome.admit = step.admit.iter().filter_map(|uid| self.admit(step, uid)).collect();
        complete_outcome(&mut outcome, &active, self.engine.conditions());
        outcome
    }

    fn step_engine(&mut self, step: &Step, event: Event) -> (Decision, DecisionRecord) {
        let decision = self.engine.step(Input { at: step.at, event });
        let record = DecisionRecord::of(&decision);
        let DecisionRecord { terminations, proposal, subject, .. } = &record;
        if *subject != RecordSubject::Nothing || !terminations.is_empty() || proposal.is_some() {
            self.reports.push(record.clone());
        }
        if *proposal == Some(ProposalState::Applied) {
            let policy = self.engine.policy();
            for (known, _) in &mut self.pods {
                *known = Arc::new(KnownPod::new(known.pod.clone(), policy));
            }
        }
        (decision, record)
    }

    /// Reports the results of evictions in flight.
    fn report_results(&mut self, step: &Step) {
        if let Some(results) = &step.eviction_results {
            for EvictedPod { uid, error } in results {
                let state =
                    if error.is_empty() { TerminationState::Terminated } else { TerminationState::Active };
                self.report_result(step, uid, state, error);
            }
            return;
        }
        let named: HashSet<&str> = step.active_pods.iter().flatten().map(|uid| &**uid).collect();
        for index in 0..self.pods.len() {
            let (known, state) = &self.pods[index];
            let uid = known.pod.uid.clone();
            if *state == TerminationState::Terminating && !named.contains(&*uid) {
                self.report_result(step, &uid, TerminationState::Terminated, "");
            }
        }
    }

    fn report_result(&mut self, step: &Step, uid: &str, state: TerminationState, error: &str) {
        self.set_state(uid, state);
        let result = if error.is_empty() { Ok(()) } else { Err(error.into()) };
        self.step_engine(step, Event::Evicted { uid: uid.into(), result });
    }

    fn active(&self, step: &Step) -> Vec<Arc<KnownPod>> {
        match &step.active_pods {
            Some(uids) => uids.iter().filter_map(|uid| self.known(uid)).collect(),
            None => self
                .pods
                .iter()
                .filter(|(_, state)| *state != TerminationState::Terminated)
                .map(|(known, _)| Arc::clone(known))
                .collect(),
        }
    }

    fn known(&self, uid: &str) -> Option<Arc<KnownPod>> {
        self.indexes.get(uid).map(|&index| Arc::clone(&self.pods[index].0))
    }

    fn layout(&self, step: &Step) -> Result<DiskLayout, UnknownReason> {
        let Filesystems { dedicated_image_fs, split_image_fs } = self.filesystems;
        if !step.disk_info_error.is_empty() {
            return Err(UnknownReason::Failed);
        }
        let split_image_fs = split_image_fs && step.container_fs_info_error.is_empty();
        Ok(DiskLayout { dedicated_image_fs, split_image_fs })
    }

    fn apply_actions(
        &mut self,
        step: &Step,
        decision: &Decision,
        report: &DecisionRecord,
        outcome: &mut StepOutcome,
    ) {
        let Some(evaluation) = report.evaluation() else { return };
        for action in &decision.actions {
            match action {
                Action::RecordEvent(resource) => outcome.events.push(node_event(*resource)),
                Action::Reclaim(reclaim) => outcome.reclaim.push(reclaim.name().to_owned()),
                Action::Evict(_) | Action::ShortenGrace(_) => {}
            }
        }
        for eviction in &evaluation.evictions {
            let Some(known) = self.known(&eviction.pod.uid) else { continue };
            outcome.evictions.push(eviction_outcome(eviction, &known.pod, &step.kill_error));
            let uid = &known.pod.uid;
            match &*step.kill_error {
                "" => self.set_state(uid, TerminationState::Terminating),
                error => self.report_result(step, uid, TerminationState::Active, error),
            }
        }
    }

    fn set_state(&mut self, uid: &str, state: TerminationState) {
        if let Some(&index) = self.indexes.get(uid) {
            self.pods[index].1 = state;
        }
    }

    fn admit(&mut self, step: &Step, uid: &str) -> Option<AdmitOutcome> {
        let known = self.known(uid)?;
        let (_, record) = self.step_engine(step, Event::Admission(known));
        let RecordSubject::Admission { admit, message, .. } = record.subject else { return None };
        let reason = if admit { "" } else { REASON_EVICTED }.to_owned();
        Some(AdmitOutcome { uid: uid.to_owned(), admit, reason, message: message.unwrap_or_default() })
    }
}

fn sample(step: &Step, summary: Option<&Summary>, error: &str) -> Result<Arc<Snapshot>, UnknownReason> {
    match summary {
        Some(summary) if error.is_empty() => {
            let mut snapshot = summary.snapshot();
            snapshot.node.memory_detail = step.memory.detail();
            Ok(Arc::new(snapshot))
        }
        _ => Err(UnknownReason::Failed),
    }
}

const WARNING: &str = "Warning";

/// Returns the node's event for a resource that is short.
fn node_event(resource: Resource) -> EventOutcome {
    EventOutcome {
        object: "Node/node".to_owned(),
        kind: WARNING.to_owned(),
        reason: REASON_THRESHOLD_MET.to_owned(),
        message: announcement(resource),
    }
}

/// Returns the outcome of an eviction.
fn eviction_outcome(eviction: &EvictionRecord, pod: &Pod, kill_error: &str) -> EvictionOutcome {
    let EvictionRecord { message, annotations, hard, grace_period_seconds, .. } = eviction;
    let annotations = annotations.as_ref().map(|annotations| {
        annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    });
    EvictionOutcome {
        uid: pod.uid.to_string(),
        name: pod.name.to_string(),
        namespace: pod.namespace.to_string(),
        grace_period_seconds: *grace_period_seconds,
        phase: "Failed".to_owned(),
        reason: REASON_EVICTED.to_owned(),
        conditions: conditions(pod, hard.map(|_| message)),
        message: message.clone(),
        annotations,
        kill_error: kill_error.to_owned(),
    }
}

/// Completes the outcome of a step: sorts the evictions by the active pods, and adds the events of the pods and the
/// node conditions.
fn complete_outcome(outcome: &mut StepOutcome, active: &PodSet, conditions: &[RaisedCondition]) {
    let last_index = |uid: &str| active.pods().iter().rposition(|known| *known.pod.uid == *uid);
    outcome.evictions.sort_by_cached_key(|it| last_index(&it.uid).unwrap_or(usize::MAX));
    let events = outcome.evictions.iter().map(|it| EventOutcome {
        object: format!("Pod/{}/{}", it.namespace, it.name),
        kind: WARNING.to_owned(),
        reason: it.reason.clone(),
        message: it.message.clone(),
    });
    outcome.events.extend(events);
    outcome.node_conditions = conditions.iter().map(|raised| raised.condition.to_string()).collect();
    outcome.node_conditions.sort();
}

/// Returns the conditions of an evicted pod: its own, and `DisruptionTarget` if it was evicted for
/// a threshold of the node. That replaces an older one or is appended.
fn conditions(pod: &Pod, disruption: Option<&String>) -> Vec<ConditionOutcome> {
    let outcome = |condition: &PodCondition| ConditionOutcome {
        kind: condition.kind.to_string(),
        status: condition.status.to_string(),
        reason: condition.reason.to_string(),
        message: condition.message.to_string(),
        observed_generation: condition.observed_generation,
    };
    let mut conditions: Vec<_> = pod.conditions.iter().map(outcome).collect();
    if let Some(message) = disruption {
        let target = ConditionOutcome {
            kind: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: "TerminationByKubelet".to_owned(),
            message: message.clone(),
            observed_generation: pod.generation,
        };
        match conditions.iter_mut().find(|other| other.kind == target.kind) {
            Some(older) => *older = target,
            None => conditions.push(target),
        }
    }
    conditions
}
