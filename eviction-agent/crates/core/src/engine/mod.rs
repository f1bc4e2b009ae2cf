//! The engine: it takes one input and returns one decision.

mod buffers;
mod evaluation;
mod evict;
pub mod kernel_kill;
pub(crate) mod multi_victim;
#[cfg(test)]
mod outage_tests;
#[cfg(test)]
mod pdb_tests;
mod policy_trial;
#[cfg(test)]
mod policy_trial_tests;
#[cfg(test)]
mod restore_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work_tests;

use std::mem::{replace, take};
use std::sync::Arc;

use buffers::BufferPool;

use super::condition::{RaisedCondition, RaisedConditions};
use super::decision::{Action, Decision, DecisionKind, Evaluation, NotEvaluated};
use super::disk_layout::DiskLayout;
use super::in_flight::{InFlightEviction, InFlightEvictions, TERMINATION_TIMEOUT};
use super::input::{ApiReachability, Event, Input};
use super::oom::{ContainerTerminated, OomTracker, OomUpdate};
use super::pods::PodSet;
use super::policy::Policy;
use super::protection::EvictionGuard;
use super::reading::UnknownReason;
use super::signal::SignalSet;
use super::signal_filter::SignalFilter;
use super::snapshot::Snapshot;
use super::state::{EngineState, MAX_PAUSE, MAX_SAMPLE_GAP, PERSIST_INTERVAL};
use super::threshold::Thresholds;
use super::time::{Timestamp, later, since};
use crate::condition::admits;
use crate::decision::ProposalState;

/// The decision engine. Only inputs change its state, and the same inputs give the same decisions.
///
/// Each sample is one evaluation. If the evaluation needs garbage to be collected first, the decision
/// contains [`Action::Reclaim`], and the evaluation resumes with [`Event::Reclaimed`]. A sample that arrives
/// before that ends the waiting evaluation, so a reclaim whose end is never reported does not block the
/// engine.
#[derive(Clone, Debug)]
pub struct Engine {
    policy: Policy,
    pods: Arc<PodSet>,
    /// The disk layout of the node, once it is known.
    layout: Option<DiskLayout>,
    /// Whether an evaluation has used a layout. The first one ignores derived thresholds, and ends if the gates
    /// refuse the layout.
    has_used_layout: bool,
    thresholds: Thresholds,
    conditions: RaisedConditions,
    awaiting_reclaim: Option<Evaluation>,
    in_flight: InFlightEvictions,
    buffers: BufferPool,
    oom: OomTracker,
    signal_filter: SignalFilter,
    unavailable: SignalSet,
    /// The pending policy, and since when it is pending.
    proposal: Option<(Box<Policy>, Timestamp)>,
    guard: EvictionGuard,
    api: ApiReachability,
}

impl Engine {
    /// Creates an engine that has only its policy.
    pub fn new(policy: Policy) -> Self {
        Self {
            thresholds: Thresholds::new(&policy.thresholds),
            guard: EvictionGuard::default(),
            policy,
            pods: Arc::default(),
            layout: None,
            has_used_layout: false,
            conditions: RaisedConditions::default(),
            awaiting_reclaim: None,
            in_flight: InFlightEvictions::default(),
            buffers: BufferPool::default(),
            oom: OomTracker::default(),
            signal_filter: SignalFilter::default(),
            unavailable: SignalSet::EMPTY,
            proposal: None,
            api: ApiReachability::default(),
        }
    }

    /// Returns the active pods, for [`Snapshot::index`].
    pub fn pods(&self) -> &Arc<PodSet> {
        &self.pods
    }

    /// Returns whether the engine still waits for [`Event::DiskLayout`].
    pub fn wants_layout(&self) -> bool {
        self.has_anything_to_enforce() && self.layout.is_none()
    }

    /// Returns the node conditions that hold.
    pub fn conditions(&self) -> &[RaisedCondition] {
        self.conditions.active()
    }

    /// Adds conditions that were raised before the start. Each holds from now on, and from the next sample on
    /// while it is younger than the transition period.
    pub fn seed_conditions(&mut self, raised: impl IntoIterator<Item = RaisedCondition>) {
        raised.into_iter().for_each(|raised| self.conditions.seed(raised));
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether the API server is available.
    pub fn api_reachability(&self) -> ApiReachability {
        self.api
    }

    /// Returns the tracker of OOM kills and container terminations.
    pub fn oom(&self) -> &OomTracker {
        &self.oom
    }

    /// Marks the engine as a dry run. Its evictions are not carried out, so they do not explain why a
    /// container terminated.
    pub fn set_dry_run(&mut self) {
        self.oom.set_dry_run();
    }

    /// Returns a copy for a trial evaluation. The engine may have decided on the sample already, so the trial
    /// accepts the same values again.
    fn trial(&self) -> Self {
        let mut trial = self.clone();
        trial.thresholds.forget_observations();
        trial
    }

    /// Processes an input and returns the decision.
    pub fn step(&mut self, Input { at, event }: Input) -> Decision {
        if let Event::Sample(snapshot) = &event
            && let Some(decision) = self.sync_with_proposal(at, snapshot)
        {
            return decision;
        }
        let mut actions = take(&mut self.buffers.actions);
        let mut proposal = None;
        self.in_flight.advance(at, !self.policy.rules.are_kubelets());
        let subject = self.process_event(at, event, &mut actions, &mut proposal);
        let ended = self.ended_containers(at, &subject, &actions);
        let mut conditions = take(&mut self.buffers.conditions);
        conditions.extend_from_slice(self.conditions.active());
        let transition_period = self.policy.pressure_transition_period;
        Decision {
            at,
            actions,
            conditions,
            transition_period,
            unavailable: self.unavailable,
            proposal,
            kind: subject,
            ended,
        }
    }

    /// Updates the state by an event and decides on it.
    fn process_event(
        &mut self,
        at: Timestamp,
        event: Event,
        actions: &mut Vec<Action>,
        proposal: &mut Option<ProposalState>,
    ) -> DecisionKind {
        match event {
            Event::Restore(state) => self.restore(at, *state),
            Event::Terminating(uids) => self.in_flight.set_terminating(uids),
            Event::Pods(pods) => {
                self.oom.update_pods(at, &pods);
                self.in_flight.update_pods(at, &pods);
                self.resume_restored(at, &pods);
                self.guard.update_pods(&pods);
                self.pods = pods;
            }
            Event::DiskLayout(result) => self.set_layout(result),
            // Under the kubelet's rules, a failed kill is an eviction like any other:
            // `eviction_manager.go: evictPod`.
            Event::Evicted { uid, result } => {
                self.guard.record_result(at, &uid, &result);
                self.oom.record_result(at, &uid, &result);
                self.in_flight.record_result(at, &uid, result);
            }
            Event::EvictionsPausedUntil(until) => self.pause_until(at, until),
            Event::ApiServer(reachability) => self.api = reachability,
            Event::Executing { decision, update } => {
                self.in_flight.update(at, decision, update, !self.policy.rules.are_kubelets());
            }
            Event::OomKill(kill) => {
                self.signal_filter.record_oom_kill();
                if let Some(uid) = &kill.pod_uid {
                    self.guard.record_oom_kill(&self.policy.rules, kill.at.unwrap_or(at), uid);
                }
                let kill = self.oom.add_kill(at, *kill, &self.pods);
                return DecisionKind::Oom(OomUpdate::Kill(Box::new(kill)));
            }
            Event::ContainerEnded(end) => {
                return DecisionKind::Oom(self.oom.add_end(at, &end, &self.pods));
            }
            Event::Propose(policy) => *proposal = Some(self.propose(at, policy)),
            Event::ApplyProposed => *proposal = self.apply_proposed(),
            Event::Sample(snapshot) => return self.sync(at, snapshot, actions),
            Event::SampleFailed(why) => return self.sample_failed(why),
            Event::Reclaimed(second) => return self.resume(at, second, actions),
            Event::Admission(pod) => {
                let admit = admits(self.conditions.active(), &pod);
                return DecisionKind::Admission { pod, admit };
            }
        }
        DecisionKind::StateUpdated
    }

    /// Returns the terminated containers whose cause can be decided after this input. Evictions of the same
    /// decision do not explain earlier terminations.
    fn ended_containers(
        &mut self,
        at: Timestamp,
        subject: &DecisionKind,
        actions: &[Action],
    ) -> Vec<ContainerTerminated> {
        let changed_pod = match subject {
            DecisionKind::Oom(OomUpdate::Kill(kill)) => kill.pod_uid.as_deref(),
            DecisionKind::Oom(OomUpdate::End { uid, .. }) => Some(&**uid),
            _ => None,
        };
        let ended = self.oom.decide_causes(at, changed_pod);
        if let DecisionKind::Evaluated(evaluation) = subject {
            for action in actions {
                let Action::Evict(eviction) = action else { continue };
                if let Some(known) = evaluation.pods.get(eviction.pod) {
                    self.oom.add_eviction(at, &known.name);
                }
            }
        }
        ended
    }

    fn sync(&mut self, at: Timestamp, snapshot: Arc<Snapshot>, actions: &mut Vec<Action>) -> DecisionKind {
        self.awaiting_reclaim = None;
        match self.begin_evaluation() {
            Ok(layout) => {
                let evaluation = self.evaluate(at, layout, &snapshot, actions);
                self.end_first_evaluation();
                DecisionKind::Evaluated(evaluation)
            }
            Err(not_evaluated) => DecisionKind::NotEvaluated(not_evaluated),
        }
    }

    fn sample_failed(&mut self, why: UnknownReason) -> DecisionKind {
        self.awaiting_reclaim = None;
        let begun = self.begin_evaluation();
        if begun.is_ok() {
            self.unavailable = self.signal_filter.sample_failed(&self.policy.thresholds, &self.policy.rules);
            self.end_first_evaluation();
        }
        DecisionKind::NotEvaluated(begun.err().unwrap_or(NotEvaluated::NoSample(why)))
    }

    /// Returns the in-flight evictions, in the order of their decisions.
    pub fn in_flight(&self) -> &[InFlightEviction] {
        self.in_flight.all()
    }

    /// Returns whether an evaluation waits for the end of node-level reclaim.
    pub fn awaits_reclaim(&self) -> bool {
        self.awaiting_reclaim.is_some()
    }

    /// Returns whether no pod may be selected. Under the kubelet's rules, the engine waits for its victims
    /// before the next sample, and for the result of an unconfirmed request while the API server is
    /// available. Under the other rules it never waits.
    pub fn is_waiting(&self, now: Timestamp) -> bool {
        let awaits_result =
            || self.api == ApiReachability::Reachable && self.in_flight.some_are_unconfirmed();
        self.waits_for_victims_until(now).is_some() || (self.policy.rules.are_kubelets() && awaits_result())
    }

    /// Returns when the wait for victims ends at the latest. None if the engine does not wait for victims.
    pub fn waits_for_victims_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.in_flight.waits_until(now).filter(|_| self.policy.rules.are_kubelets())
    }

    /// Pauses evictions. Under the kubelet's rules for at most the time that a victim is waited for, because
    /// nothing else is decided meanwhile.
    fn pause_until(&mut self, at: Timestamp, until: Timestamp) {
        let is_limited = self.policy.rules.are_kubelets();
        let until = if is_limited { until.min(later(at, TERMINATION_TIMEOUT)) } else { until };
        self.in_flight.pause_until(until);
    }

    fn has_anything_to_enforce(&self) -> bool {
        !self.policy.thresholds.is_empty() || self.policy.local_storage_capacity_isolation
    }

    fn set_layout(&mut self, result: Result<DiskLayout, UnknownReason>) {
        let Ok(layout) = result else { return };
        let former = self.layout.replace(layout);
        if former == Some(layout) {
            return;
        }
        if former.is_some() {
            self.thresholds = self.thresholds_of(&self.policy);
            // Its thresholds are those of the former layout.
            self.awaiting_reclaim = None;
        } else if !layout.is_refused_by(self.policy.gates) {
            self.thresholds.derive_containerfs(self.policy.list_room, layout);
        }
    }

    fn begin_evaluation(&mut self) -> Result<DiskLayout, NotEvaluated> {
        if !self.has_anything_to_enforce() {
            return Err(NotEvaluated::NothingToEnforce);
        }
        let layout = self.layout.ok_or(NotEvaluated::LayoutUnknown)?;
        if layout.is_refused_by(self.policy.gates) && !replace(&mut self.has_used_layout, true) {
            return Err(NotEvaluated::LayoutRefused);
        }
        Ok(layout)
    }

    /// Makes derived thresholds count from now on.
    fn end_first_evaluation(&mut self) {
        if !replace(&mut self.has_used_layout, true) {
            self.thresholds.show_all();
        }
    }
}

/// The state that the next engine needs, and its restoration.
impl Engine {
    /// Returns the state that another engine needs to continue in place of this one.
    pub fn state(&self) -> EngineState {
        EngineState {
            last_sync: self.conditions.last_sync(),
            met: self.thresholds.met_since().collect(),
            conditions: self.conditions.known().to_vec(),
            in_flight: self
                .in_flight
                .all()
                .iter()
                .map(|it| InFlightEviction { restored: false, ..it.clone() })
                .collect(),
            counted: self.guard.counted(),
            oom_killed: self.guard.oom_killed().clone(),
            pdb_refused: self.guard.pdb_refused().clone(),
            paused_until: self.in_flight.paused_until(),
        }
    }

    fn restore(&mut self, at: Timestamp, state: EngineState) {
        let EngineState {
            last_sync,
            met,
            conditions,
            in_flight,
            counted,
            oom_killed,
            pdb_refused,
            paused_until,
        } = state;
        let is_seamless = last_sync.is_some_and(|last_sync| since(at, last_sync) <= MAX_SAMPLE_GAP);
        if is_seamless {
            for met in &met {
                self.thresholds.restore(met);
            }
        }
        let raised = conditions.into_iter().map(|RaisedCondition { condition, at: raised }| {
            // Later samples, which were not persisted, may have raised the condition again.
            let is_latest = last_sync == Some(raised);
            let latest = later(raised, PERSIST_INTERVAL).min(at);
            RaisedCondition { condition, at: if is_latest { latest.max(raised) } else { raised } }
        });
        self.conditions.restore(at, raised, self.policy.pressure_transition_period);
        self.in_flight.restore(in_flight);
        if let Some(until) = paused_until {
            self.pause_until(at, until.min(later(at, MAX_PAUSE)));
        }
        self.guard.restore(&self.policy.rules, counted, oom_killed, pdb_refused);
    }

    /// Resumes the evictions of a former engine whose pods are present.
    fn resume_restored(&mut self, at: Timestamp, pods: &PodSet) {
        let tracker = &mut self.oom;
        self.in_flight.resume(at, pods, |it| tracker.add_eviction(it.decided_at, &it.pod));
    }
}
