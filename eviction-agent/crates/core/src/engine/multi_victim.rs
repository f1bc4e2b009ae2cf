//! Evictions that are sized: what in-flight evictions will free, and who else must be evicted.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::decision::{Action, Evaluation};
use crate::engine::Engine;
use crate::engine::evaluation::announce;
use crate::engine::evict::{EvictionCandidate, IMMEDIATE_GRACE_SECONDS, refusal};
use crate::eviction::{
    Cause, Deficit, EvaluationEnd, Eviction, ExpectedRelease, PlannedVictim, SkipReason, SkippedVictim,
    is_next_to_nothing,
};
use crate::in_flight::{Eligibility, InFlightEviction};
use crate::pods::{EvictionOrder, KnownPod};
use crate::policy::VictimsPerPass;
use crate::protection::{EvictionMotive, EvictionRequest, Refusal, RefusedPod};
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::signal_filter::observe;
use crate::snapshot::NodeStats;
use crate::time::Timestamp;
use crate::units::{GoDuration, Nanos};

/// The grace period of a hard threshold.
const IMMEDIATE: GoDuration = GoDuration::from_secs(IMMEDIATE_GRACE_SECONDS);

/// What a single victim of a hard threshold takes: its grace period, and as long again until
/// the kernel has freed what it held.
const SINGLE: GoDuration = GoDuration::from_secs(2 * IMMEDIATE_GRACE_SECONDS);

impl Engine {
    /// Whether a pass over figures of the node may need those of its pods: whether they meet a
    /// threshold that those on their way do not make up for. Figures that were doubted until now
    /// may be believed by that pass, and who is to be hurried may not be among the pods any more:
    /// neither counts here.
    pub fn wants_pods(&self, node: &NodeStats) -> bool {
        let seen = observe(node, self.policy.rules.memory.measure);
        self.policy.rules.victims == VictimsPerPass::One
            || self.thresholds.met_by(&seen).any(|(place, line)| {
                let signal = line.threshold.signal;
                seen.get(signal).is_some_and(|seen| {
                    let hard = line.threshold.is_hard().then_some(IMMEDIATE);
                    let expected = self.flights.expected(signal, seen.time, hard);
                    Deficit::of(place, line, &seen).lacking() > expected
                })
            })
    }

    /// Whether those on their way free what the threshold lacks. A hard threshold hurries those
    /// that go for a soft one, as many as it takes.
    pub(super) fn is_covered(&mut self, pass: &mut Evaluation, line: u8, actions: &mut Vec<Action>) -> bool {
        if self.policy.rules.victims == VictimsPerPass::One {
            return false;
        }
        let Some(deficit) = self.deficit(pass, line, actions) else {
            return false;
        };
        let is_covered = deficit.open() <= 0;
        pass.deficits.push(deficit);
        is_covered
    }

    /// What a threshold lacks, by the last look of the pass.
    fn deficit(&mut self, pass: &Evaluation, place: u8, actions: &mut Vec<Action>) -> Option<Deficit> {
        let line = pass.line(place)?;
        let (signal, hard) = (line.threshold.signal, line.threshold.is_hard());
        let after_reclaim = pass.seen_after_reclaim.as_ref().and_then(|seen| seen.get(signal));
        let seen = after_reclaim.or_else(|| pass.seen.get(signal))?;
        let mut deficit = self.spare.deficit(Deficit::of(place, line, &seen));
        self.note_growth(pass);
        deficit.in_flight = self.flights.expected(signal, seen.time, hard.then_some(IMMEDIATE));
        let cause = Cause::Threshold { line: place };
        while hard && deficit.open() > 0 && !self.is_paused(hard) {
            let place_of = |uid: &str| pass.pods.place(uid);
            let hurried = self.flights.hurry(signal, deficit.open(), IMMEDIATE_GRACE_SECONDS, place_of);
            let Some((place, amount)) = hurried else {
                break;
            };
            deficit.in_flight = deficit.in_flight.saturating_add(amount);
            deficit.hurried.push(place);
            announce(signal.resource(), actions);
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            // It was allowed to go before.
            let hastened = Eviction { place, grace_period_seconds, cause, ignores_budget: false };
            actions.push(Action::ShortenGrace(hastened));
        }
        Some(deficit)
    }

    /// Those on their way may hold more by now than when they were chosen.
    fn note_growth(&mut self, pass: &Evaluation) {
        if self.flights.known().next().is_none() {
            return;
        }
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        self.flights.note_growth(|uid| {
            let place = pass.pods.place(uid)?;
            let stats = pass.snapshot.pod(*joined.get(place as usize)?)?;
            Some(ExpectedRelease::of_all(pass.layout, &pass.pods, place, Some(stats)))
        });
    }

    /// Evicts by rank until what the threshold lacks is made up for, or nobody else may go: at
    /// most `most` at a time, unless the node would be exhausted before a single one is gone.
    ///
    /// Within a class, that is among pods of one standing and priority, those that free next to
    /// nothing wait for those that free more. Pods that did not go lately wait for all others.
    pub(super) fn evict_as_many_as_needed(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        line: u8,
        most: u32,
        actions: &mut Vec<Action>,
    ) {
        // It was made a moment ago, unless there was a second look since.
        let made = pass.deficits.pop_if(|_| pass.seen_after_reclaim.is_none());
        let Some(deficit) = made.or_else(|| self.deficit(pass, line, actions)) else {
            pass.end = EvaluationEnd::NoCandidates;
            return;
        };
        let (open, hard) = (deficit.open(), pass.line(line).is_some_and(|line| line.threshold.is_hard()));
        let runs_out = pass.signal_of(line).is_some_and(|signal| {
            let eta = pass.sight.slopes[signal as usize]
                .and_then(|slope| slope.time_to_lose(Nanos::from_units(deficit.available.into())));
            eta.is_some_and(|eta| eta.expected < SINGLE)
        });
        pass.deficits.push(deficit);
        pass.end = match open {
            ..=0 => EvaluationEnd::ReleaseInProgress,
            _ if self.is_paused(hard) => EvaluationEnd::ApiUnreachable,
            _ if self.flights.is_held() => EvaluationEnd::RateLimited,
            _ => {
                let ranked = std::mem::take(&mut pass.ranked);
                let mut scratch = std::mem::take(&mut self.joined);
                let snapshot = Arc::clone(&pass.snapshot);
                let joined = snapshot.joined(&pass.pods, &mut scratch);
                let room = if hard && runs_out { u32::MAX } else { most };
                let mut walk = Selection { engine: self, at, pass, joined, line, hard, open, room, actions };
                let end = walk.through(&ranked);
                self.joined = scratch;
                pass.ranked = ranked;
                end
            }
        };
    }

    /// Whether a candidate may go, before it is asked what it frees. None for one that never may.
    pub(super) fn stance(&self, pass: &mut Evaluation, place: u32) -> Option<Eligibility> {
        let known = pass.pods.get(place)?;
        if known.critical {
            pass.spared.push(place);
            return None;
        }
        // Pods may have gone while garbage was collected.
        self.pods.place(&known.pod.uid)?;
        Some(self.flights.stance(&known.pod.uid))
    }
}

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
