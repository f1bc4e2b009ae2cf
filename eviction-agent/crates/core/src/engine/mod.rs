//! The engine: one input in, one decision out.

#[cfg(test)]
mod budget_tests;
mod buffers;
#[cfg(test)]
mod change_tests;
mod evaluation;
mod evict;
pub mod kernel_kill;
mod multi_victim;
#[cfg(test)]
mod outage_tests;
mod policy_trial;
#[cfg(test)]
mod recall_tests;
mod restore;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod work_tests;

use std::mem::take;
use std::sync::Arc;

use buffers::BufferPool;
use jiff::SignedDuration;
use policy_trial::Proposal;

use super::condition::{Conditions, Raised};
use super::decision::{Action, Admission, Decision, DecisionKind, Evaluation, NotEvaluated};
use super::disk_layout::DiskLayout;
use super::in_flight::{InFlightEviction, InFlightEvictions, MARGIN};
use super::input::{ApiReachability, Event, Input};
use super::oom::OomTracker;
use super::pods::PodSet;
use super::policy::{Policy, VictimsPerPass};
use super::protection::EvictionGuard;
use super::reading::UnknownReason;
use super::signal::SignalSet;
use super::signal_filter::SignalFilter;
use super::snapshot::Snapshot;
use super::threshold::Thresholds;
use super::time::Timestamp;
use crate::condition::admits;
use crate::decision::ProposalState;
use crate::policy::eviction_settings::WhenApiServerDown;
use crate::progress::NotEvicted;
use crate::protection::PdbRefusals;

/// Decides. Its state changes by inputs alone, and the same inputs give the same decisions.
///
/// A look is a pass. Where the pass needs garbage to be collected first, the decision says
/// [`Action::Reclaim`], and the pass goes on when [`Event::Reclaimed`] comes in. A look that
/// comes in before that ends the waiting pass: a reclaim whose end nobody reports blocks
/// nothing.
#[derive(Clone, Debug)]
pub struct Engine {
    policy: Policy,
    pods: Arc<PodSet>,
    layout: Layout,
    thresholds: Thresholds,
    conditions: Conditions,
    waiting: Option<Evaluation>,
    joined: Vec<u32>,
    flights: InFlightEvictions,
    budgets: PdbRefusals,
    /// Room for the order of thresholds.
    urgent: Vec<u8>,
    spare: BufferPool,
    oom: OomTracker,
    sight: SignalFilter,
    blind: SignalSet,
    proposal: Option<Box<Proposal>>,
    guard: EvictionGuard,
    reach: ApiReachability,
}

/// What is known of the disk layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Unknown,
    /// Known; the pass that is told of it first does not see derived thresholds.
    Known {
        layout: DiskLayout,
        is_new: bool,
    },
    /// A split that the gates do not allow; the first pass ends for it.
    Refused {
        layout: DiskLayout,
        is_new: bool,
    },
}

impl Engine {
    /// An engine that knows nothing yet but its policy.
    pub fn new(policy: Policy) -> Self {
        Self {
            thresholds: Thresholds::new(&policy.thresholds),
            guard: EvictionGuard::new(&policy.rules),
            policy,
            pods: Arc::default(),
            layout: Layout::Unknown,
            conditions: Conditions::default(),
            waiting: None,
            joined: Vec::new(),
            flights: InFlightEvictions::default(),
            budgets: PdbRefusals::default(),
            urgent: Vec::new(),
            spare: BufferPool::default(),
            oom: OomTracker::default(),
            sight: SignalFilter::default(),
            blind: SignalSet::EMPTY,
            proposal: None,
            reach: ApiReachability::default(),
        }
    }

    /// The active pods, for [`Snapshot::index`].
    pub fn pods(&self) -> &Arc<PodSet> {
        &self.pods
    }

    /// Whether [`Event::DiskLayout`] is still waited for.
    pub fn wants_layout(&self) -> bool {
        self.enforces_something() && self.layout == Layout::Unknown
    }

    /// The node conditions that hold.
    pub fn conditions(&self) -> &[Raised] {
        self.conditions.hold()
    }

    /// Takes over conditions that were raised before the start; each holds from now on, and from
    /// the next look on as long as it is younger than the transition period.
    pub fn seed_conditions(&mut self, raised: impl IntoIterator<Item = Raised>) {
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
            && let Some(decision) = self.look_with_proposal(at, snapshot)
        {
            return decision;
        }
        let mut actions = self.spare.actions.take();
        let mut proposal = None;
        self.flights.advance(at, self.policy.rules.victims);
        self.budgets.advance(at);
        let subject = self.take(at, event, &mut actions, &mut proposal);
        let ended = self.settle(at, &subject, &actions);
        let mut conditions = self.spare.conditions.take();
        conditions.extend_from_slice(self.conditions.hold());
        let transition_period = self.policy.pressure_transition_period;
        Decision { at, actions, conditions, transition_period, blind: self.blind, proposal, subject, ended }
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
                self.recall(at, *memory);
                DecisionKind::Noted
            }
            Event::Leaving(uids) => {
                self.flights.leaving_are(uids);
                DecisionKind::Noted
            }
            Event::Pods(pods) => {
                self.oom.pods_are(at, &pods);
                self.flights.note_pods(at, &pods);
                self.resume_recalled(at, &pods);
                self.budgets.note_pods(&pods);
                self.pods = pods;
                DecisionKind::Noted
            }
            Event::DiskLayout(answer) => {
                self.learn_layout(answer);
                DecisionKind::Noted
            }
            // Where nothing is remembered, a failed kill is an eviction like any other:
            // `eviction_manager.go: evictPod`.
            Event::Evicted(outcome) => {
                self.guard.outcome(&outcome);
                self.oom.evicted(at, &outcome, &self.pods);
                if outcome.result == Err(NotEvicted::Budget) {
                    self.budgets.refuse(&outcome.uid);
                }
                self.flights.note_outcome(at, outcome);
                DecisionKind::Noted
            }
            Event::EvictionsPausedUntil(until) => {
                self.pause_until(at, until);
                DecisionKind::Noted
            }
            Event::ApiServer(reach) => {
                self.reach = reach;
                DecisionKind::Noted
            }
            Event::Executing { decision, update } => {
                self.flights.update(at, decision, update, self.policy.rules.victims);
                DecisionKind::Noted
            }
            Event::OomKill(kill) => {
                self.sight.note_oom_kill();
                if let Some(uid) = &kill.pod_uid {
                    self.guard.oom_kill(kill.at.unwrap_or(at), uid);
                }
                self.take_kill(at, *kill)
            }
            Event::ContainerEnded(end) => self.take_end(at, *end),
            Event::Propose(policy) => {
                *proposal = Some(self.propose(at, *policy));
                DecisionKind::Noted
            }
            Event::Accept => {
                *proposal = self.accept();
                DecisionKind::Noted
            }
            Event::Sample(snapshot) => self.look(at, snapshot, actions),
            Event::SampleFailed(why) => self.without_look(why),
            Event::Reclaimed(second) => self.resume(at, second, actions),
            Event::Admission(pod) => {
                DecisionKind::Admission(Admission { admit: admits(self.conditions.hold(), &pod), pod })
            }
        }
    }

    fn look(&mut self, at: Timestamp, snapshot: Arc<Snapshot>, actions: &mut Vec<Action>) -> DecisionKind {
        self.forget_waiting();
        match self.begin_pass() {
            Ok(layout) => {
                let pass = self.pass(at, layout, snapshot, actions);
                self.end_first_pass();
                DecisionKind::Pass(pass)
            }
            Err(no_pass) => DecisionKind::NoPass(no_pass),
        }
    }

    fn without_look(&mut self, why: UnknownReason) -> DecisionKind {
        self.forget_waiting();
        let begun = self.begin_pass();
        if begun.is_ok() {
            self.blind = self.sight.look_failed(&self.policy.thresholds, &self.policy.rules);
            self.end_first_pass();
        }
        DecisionKind::NoPass(begun.err().unwrap_or(NotEvaluated::NoLook(why)))
    }

    /// Whether nobody may go for want of the API server, for a hard threshold or another.
    fn is_paused(&self, hard: bool) -> bool {
        let kills = hard && self.policy.hands.when_api_server_down == WhenApiServerDown::Kill;
        self.reach == ApiReachability::Unreachable && !kills
    }

    /// The evictions in flight, in the order of their decisions.
    pub fn in_flight(&self) -> &[InFlightEviction] {
        self.flights.all()
    }

    /// Whether nobody is to be looked for: the kubelet waits for its victims before it looks again, and
    /// nobody else goes before it is known what came of a request.
    pub fn is_waiting(&self, now: Timestamp) -> bool {
        let awaits_answer =
            || self.reach == ApiReachability::Reachable && self.flights.some_are_unconfirmed();
        self.waits_for_victims_until(now).is_some() || (self.is_by_the_kubelet() && awaits_answer())
    }

    /// When that wait is over at the latest, if there is one that time ends.
    pub fn waits_for_victims_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.flights.waits_until(now).filter(|_| self.is_by_the_kubelet())
    }

    fn is_by_the_kubelet(&self) -> bool {
        self.policy.rules.victims == VictimsPerPass::One
    }

    /// By the kubelet's rules for no longer than a victim is waited for: meanwhile nothing else is decided either.
    fn pause_until(&mut self, at: Timestamp, until: Timestamp) {
        let longest = SignedDuration::from_nanos(MARGIN.as_nanos());
        let longest = at.checked_add(longest).unwrap_or(at);
        self.flights.hold_until(if self.is_by_the_kubelet() { until.min(longest) } else { until });
    }

    fn forget_waiting(&mut self) {
        if let Some(pass) = self.waiting.take() {
            self.spare.keep_pass(pass);
        }
    }

    fn enforces_something(&self) -> bool {
        !self.policy.thresholds.is_empty() || self.policy.local_storage_capacity_isolation
    }

    fn learn_layout(&mut self, answer: Result<DiskLayout, UnknownReason>) {
        let (Layout::Unknown, Ok(layout)) = (self.layout, answer) else {
            return;
        };
        let is_new = true;
        self.layout = if layout.split_image_fs && !self.policy.gates.separate_disk_gc {
            Layout::Refused { layout, is_new }
        } else {
            self.thresholds.derive_containerfs(self.policy.list_room, layout);
            Layout::Known { layout, is_new }
        };
    }

    fn begin_pass(&mut self) -> Result<DiskLayout, NotEvaluated> {
        if !self.enforces_something() {
            return Err(NotEvaluated::NothingToEnforce);
        }
        match &mut self.layout {
            Layout::Unknown => Err(NotEvaluated::LayoutUnknown),
            Layout::Refused { is_new, .. } if *is_new => {
                *is_new = false;
                Err(NotEvaluated::LayoutRefused)
            }
            Layout::Refused { layout, .. } | Layout::Known { layout, .. } => Ok(*layout),
        }
    }

    /// From now on derived thresholds count.
    fn end_first_pass(&mut self) {
        if let Layout::Known { is_new, .. } = &mut self.layout
            && take(is_new)
        {
            self.thresholds.show_all();
        }
    }
}
