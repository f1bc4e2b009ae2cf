//! The walk through the ranked pods that ends when enough of them go.

use crate::decision::{Action, Evaluation};
use crate::deficit::{PlannedVictim, SkipReason, SkippedVictim, is_next_to_nothing};
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::expected_release::ExpectedRelease;
use crate::in_flight::{Eligibility, InFlightEviction};
use crate::pods::EvictionOrder;
use crate::pods::KnownPod;
use crate::protection::{EvictionMotive, EvictionRequest, Refusal, RefusedPod};
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::Engine;
use super::eligibility::{EvictionCandidate, refusal};

/// One walk, for the last deficit of the pass.
pub(super) struct Selection<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) at: Timestamp,
    pub(super) pass: &'a mut Evaluation,
    /// The places of the pods' statistics.
    pub(super) joined: &'a [u32],
    pub(super) line: u8,
    pub(super) hard: bool,
    /// What is still lacking.
    pub(super) open: i64,
    /// How many more may go.
    pub(super) room: u32,
    pub(super) actions: &'a mut Vec<Action>,
}

impl Selection<'_> {
    /// Walks, and tells how it ended.
    pub(super) fn through(&mut self, ranked: &[Candidate]) -> EvaluationEnd {
        let (mut some_go, mut last) = (false, self.engine.spare.passed_over.take());
        let before = (self.pass.spared.len(), self.pass.refused_pods.len());
        let mut opted_out = false;
        for class in ranked.chunk_by(|a, b| class_of(a) == class_of(b)) {
            if !self.goes_on() {
                break;
            }
            let opts_out = class.first().is_some_and(|first| first.turn == EvictionOrder::OptedOut);
            if opts_out && !std::mem::replace(&mut opted_out, true) {
                some_go |= self.through_last(&mut last);
            }
            some_go |= self.through_class(class, &mut last);
        }
        some_go |= self.through_last(&mut last);
        self.engine.spare.passed_over.keep(last);
        let spared = self.pass.spared.len() - before.0;
        let refused = self.pass.refused_pods.len() - before.1;
        match some_go {
            true => EvaluationEnd::Evicted,
            false if spared == ranked.len() => EvaluationEnd::OnlyCritical,
            false if spared + refused == ranked.len() => EvaluationEnd::OnlyProtected,
            false => EvaluationEnd::NoCandidates,
        }
    }

    /// Takes those that did not go lately, as long as it takes any. Whether any goes.
    fn through_last(&mut self, last: &mut Vec<SkippedVictim>) -> bool {
        let mut some_go = false;
        for mut passed_over in last.drain(..) {
            if self.goes_on() {
                some_go |= self.take(passed_over.place, passed_over.release, PdbPolicy::IsAsked);
            } else {
                passed_over.why = SkipReason::DidNotGo;
                self.pass_over(passed_over);
            }
        }
        some_go
    }

    /// Takes those that free something, then the others, then for a hard threshold those whose
    /// PodDisruptionBudget has said no. Those that did not go lately are put off to `last`.
    /// Whether any goes.
    fn through_class(&mut self, class: &[Candidate], last: &mut Vec<SkippedVictim>) -> bool {
        let (mut some_go, mut small) = (false, self.engine.spare.passed_over.take());
        let mut forbidden = self.engine.spare.spared.take();
        for &Candidate { place, .. } in class {
            if !self.goes_on() {
                break;
            }
            let stance = self.engine.stance(self.pass, place);
            let Some(stance) = stance.filter(|stance| *stance != Eligibility::Taken) else {
                continue;
            };
            if self.budget_said_no(place).is_some() {
                forbidden.push(place);
                continue;
            }
            let release = self.release(place);
            let why = SkipReason::FreesNextToNothing;
            let passed_over = SkippedVictim { place, why, release, open: self.open };
            if stance == Eligibility::Last {
                last.push(passed_over);
            } else if is_next_to_nothing(release.amount, self.open) {
                small.push(passed_over);
            } else {
                some_go |= self.take(place, release, PdbPolicy::IsAsked);
            }
        }
        let has_better = some_go;
        for passed_over in small.drain(..) {
            if self.goes_on() {
                some_go |= self.take(passed_over.place, passed_over.release, PdbPolicy::IsAsked);
            } else if has_better {
                self.pass_over(passed_over);
            }
        }
        self.engine.spare.passed_over.keep(small);
        for place in forbidden.drain(..) {
            let ignores = self.hard && self.engine.policy.hands.hard_ignores_pdb && self.goes_on();
            if ignores {
                some_go |= self.take(place, self.release(place), PdbPolicy::IsIgnored);
            } else if let Some(age) = self.budget_said_no(place) {
                let why = Refusal::DisruptionBudget { age };
                self.pass.refused_pods.push(RefusedPod { place, why });
            }
        }
        self.engine.spare.spared.keep(forbidden);
        some_go
    }

    /// How long ago the pod's PodDisruptionBudget did not let it go, if that still counts.
    fn budget_said_no(&self, place: u32) -> Option<GoDuration> {
        self.engine.budgets.refused_for(&self.pass.pods.get(place)?.pod.uid)
    }

    fn goes_on(&self) -> bool {
        self.open > 0 && self.room > 0
    }

    fn release(&self, place: u32) -> ExpectedRelease {
        let (pass, at) = (&*self.pass, self.joined.get(place as usize));
        let stats = at.and_then(|&at| pass.snapshot.pod(at));
        pass.signal_of(self.line).map_or(ExpectedRelease::UNKNOWN, |signal| {
            ExpectedRelease::of(signal, pass.layout, &pass.pods, place, stats)
        })
    }

    /// Lets a pod go, unless another one with its uid does. Whether it goes.
    fn take(&mut self, place: u32, release: ExpectedRelease, budget: PdbPolicy) -> bool {
        let Some(known) = self.pass.pods.get(place) else {
            return false;
        };
        if let Some(why) = self.refusal(place, known) {
            self.pass.refused_pods.push(RefusedPod { place, why });
            return false;
        }
        let grace_period_seconds = self.engine.grace_period(self.pass, self.line, known);
        let cause = Cause::Threshold { line: self.line };
        let ignores_budget = budget == PdbPolicy::IsIgnored;
        let eviction = Eviction { place, grace_period_seconds, cause, ignores_budget };
        let stats = self.joined.get(place as usize).and_then(|&at| self.pass.snapshot.pod(at));
        if !self.engine.flights.begin(
            &self.pass.pods,
            self.pass.layout,
            self.pass.label_of(eviction.cause),
            &eviction,
            self.hard,
            stats,
        ) {
            return false;
        }
        self.engine.guard.evicted(self.at, known);
        self.actions.push(Action::Evict(eviction));
        self.open = self.open.saturating_sub(release.amount);
        self.room -= 1;
        if let Some(deficit) = self.pass.deficits.last_mut() {
            deficit.victims.push(PlannedVictim { place, release });
        }
        true
    }

    /// Why a pod may not go. Nobody else goes if none does in this pass or is on its way.
    fn refusal(&self, place: u32, known: &KnownPod) -> Option<Refusal> {
        let signal = self.pass.signal_of(self.line)?;
        let nobody_else = !self.engine.flights.known().any(InFlightEviction::is_under_way);
        let motive = EvictionMotive::Threshold { signal, hard: self.hard };
        let ask = EvictionRequest { at: self.at, motive, nobody_else };
        let stats = self.joined.get(place as usize).and_then(|&at| self.pass.snapshot.pod(at));
        let turn = EvictionCandidate { pods: &self.pass.pods, place, known, stats };
        refusal(&self.engine.guard, ask, Some(Measure::of(signal, self.pass.layout)), &turn)
    }

    fn pass_over(&mut self, passed_over: SkippedVictim) {
        if let Some(deficit) = self.pass.deficits.last_mut() {
            deficit.passed_over.push(passed_over);
        }
    }
}

/// Whether the pod's PodDisruptionBudget has a say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PdbPolicy {
    IsAsked,
    IsIgnored,
}

/// Among whom what a pod frees has a say.
fn class_of(candidate: &Candidate) -> (EvictionOrder, OverRequestClass, i32, bool) {
    (candidate.turn, candidate.standing, candidate.priority, candidate.bare)
}
