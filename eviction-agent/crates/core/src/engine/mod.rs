//! The engine: one input in, one decision out.

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
mod restore;
#[cfg(test)]
mod restore_tests;
mod spare;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work_tests;

use std::mem::take;
use std::sync::Arc;

use jiff::SignedDuration;
use policy_trial::Proposal;
use spare::Spare;

use super::condition::{Conditions, RaisedCondition};
use super::decision::{Action, Admission, Decision, DecisionKind, Evaluation, NotEvaluated};
use super::disk_layout::DiskLayout;
use super::in_flight::{InFlightEviction, InFlightEvictions, TERMINATION_TIMEOUT};
use super::input::{ApiReachability, Event, Input};
use super::oom::OomTracker;
use super::pods::PodSet;
use super::policy::Policy;
use super::protection::EvictionGuard;
use super::reading::UnknownReason;
use super::signal::SignalSet;
use super::signal_filter::SignalFilter;
use super::snapshot::Snapshot;
use super::threshold::Thresholds;
use super::time::Timestamp;
use crate::condition::admits;
use crate::decision::ProposalState;
use crate::progress::NotEvicted;
use crate::protection::PdbRefusals;

/// Decides. Its state changes by inputs alone, and the same inputs give the same decisions.
///
/// A sample is an evaluation. Where the evaluation needs garbage to be collected first, the decision says
/// [`Action::Reclaim`], and the evaluation goes on when [`Event::Reclaimed`] comes in. A sample that
/// comes in before that ends the waiting pass: a reclaim whose end nobody reports blocks
/// nothing.
#[derive(Clone, Debug)]
pub struct Engine {
    policy: Policy,
    pods: Arc<PodSet>,
    layout: Option<KnownLayout>,
    thresholds: Thresholds,
    conditions: Conditions,
    awaiting_reclaim: Option<Evaluation>,
    in_flight: InFlightEvictions,
    pdb_refusals: PdbRefusals,
    spare: Spare,
    oom: OomTracker,
    signal_filter: SignalFilter,
    unavailable: SignalSet,
    proposal: Option<Box<Proposal>>,
    guard: EvictionGuard,
    api: ApiReachability,
}

/// The disk layout of the node, once it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownLayout {
    layout: DiskLayout,
    /// A split that the gates do not allow.
    is_refused: bool,
    /// No evaluation has seen it yet: the first one does not see derived thresholds, and ends if it is refused.
    is_new: bool,
}

impl Engine {
    /// An engine that knows nothing yet but its policy.
    pub fn new(policy: Policy) -> Self {
        Self {
            thresholds: Thresholds::new(&policy.thresholds),
            guard: EvictionGuard::default(),
            policy,
            pods: Arc::default(),
            layout: None,
            conditions: Conditions::default(),
            awaiting_reclaim: None,
            in_flight: InFlightEvictions::default(),
            pdb_refusals: PdbRefusals::default(),
            spare: Spare::default(),
            oom: OomTracker::default(),
            signal_filter: SignalFilter::default(),
            unavailable: SignalSet::EMPTY,
            proposal: None,
            api: ApiReachability::default(),
        }
    }

    /// The active pods, for [`Snapshot::index`].
    pub fn pods(&self) -> &Arc<PodSet> {
        &self.pods
    }

    /// Whether [`Event::DiskLayout`] is still waited for.
    pub fn wants_layout(&self) -> bool {
        self.enforces_something() && self.layout.is_none()
    }

    /// The node conditions that hold.
    pub fn conditions(&self) -> &[RaisedCondition] {
        self.conditions.active()
    }

    /// Takes over conditions that were raised before the start; each holds from now on, and from
    /// the next sample on as long as it is younger than the transition period.
    pub fn seed_conditions(&mut self, raised: impl IntoIterator<Item = RaisedCondition>) {
        raised.into_iter().for_each(|raised| self.conditions.seed(raised));
    }

    /// What the engine decides by.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes note of an input and decides.
    pub fn step(&mut self, Input { at, event }: Input) -> Decision {
        if self.proposal.is_some()
            && let Event::Sample(snapshot) = &event
            && let Some(decision) = self.sync_with_proposal(at, snapshot)
        {
            return decision;
        }
        let mut actions = take(&mut self.spare.actions);
        let mut proposal = None;
        self.in_flight.advance(at, !self.policy.rules.are_kubelets());
        let subject = self.take(at, event, &mut actions, &mut proposal);
        let ended = self.ended_containers(at, &subject, &actions);
        let mut conditions = take(&mut self.spare.conditions);
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

    /// What an event changes, and what is decided about it.
    fn take(
        &mut self,
        at: Timestamp,
        event: Event,
        actions: &mut Vec<Action>,
        proposal: &mut Option<ProposalState>,
    ) -> DecisionKind {
        match event {
            Event::Restore(memory) => {
                self.restore(at, *memory);
                DecisionKind::StateUpdated
            }
            Event::Terminating(uids) => {
                self.in_flight.set_terminating(uids);
                DecisionKind::StateUpdated
            }
            Event::Pods(pods) => {
                self.oom.pods_are(at, &pods);
                self.in_flight.update_pods(at, &pods);
                self.resume_restored(at, &pods);
                self.pdb_refusals.update_pods(&pods);
                self.pods = pods;
                DecisionKind::StateUpdated
            }
            Event::DiskLayout(answer) => {
                self.learn_layout(answer);
                DecisionKind::StateUpdated
            }
            // Where nothing is remembered, a failed kill is an eviction like any other:
            // `eviction_manager.go: evictPod`.
            Event::Evicted(outcome) => {
                self.guard.record_result(&outcome);
                self.oom.evicted(at, &outcome, &self.pods);
                if outcome.result == Err(NotEvicted::PdbDenied) {
                    self.pdb_refusals.refuse(at, &outcome.uid);
                }
                self.in_flight.record_result(at, outcome);
                DecisionKind::StateUpdated
            }
            Event::EvictionsPausedUntil(until) => {
                self.pause_until(at, until);
                DecisionKind::StateUpdated
            }
            Event::ApiServer(reach) => {
                self.api = reach;
                DecisionKind::StateUpdated
            }
            Event::Executing { decision, update } => {
                self.in_flight.update(at, decision, update, !self.policy.rules.are_kubelets());
                DecisionKind::StateUpdated
            }
            Event::OomKill(kill) => {
                self.signal_filter.note_oom_kill();
                if let Some(uid) = &kill.pod_uid {
                    self.guard.record_oom_kill(&self.policy.rules, kill.at.unwrap_or(at), uid);
                }
                self.oom_kill(at, *kill)
            }
            Event::ContainerEnded(end) => self.container_ended(at, *end),
            Event::Propose(policy) => {
                *proposal = Some(self.propose(at, *policy));
                DecisionKind::StateUpdated
            }
            Event::ApplyProposed => {
                *proposal = self.apply_proposed();
                DecisionKind::StateUpdated
            }
            Event::Sample(snapshot) => self.sync(at, snapshot, actions),
            Event::SampleFailed(why) => self.sample_failed(why),
            Event::Reclaimed(second) => self.resume(at, second, actions),
            Event::Admission(pod) => {
                DecisionKind::Admission(Admission { admit: admits(self.conditions.active(), &pod), pod })
            }
        }
    }

    fn sync(&mut self, at: Timestamp, snapshot: Arc<Snapshot>, actions: &mut Vec<Action>) -> DecisionKind {
        self.awaiting_reclaim = None;
        match self.begin_evaluation() {
            Ok(layout) => {
                let evaluation = self.evaluate(at, layout, &snapshot, actions);
                self.end_first_evaluation();
                DecisionKind::Evaluated(evaluation)
            }
            Err(no_pass) => DecisionKind::NotEvaluated(no_pass),
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

    /// The evictions in flight, in the order of their decisions.
    pub fn in_flight(&self) -> &[InFlightEviction] {
        self.in_flight.all()
    }

    /// Whether an evaluation waits for the end of node reclaim.
    pub fn awaits_reclaim(&self) -> bool {
        self.awaiting_reclaim.is_some()
    }

    /// Whether no pod is to be selected: the kubelet waits for its victims before it samples again, and
    /// nobody else goes before it is known what came of a request.
    pub fn is_waiting(&self, now: Timestamp) -> bool {
        let awaits_answer =
            || self.api == ApiReachability::Reachable && self.in_flight.some_are_unconfirmed();
        self.waits_for_victims_until(now).is_some() || (self.is_kubelet_profile() && awaits_answer())
    }

    /// When that wait is over at the latest, if there is one that time ends.
    pub fn waits_for_victims_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.in_flight.waits_until(now).filter(|_| self.is_kubelet_profile())
    }

    fn is_kubelet_profile(&self) -> bool {
        self.policy.rules.are_kubelets()
    }

    /// By the kubelet's rules for no longer than a victim is waited for: meanwhile nothing else is decided either.
    fn pause_until(&mut self, at: Timestamp, until: Timestamp) {
        let longest = SignedDuration::from_nanos(TERMINATION_TIMEOUT.as_nanos());
        let longest = at.checked_add(longest).unwrap_or(at);
        self.in_flight.pause_until(if self.is_kubelet_profile() { until.min(longest) } else { until });
    }

    fn enforces_something(&self) -> bool {
        !self.policy.thresholds.is_empty() || self.policy.local_storage_capacity_isolation
    }

    fn learn_layout(&mut self, answer: Result<DiskLayout, UnknownReason>) {
        let (None, Ok(layout)) = (self.layout, answer) else {
            return;
        };
        let is_refused = layout.split_image_fs && !self.policy.gates.separate_disk_gc;
        if !is_refused {
            self.thresholds.derive_containerfs(self.policy.list_room, layout);
        }
        self.layout = Some(KnownLayout { layout, is_refused, is_new: true });
    }

    fn begin_evaluation(&mut self) -> Result<DiskLayout, NotEvaluated> {
        if !self.enforces_something() {
            return Err(NotEvaluated::NothingToEnforce);
        }
        let Some(known) = &mut self.layout else { return Err(NotEvaluated::LayoutUnknown) };
        if known.is_refused && take(&mut known.is_new) {
            return Err(NotEvaluated::LayoutRefused);
        }
        Ok(known.layout)
    }

    /// From now on derived thresholds count.
    fn end_first_evaluation(&mut self) {
        if self.layout.as_mut().is_some_and(|known| take(&mut known.is_new)) {
            self.thresholds.show_all();
        }
    }
}
