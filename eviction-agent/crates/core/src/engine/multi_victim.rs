//! Evictions of several pods: what in-flight evictions will free, and which other pods must be evicted.

#[cfg(test)]
mod tests;

use std::mem::take;

use crate::decision::{Action, Evaluation};
use crate::engine::Engine;
use crate::engine::evaluation::record_event;
use crate::engine::evict::IMMEDIATE_GRACE_SECONDS;
use crate::eviction::{
    Basis, Cause, Deficit, EvaluationEnd, Eviction, ExpectedRelease, SizedOutcome, SizedPod, SkipReason,
    is_negligible,
};
use crate::in_flight::InFlightEviction;
use crate::pods::KnownPod;
use crate::policy::preferences::EvictionOrder;
use crate::protection::{Refusal, RefusedPod};
use crate::rank::{Candidate, Measure, OverRequestClass};
use crate::signal_filter::observe;
use crate::snapshot::NodeStats;
use crate::time::Timestamp;
use crate::units::{GoDuration, Nanos};

/// The grace period of a hard threshold.
const IMMEDIATE: GoDuration = GoDuration::from_secs(IMMEDIATE_GRACE_SECONDS);

/// How long a single victim of a hard threshold takes: its grace period, and as long again until the kernel
/// has freed its memory.
const SINGLE_VICTIM_TIME: GoDuration = GoDuration::from_secs(2 * IMMEDIATE_GRACE_SECONDS);

impl Engine {
    /// Returns whether an evaluation with values of the node at this time may need those of its pods: whether the
    /// node values meet a threshold that terminating pods do not cover. The plausibility check is skipped,
    /// because the evaluation may accept a value that was implausible until now. Pods whose grace period would
    /// have to be shortened do not count as covering, because they may no longer be active.
    pub fn needs_pods(&self, at: Timestamp, node: &NodeStats) -> bool {
        let seen = observe(node, self.policy.rules.memory().measure);
        self.policy.rules.are_kubelets()
            || self.thresholds.met_by(&seen).any(|(index, threshold)| {
                let signal = threshold.signal;
                seen.get(signal).is_some_and(|seen| {
                    let hard = threshold.is_hard().then_some(IMMEDIATE);
                    let expected = self.in_flight.expected(at, signal, seen.time, hard);
                    Deficit::of(index, threshold, &seen).lacking() > expected
                })
            })
    }

    /// Returns whether terminating pods free what the driving threshold lacks. A hard threshold shortens the
    /// grace period of pods that terminate for a soft threshold, as many as needed.
    pub(super) fn is_covered(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        !self.policy.rules.are_kubelets()
            && self.add_deficit(at, evaluation, actions).is_some_and(|deficit| deficit.remaining() <= 0)
    }

    /// Adds the deficit of the driving threshold, by the last sample of the evaluation, to the evaluation's
    /// deficits.
    fn add_deficit(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> Option<Deficit> {
        let threshold_index = evaluation.driving?;
        let threshold = evaluation.threshold(threshold_index)?;
        let (signal, hard) = (threshold.signal, threshold.is_hard());
        let after_reclaim = evaluation.observations_after_reclaim.as_ref().and_then(|seen| seen.get(signal));
        let seen = after_reclaim.or_else(|| evaluation.observations.get(signal))?;
        let mut deficit = Deficit::of(threshold_index, threshold, &seen);
        self.update_growth(evaluation);
        deficit.in_flight = self.in_flight.expected(at, signal, seen.time, hard.then_some(IMMEDIATE));
        while hard && deficit.remaining() > 0 && !self.waits_for_api(hard) {
            let index_of = |uid: &str| evaluation.pods.index_of(uid);
            let shortened =
                self.in_flight.shorten_grace(signal, deficit.remaining(), IMMEDIATE_GRACE_SECONDS, index_of);
            let Some((pod, release)) = shortened else {
                break;
            };
            deficit.in_flight = deficit.in_flight.saturating_add(release.amount);
            let outcome = SizedOutcome::GraceShortened;
            evaluation.sized_pods.push(SizedPod {
                deficit: evaluation.deficits.len(),
                pod,
                release,
                outcome,
            });
            record_event(signal.resource(), actions);
            actions.push(Action::ShortenGrace(Eviction {
                pod,
                grace_period_seconds: IMMEDIATE_GRACE_SECONDS,
                cause: Cause::Threshold { threshold: threshold_index },
                // The eviction was already allowed.
                ignores_budget: false,
            }));
        }
        evaluation.deficits.push(deficit);
        Some(deficit)
    }

    /// Updates the expected release of terminating pods, which may have grown since they were selected.
    fn update_growth(&mut self, evaluation: &Evaluation) {
        self.in_flight.update_growth(|uid| {
            let index = evaluation.pods.index_of(uid)?;
            let stats = evaluation.snapshot.stats_of(index)?;
            let now = ExpectedRelease::of_all(evaluation.layout, evaluation.pods.get(index)?, Some(stats));
            // A request only stands for values that are absent, for example because the pod is nearly gone.
            Some(now.map(|it| if it.basis == Basis::Request { ExpectedRelease::UNKNOWN } else { it }))
        });
    }

    /// Evicts pods by rank until the deficit is covered or no candidate is left: at most `most` pods, unless
    /// the threshold is hard and the node would run out before a single victim has terminated.
    ///
    /// Within a class (see `class_of`), pods that free next to nothing are considered after those that free
    /// more. Pods whose last eviction failed are considered after all others.
    pub(super) fn evict_for_deficit(
        &mut self,
        at: Timestamp,
        evaluation: &mut Evaluation,
        most: u32,
        actions: &mut Vec<Action>,
    ) {
        // `is_covered` has already added the deficit, unless the evaluation got a second sample since.
        let added = evaluation.deficits.last().filter(|_| evaluation.observations_after_reclaim.is_none());
        let added = added.copied().or_else(|| self.add_deficit(at, evaluation, actions));
        let (Some(deficit), Some(signal)) = (added, evaluation.driving_signal()) else {
            evaluation.end = EvaluationEnd::NoCandidates;
            return;
        };
        let hard = evaluation.driving_is_hard();
        let slope = evaluation.context.slopes[signal as usize];
        let runs_out = slope
            .and_then(|slope| slope.time_to_lose(Nanos::from_units(deficit.available.into())))
            .is_some_and(|eta| eta.expected < SINGLE_VICTIM_TIME);
        evaluation.end = match deficit.remaining() {
            ..=0 => EvaluationEnd::ReleaseInProgress,
            _ if self.waits_for_api(hard) => EvaluationEnd::ApiServerUnavailable,
            _ if self.in_flight.paused_until().is_some() => EvaluationEnd::RateLimited,
            _ => {
                let ranked = take(&mut evaluation.ranked);
                let may_evict = if hard && runs_out { u32::MAX } else { most };
                let cause = Cause::Threshold { threshold: deficit.threshold_index };
                let mut selection =
                    Selection { engine: self, at, evaluation, cause, hard, may_evict, actions };
                let end = selection.run(&ranked);
                evaluation.ranked = ranked;
                end
            }
        };
    }

    /// Returns the uid of a candidate that may be evicted, regardless of what it frees. None for a critical pod,
    /// and for one that is no longer active or may not be selected.
    fn selectable<'a>(&self, evaluation: &'a mut Evaluation, index: u32) -> Option<&'a str> {
        let known = evaluation.pods.get(index)?;
        if known.critical {
            evaluation.critical_pods.push(index);
            return None;
        }
        let uid = &*known.pod.uid;
        // Pods may have terminated during garbage collection.
        let is_active = self.pods.index_of(uid).is_some();
        (is_active && self.in_flight.may_select(uid)).then_some(uid)
    }
}

/// The selection of victims for the last deficit of the evaluation.
pub(super) struct Selection<'a> {
    engine: &'a mut Engine,
    at: Timestamp,
    evaluation: &'a mut Evaluation,
    /// The driving threshold.
    cause: Cause,
    hard: bool,
    /// How many more may be evicted.
    may_evict: u32,
    actions: &'a mut Vec<Action>,
}

impl Selection<'_> {
    /// Selects the victims. Returns how the evaluation ends.
    fn run(&mut self, ranked: &[Candidate]) -> EvaluationEnd {
        let mut failed_before = take(&mut self.engine.buffers.failed_before);
        let before = (self.evaluation.critical_pods.len(), self.evaluation.refused_pods.len());
        let most = self.may_evict;
        let mut opted_out = false;
        for class in ranked.chunk_by(|a, b| class_of(a) == class_of(b)) {
            if !self.continues() {
                break;
            }
            let opts_out = class.first().is_some_and(|first| first.order == EvictionOrder::OptedOut);
            if opts_out && !std::mem::replace(&mut opted_out, true) {
                self.evict_failed_before(&mut failed_before);
            }
            self.evict_class(class, &mut failed_before);
        }
        self.evict_failed_before(&mut failed_before);
        self.engine.buffers.failed_before = failed_before;
        let critical_pods = self.evaluation.critical_pods.len() - before.0;
        let refused = self.evaluation.refused_pods.len() - before.1;
        match () {
            () if self.may_evict < most => EvaluationEnd::Evicted,
            () if critical_pods == ranked.len() => EvaluationEnd::OnlyCritical,
            () if critical_pods + refused == ranked.len() => EvaluationEnd::OnlyProtected,
            () => EvaluationEnd::NoCandidates,
        }
    }

    /// Evicts the candidates whose last eviction failed, while a deficit remains. The others stay skipped.
    fn evict_failed_before(&mut self, failed_before: &mut Vec<SizedPod>) {
        for skipped in failed_before.drain(..) {
            if self.continues() {
                self.evict(skipped.pod, skipped.release, false);
            } else {
                self.evaluation.sized_pods.push(skipped);
            }
        }
    }

    /// Evicts the pods that free a considerable amount, then the others, then for a hard threshold those that
    /// their PodDisruptionBudget has refused. Adds the pods whose last eviction failed to `failed_before`.
    fn evict_class(&mut self, class: &[Candidate], failed_before: &mut Vec<SizedPod>) {
        let most = self.may_evict;
        let mut small = take(&mut self.engine.buffers.small);
        let mut pdb_refused = take(&mut self.engine.buffers.pdb_refused);
        for &Candidate { pod, .. } in class {
            if !self.continues() {
                break;
            }
            let Some(uid) = self.engine.selectable(self.evaluation, pod) else { continue };
            let has_failed = self.engine.in_flight.has_failed(uid);
            if let Some(why) = self.engine.guard.pdb_refusal(self.at, uid) {
                pdb_refused.push(RefusedPod { pod, why });
                continue;
            }
            let (release, remaining) = (self.release(pod), self.remaining());
            let skipped = |why| self.sized(pod, release, SizedOutcome::Skipped { why, remaining });
            if has_failed {
                failed_before.push(skipped(SkipReason::EvictionFailed));
            } else if is_negligible(release.amount, remaining) {
                small.push(skipped(SkipReason::FreesTooLittle));
            } else {
                self.evict(pod, release, false);
            }
        }
        let has_better = self.may_evict < most;
        for skipped in small.drain(..) {
            if self.continues() {
                self.evict(skipped.pod, skipped.release, false);
            } else if has_better {
                self.evaluation.sized_pods.push(skipped);
            }
        }
        for refused in pdb_refused.drain(..) {
            if self.hard && self.engine.policy.eviction.hard_ignores_pdb && self.continues() {
                self.evict(refused.pod, self.release(refused.pod), true);
            } else {
                self.evaluation.refused_pods.push(refused);
            }
        }
        (self.engine.buffers.small, self.engine.buffers.pdb_refused) = (small, pdb_refused);
    }

    /// Returns the deficit that remains, in units of the signal.
    fn remaining(&self) -> i64 {
        self.evaluation.deficits.last().map_or(0, Deficit::remaining)
    }

    fn continues(&self) -> bool {
        self.remaining() > 0 && self.may_evict > 0
    }

    fn release(&self, pod: u32) -> ExpectedRelease {
        let evaluation = &*self.evaluation;
        let known = evaluation.driving_signal().zip(evaluation.pods.get(pod));
        known.map_or(ExpectedRelease::UNKNOWN, |(signal, known)| {
            ExpectedRelease::of(signal, evaluation.layout, known, evaluation.snapshot.stats_of(pod))
        })
    }

    /// Evicts a pod, unless it is refused or a pod with its uid is already being evicted.
    fn evict(&mut self, pod: u32, release: ExpectedRelease, ignores_budget: bool) {
        let Some(known) = self.evaluation.pods.get(pod) else { return };
        if let Some(why) = self.refusal(pod, known) {
            self.evaluation.refused_pods.push(RefusedPod { pod, why });
            return;
        }
        let grace_period_seconds = self.engine.grace_period(self.hard, known);
        let eviction = Eviction { pod, grace_period_seconds, cause: self.cause, ignores_budget };
        if !self.engine.begin_eviction(self.evaluation, known, &eviction, self.hard) {
            return;
        }
        self.engine.guard.record_eviction(&self.engine.policy.rules, self.at, known);
        self.actions.push(Action::Evict(eviction));
        self.may_evict -= 1;
        if let Some(deficit) = self.evaluation.deficits.last_mut() {
            deficit.chosen = deficit.chosen.saturating_add(release.amount);
        }
        let evicted = self.sized(pod, release, SizedOutcome::Evicted);
        self.evaluation.sized_pods.push(evicted);
    }

    /// Returns why a pod may not be evicted. The pod is the last resort if no other pod is terminating.
    fn refusal(&self, pod: u32, known: &KnownPod) -> Option<Refusal> {
        let threshold = self.evaluation.driving_threshold()?;
        let is_last_resort = !self.engine.in_flight.known().any(InFlightEviction::is_terminating);
        let (guard, rules) = (&self.engine.guard, &self.engine.policy.rules);
        guard.refusal(rules, self.at, Some(threshold), is_last_resort, known).or_else(|| {
            let stats = self.evaluation.snapshot.stats_of(pod);
            let measure = Measure::of(threshold.signal, self.evaluation.layout);
            (known.rank.enhanced && measure.frees_nothing(known, stats)).then_some(Refusal::FreesNothing)
        })
    }

    fn sized(&self, pod: u32, release: ExpectedRelease, outcome: SizedOutcome) -> SizedPod {
        let deficit = self.evaluation.deficits.len().saturating_sub(1);
        SizedPod { deficit, pod, release, outcome }
    }
}

/// Returns the class of a candidate. Within a class, pods that free more are preferred.
fn class_of(candidate: &Candidate) -> (EvictionOrder, OverRequestClass, i32, bool) {
    (candidate.order, candidate.class, candidate.priority, candidate.without_controller)
}
