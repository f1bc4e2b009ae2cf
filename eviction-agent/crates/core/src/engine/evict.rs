//! The two ways in which a pass evicts.

use crate::decision::{Action, Evaluation};
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::local_storage::judge;
use crate::pods::KnownPod;
use crate::policy::{SoftGrace, VictimsPerPass};
use crate::protection::{EvictionMotive, EvictionRequest, Refusal, RefusedPod};
use crate::rank::{Measure, rank};
use crate::time::Timestamp;

use super::Engine;
use super::eligibility::{EvictionCandidate, refusal};

/// `immediateEvictionGracePeriodSeconds`.
pub(super) const IMMEDIATE_GRACE_SECONDS: i64 = 1;

/// `corev1.DefaultTerminationGracePeriodSeconds`: what the API server gives a pod without one.
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Engine {
    /// Evicts every pod that is above its own limits: `localStorageEviction`. Whether there
    /// was one.
    pub(super) fn evict_above_limits(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) -> bool {
        if pass.pods.limited().len() == 0 || pass.snapshot.is_empty() || self.is_paused(true) {
            return false;
        }
        let remembers = self.policy.rules.victims != VictimsPerPass::One;
        let before = actions.len();
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        for pod in pass.pods.limited() {
            let place = pod.place();
            let stats = joined.get(place as usize).and_then(|&at| pass.snapshot.pod(at));
            let Some(stats) = stats else {
                continue;
            };
            let verdict = judge(pod, stats, pass.layout.dedicated_image_fs);
            pass.unknown_volumes += verdict.unknown_volumes;
            let (Some(cause), Some(known)) = (verdict.cause, pass.pods.get(place)) else {
                continue;
            };
            if pod.critical() {
                pass.spared.push(place);
                continue;
            }
            let ask = EvictionRequest { at, motive: EvictionMotive::OwnLimits, nobody_else: false };
            let turn = EvictionCandidate { pods: &pass.pods, place, known, stats: Some(stats) };
            if let Some(why) = refusal(&self.guard, ask, None, &turn) {
                pass.refused_pods.push(RefusedPod { place, why });
                continue;
            }
            let budget = self.budgets.refused_for(&known.pod.uid);
            let ignores_budget = budget.is_some() && self.policy.hands.hard_ignores_pdb;
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                pass.refused_pods.push(RefusedPod { place, why });
                continue;
            }
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            let eviction = Eviction { place, grace_period_seconds, cause, ignores_budget };
            if !remembers
                || self.flights.begin(
                    &pass.pods,
                    pass.layout,
                    pass.label_of(eviction.cause),
                    &eviction,
                    true,
                    Some(stats),
                )
            {
                self.guard.evicted(at, known);
                actions.push(Action::Evict(eviction));
            }
        }
        actions.len() > before
    }

    /// Ranks the pods for the threshold of the pass and evicts as many as the rules say: the end
    /// of `synchronize`.
    pub(super) fn evict_for_threshold(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        actions: &mut Vec<Action>,
    ) {
        let handled = pass.handled.zip(pass.handled_signal());
        let Some((line, signal)) = handled.filter(|_| self.has_tables()) else {
            pass.end = EvaluationEnd::CannotRank;
            return;
        };
        if pass.pods.is_empty() {
            pass.end = EvaluationEnd::NoPods;
            return;
        }
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        let measure = Measure::of(signal, pass.layout);
        rank(measure, &pass.pods, &pass.snapshot, joined, &mut pass.ranked);
        match self.policy.rules.victims {
            VictimsPerPass::One => self.evict_the_first(pass, line, actions),
            VictimsPerPass::Sized { most } => self.evict_as_many_as_needed(at, pass, line, most, actions),
        }
    }

    /// The first that is not critical. A failed kill would end the pass as well. Who has a
    /// PodDisruptionBudget that forbids it, which the kubelet does not ask, is passed over by a
    /// soft threshold.
    fn evict_the_first(&self, pass: &mut Evaluation, line: u8, actions: &mut Vec<Action>) {
        if self.is_paused(is_hard(pass, line)) {
            pass.end = EvaluationEnd::ApiUnreachable;
            return;
        }
        pass.end = EvaluationEnd::OnlyCritical;
        for candidate in &pass.ranked {
            let Some(known) = pass.pods.get(candidate.place) else {
                continue;
            };
            if known.critical {
                pass.spared.push(candidate.place);
                continue;
            }
            let budget = self.budgets.refused_for(&known.pod.uid);
            let ignores_budget =
                budget.is_some() && self.policy.hands.hard_ignores_pdb && is_hard(pass, line);
            if let Some(age) = budget.filter(|_| !ignores_budget) {
                let why = Refusal::DisruptionBudget { age };
                pass.refused_pods.push(RefusedPod { place: candidate.place, why });
                pass.end = EvaluationEnd::OnlyProtected;
                continue;
            }
            actions.push(Action::Evict(Eviction {
                place: candidate.place,
                grace_period_seconds: self.grace_period(pass, line, known),
                cause: Cause::Threshold { line },
                ignores_budget,
            }));
            pass.end = EvaluationEnd::Evicted;
            return;
        }
    }

    /// One second for a hard threshold; for a soft one what the rules say.
    pub(super) fn grace_period(&self, pass: &Evaluation, line: u8, known: &KnownPod) -> i64 {
        if is_hard(pass, line) {
            return IMMEDIATE_GRACE_SECONDS;
        }
        let own = known.pod.termination_grace_period_seconds;
        match self.policy.rules.soft_grace {
            SoftGrace::Bounded => {
                let bound = self.policy.max_pod_grace_period_seconds;
                own.map_or(bound, |own| own.min(bound))
            }
            // Less than a second is a second: `pod_workers.go: calculateEffectiveGracePeriod`.
            SoftGrace::Own { cap } => {
                let own = own.unwrap_or(DEFAULT_GRACE_SECONDS);
                own.min(cap.unwrap_or(i64::MAX)).max(IMMEDIATE_GRACE_SECONDS)
            }
        }
    }
}

fn is_hard(pass: &Evaluation, line: u8) -> bool {
    pass.line(line).is_some_and(|line| line.threshold.is_hard())
}
