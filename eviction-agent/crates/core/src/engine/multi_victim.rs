//! Evictions that are sized: what in-flight evictions will free, and who else must be evicted.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::decision::{Action, Evaluation};
use crate::engine::Engine;
use crate::engine::evaluation::record_event;
use crate::engine::evict::{EvictionCandidate, IMMEDIATE_GRACE_SECONDS, refusal};
use crate::eviction::{
    Cause, Deficit, EvaluationEnd, Eviction, ExpectedRelease, PlannedVictim, SkipReason, SkippedVictim,
    is_negligible,
};
use crate::in_flight::{Eligibility, InFlightEviction};
use crate::pods::{EvictionOrder, KnownPod};
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
    /// Whether an evaluation that has values of the node may need those of its pods: whether they meet a
    /// threshold that those terminating do not make up for. Values that were doubted until now
    /// may be believed by that evaluation, and who is to be shortened may not be among the pods any more:
    /// neither counts here.
    pub fn needs_pods(&self, node: &NodeStats) -> bool {
        let seen = observe(node, self.policy.rules.memory().measure);
        self.policy.rules.are_kubelets()
            || self.thresholds.met_by(&seen).any(|(place, resolved)| {
                let signal = resolved.threshold.signal;
                seen.get(signal).is_some_and(|seen| {
                    let hard = resolved.threshold.is_hard().then_some(IMMEDIATE);
                    let expected = self.in_flight.expected(signal, seen.time, hard);
                    Deficit::of(place, resolved, &seen).lacking() > expected
                })
            })
    }

    /// Whether those terminating free what the threshold lacks. A hard threshold shortens the grace period of those
    /// that go for a soft one, as many as it takes.
    pub(super) fn is_covered(
        &mut self,
        evaluation: &mut Evaluation,
        threshold_index: u8,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.policy.rules.are_kubelets() {
            return false;
        }
        let Some(deficit) = self.deficit(evaluation, threshold_index, actions) else {
            return false;
        };
        let is_covered = deficit.remaining() <= 0;
        evaluation.deficits.push(deficit);
        is_covered
    }

    /// What a threshold lacks, by the last sample of the evaluation.
    fn deficit(&mut self, evaluation: &Evaluation, place: u8, actions: &mut Vec<Action>) -> Option<Deficit> {
        let resolved = evaluation.threshold(place)?;
        let (signal, hard) = (resolved.threshold.signal, resolved.threshold.is_hard());
        let after_reclaim = evaluation.observations_after_reclaim.as_ref().and_then(|seen| seen.get(signal));
        let seen = after_reclaim.or_else(|| evaluation.observations.get(signal))?;
        let mut deficit = self.pool.deficit(Deficit::of(place, resolved, &seen));
        self.update_growth(evaluation);
        deficit.in_flight = self.in_flight.expected(signal, seen.time, hard.then_some(IMMEDIATE));
        let cause = Cause::Threshold { threshold: place };
        while hard && deficit.remaining() > 0 && !self.waits_for_api(hard) {
            let place_of = |uid: &str| evaluation.pods.index_of(uid);
            let shortened =
                self.in_flight.shorten_grace(signal, deficit.remaining(), IMMEDIATE_GRACE_SECONDS, place_of);
            let Some((place, amount)) = shortened else {
                break;
            };
            deficit.in_flight = deficit.in_flight.saturating_add(amount);
            deficit.shortened.push(place);
            record_event(signal.resource(), actions);
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            // It was allowed to go before.
            let shortened = Eviction { pod: place, grace_period_seconds, cause, ignores_budget: false };
            actions.push(Action::ShortenGrace(shortened));
        }
        Some(deficit)
    }

    /// Those terminating may hold more by now than when they were chosen.
    fn update_growth(&mut self, evaluation: &Evaluation) {
        if self.in_flight.known().next().is_none() {
            return;
        }
        let joined = evaluation.snapshot.joined(&evaluation.pods, &mut self.joined);
        self.in_flight.update_growth(|uid| {
            let place = evaluation.pods.index_of(uid)?;
            let stats = evaluation.snapshot.pod(*joined.get(place as usize)?)?;
            Some(ExpectedRelease::of_all(evaluation.layout, &evaluation.pods, place, Some(stats)))
        });
    }

    /// Evicts by rank until what the threshold lacks is made up for, or nobody else may go: at
    /// most `most` at a time, unless the node would be exhausted before a single one is gone.
    ///
    /// Within a class, that is among pods of one standing and priority, those that free next to
    /// nothing wait for those that free more. Pods that did not go lately wait for all others.
    pub(super) fn evict_for_deficit(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        threshold_index: u8,
        most: u32,
        actions: &mut Vec<Action>,
    ) {
        // It was made a moment ago, unless there was a second sample since.
        let made = evaluation.deficits.pop_if(|_| evaluation.observations_after_reclaim.is_none());
        let Some(deficit) = made.or_else(|| self.deficit(evaluation, threshold_index, actions)) else {
            evaluation.end = EvaluationEnd::NoCandidates;
            return;
        };
        let (open, hard) = (
            deficit.remaining(),
            evaluation.threshold(threshold_index).is_some_and(|resolved| resolved.threshold.is_hard()),
        );
        let runs_out = evaluation.signal_of(threshold_index).is_some_and(|signal| {
            let eta = evaluation.context.slopes[signal as usize]
                .and_then(|slope| slope.time_to_lose(Nanos::from_units(deficit.available.into())));
            eta.is_some_and(|eta| eta.expected < SINGLE)
        });
        evaluation.deficits.push(deficit);
        evaluation.end = match open {
            ..=0 => EvaluationEnd::ReleaseInProgress,
            _ if self.waits_for_api(hard) => EvaluationEnd::ApiUnreachable,
            _ if self.in_flight.is_paused() => EvaluationEnd::RateLimited,
            _ => {
                let ranked = std::mem::take(&mut evaluation.ranked);
                let mut scratch = std::mem::take(&mut self.joined);
                let snapshot = Arc::clone(&evaluation.snapshot);
                let joined = snapshot.joined(&evaluation.pods, &mut scratch);
                let room = if hard && runs_out { u32::MAX } else { most };
                let mut selection = Selection {
                    engine: self,
                    at,
                    evaluation,
                    joined,
                    threshold_index,
                    hard,
                    remaining: open,
                    may_evict: room,
                    actions,
                };
                let end = selection.run(&ranked);
                self.joined = scratch;
                evaluation.ranked = ranked;
                end
            }
        };
    }

    /// Whether a candidate may go, before it is asked what it frees. None for one that never may.
    pub(super) fn eligibility(&self, evaluation: &mut Evaluation, place: u32) -> Option<Eligibility> {
        let known = evaluation.pods.get(place)?;
        if known.critical {
            evaluation.critical_pods.push(place);
            return None;
        }
        // Pods may have gone while garbage was collected.
        self.pods.index_of(&known.pod.uid)?;
        Some(self.in_flight.eligibility(&known.pod.uid))
    }
}

/// One walk, for the last deficit of the evaluation.
pub(super) struct Selection<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) at: Timestamp,
    pub(super) evaluation: &'a mut Evaluation,
    /// The places of the pods' statistics.
    pub(super) joined: &'a [u32],
    pub(super) threshold_index: u8,
    pub(super) hard: bool,
    /// What is still lacking.
    pub(super) remaining: i64,
    /// How many more may go.
    pub(super) may_evict: u32,
    pub(super) actions: &'a mut Vec<Action>,
}

impl Selection<'_> {
    /// Walks, and tells how it ended.
    pub(super) fn run(&mut self, ranked: &[Candidate]) -> EvaluationEnd {
        let (mut some_go, mut last) = (false, self.engine.pool.skipped.take());
        let before = (self.evaluation.critical_pods.len(), self.evaluation.refused_pods.len());
        let mut opted_out = false;
        for class in ranked.chunk_by(|a, b| class_of(a) == class_of(b)) {
            if !self.continues() {
                break;
            }
            let opts_out = class.first().is_some_and(|first| first.order == EvictionOrder::OptedOut);
            if opts_out && !std::mem::replace(&mut opted_out, true) {
                some_go |= self.evict_failed_before(&mut last);
            }
            some_go |= self.evict_class(class, &mut last);
        }
        some_go |= self.evict_failed_before(&mut last);
        self.engine.pool.skipped.keep(last);
        let critical_pods = self.evaluation.critical_pods.len() - before.0;
        let refused = self.evaluation.refused_pods.len() - before.1;
        match some_go {
            true => EvaluationEnd::Evicted,
            false if critical_pods == ranked.len() => EvaluationEnd::OnlyCritical,
            false if critical_pods + refused == ranked.len() => EvaluationEnd::OnlyProtected,
            false => EvaluationEnd::NoCandidates,
        }
    }

    /// Takes those that did not go lately, as long as it takes any. Whether any goes.
    fn evict_failed_before(&mut self, last: &mut Vec<SkippedVictim>) -> bool {
        let mut some_go = false;
        for mut skipped in last.drain(..) {
            if self.continues() {
                some_go |= self.evict(skipped.pod, skipped.release, PdbPolicy::Honored);
            } else {
                skipped.why = SkipReason::EvictionFailed;
                self.skip(skipped);
            }
        }
        some_go
    }

    /// Takes those that free something, then the others, then for a hard threshold those whose
    /// PodDisruptionBudget has said no. Those that did not go lately are put off to `last`.
    /// Whether any goes.
    fn evict_class(&mut self, class: &[Candidate], last: &mut Vec<SkippedVictim>) -> bool {
        let (mut some_go, mut small) = (false, self.engine.pool.skipped.take());
        let mut forbidden = self.engine.pool.pods.take();
        for &Candidate { pod: place, .. } in class {
            if !self.continues() {
                break;
            }
            let stance = self.engine.eligibility(self.evaluation, place);
            let Some(stance) = stance.filter(|stance| *stance != Eligibility::Taken) else {
                continue;
            };
            if self.refused_by_pdb(place).is_some() {
                forbidden.push(place);
                continue;
            }
            let release = self.release(place);
            let why = SkipReason::FreesTooLittle;
            let skipped = SkippedVictim { pod: place, why, release, remaining: self.remaining };
            if stance == Eligibility::Last {
                last.push(skipped);
            } else if is_negligible(release.amount, self.remaining) {
                small.push(skipped);
            } else {
                some_go |= self.evict(place, release, PdbPolicy::Honored);
            }
        }
        let has_better = some_go;
        for skipped in small.drain(..) {
            if self.continues() {
                some_go |= self.evict(skipped.pod, skipped.release, PdbPolicy::Honored);
            } else if has_better {
                self.skip(skipped);
            }
        }
        self.engine.pool.skipped.keep(small);
        for place in forbidden.drain(..) {
            let ignores = self.hard && self.engine.policy.eviction.hard_ignores_pdb && self.continues();
            if ignores {
                some_go |= self.evict(place, self.release(place), PdbPolicy::Ignored);
            } else if let Some(age) = self.refused_by_pdb(place) {
                let why = Refusal::DisruptionBudget { age };
                self.evaluation.refused_pods.push(RefusedPod { pod: place, why });
            }
        }
        self.engine.pool.pods.keep(forbidden);
        some_go
    }

    /// How long ago the pod's PodDisruptionBudget did not let it go, if that still counts.
    fn refused_by_pdb(&self, place: u32) -> Option<GoDuration> {
        self.engine.pdb_refusals.refused_for(&self.evaluation.pods.get(place)?.pod.uid)
    }

    fn continues(&self) -> bool {
        self.remaining > 0 && self.may_evict > 0
    }

    fn release(&self, place: u32) -> ExpectedRelease {
        let (evaluation, at) = (&*self.evaluation, self.joined.get(place as usize));
        let stats = at.and_then(|&at| evaluation.snapshot.pod(at));
        evaluation.signal_of(self.threshold_index).map_or(ExpectedRelease::UNKNOWN, |signal| {
            ExpectedRelease::of(signal, evaluation.layout, &evaluation.pods, place, stats)
        })
    }

    /// Lets a pod go, unless another one with its uid does. Whether it goes.
    fn evict(&mut self, place: u32, release: ExpectedRelease, budget: PdbPolicy) -> bool {
        let Some(known) = self.evaluation.pods.get(place) else {
            return false;
        };
        if let Some(why) = self.refusal(place, known) {
            self.evaluation.refused_pods.push(RefusedPod { pod: place, why });
            return false;
        }
        let grace_period_seconds = self.engine.grace_period(self.evaluation, self.threshold_index, known);
        let cause = Cause::Threshold { threshold: self.threshold_index };
        let ignores_budget = budget == PdbPolicy::Ignored;
        let eviction = Eviction { pod: place, grace_period_seconds, cause, ignores_budget };
        let stats = self.joined.get(place as usize).and_then(|&at| self.evaluation.snapshot.pod(at));
        if !self.engine.in_flight.begin(
            &self.evaluation.pods,
            self.evaluation.layout,
            self.evaluation.label_of(eviction.cause),
            &eviction,
            self.hard,
            stats,
        ) {
            return false;
        }
        self.engine.guard.record_eviction(self.at, known);
        self.actions.push(Action::Evict(eviction));
        self.remaining = self.remaining.saturating_sub(release.amount);
        self.may_evict -= 1;
        if let Some(deficit) = self.evaluation.deficits.last_mut() {
            deficit.victims.push(PlannedVictim { pod: place, release });
        }
        true
    }

    /// Why a pod may not go. Nobody else goes if none does in this evaluation or is terminating.
    fn refusal(&self, place: u32, known: &KnownPod) -> Option<Refusal> {
        let signal = self.evaluation.signal_of(self.threshold_index)?;
        let nobody_else = !self.engine.in_flight.known().any(InFlightEviction::is_terminating);
        let motive = EvictionMotive::Threshold { signal, hard: self.hard };
        let ask = EvictionRequest { at: self.at, motive, is_last_resort: nobody_else };
        let stats = self.joined.get(place as usize).and_then(|&at| self.evaluation.snapshot.pod(at));
        let candidate = EvictionCandidate { pods: &self.evaluation.pods, pod: place, known, stats };
        refusal(&self.engine.guard, ask, Some(Measure::of(signal, self.evaluation.layout)), &candidate)
    }

    fn skip(&mut self, skipped: SkippedVictim) {
        if let Some(deficit) = self.evaluation.deficits.last_mut() {
            deficit.skipped.push(skipped);
        }
    }
}

/// Whether the pod's PodDisruptionBudget has a say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PdbPolicy {
    Honored,
    Ignored,
}

/// Among whom what a pod frees has a say.
fn class_of(candidate: &Candidate) -> (EvictionOrder, OverRequestClass, i32, bool) {
    (candidate.order, candidate.class, candidate.priority, candidate.without_controller)
}
