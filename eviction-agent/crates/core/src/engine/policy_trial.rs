//! Trial of a changed policy before it takes effect.
//!
//! While a policy is pending, every sample is evaluated twice: by the policy in force, and on trial by the
//! proposed one. As soon as the trial evicts only pods that the policy in force evicts on the same sample,
//! the proposed policy takes effect, and the trial's decision is the result.

use std::sync::Arc;

use crate::decision::{Decision, DecisionKind, NotEvaluated, ProposalState};
use crate::eviction::EvaluationEnd;
use crate::input::{Event, Input};
use crate::pod::PodName;
use crate::pods::{KnownPod, PodSet};
use crate::policy::Policy;
use crate::policy::preferences::ApplyChanges;
use crate::snapshot::Snapshot;
use crate::threshold::Thresholds;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::Engine;

impl Engine {
    /// Proposes a changed policy. It replaces another pending one. If the same policy is pending already, its
    /// waiting time goes on.
    pub(super) fn propose(&mut self, at: Timestamp, policy: Box<Policy>) -> ProposalState {
        let pending = self.proposal.take();
        if *policy == self.policy {
            return ProposalState::Unchanged;
        }
        if self.effective_apply_changes(&policy) == ApplyChanges::Immediately {
            self.adopt(*policy);
            return ProposalState::Applied;
        }
        let since = pending.filter(|(pending, _)| *pending == policy).map_or(at, |(_, since)| since);
        self.proposal = Some((policy, since));
        self.pending(since, None)
    }

    fn pending(&self, since: Timestamp, trial: Option<&Decision>) -> ProposalState {
        ProposalState::Pending {
            since,
            until: self.waits_until(),
            would_evict: trial.into_iter().flat_map(Decision::evicted_pods).map(PodName::of).collect(),
            would_reclaim: trial.into_iter().flat_map(Decision::reclaims).collect(),
        }
    }

    /// Applies the pending policy now, if there is one.
    pub(super) fn apply_proposed(&mut self) -> Option<ProposalState> {
        let (policy, _) = self.proposal.take()?;
        self.adopt(*policy);
        Some(ProposalState::Applied)
    }

    /// Returns the pending policy, if there is one. Samples are evaluated by it as well.
    pub fn proposed(&self) -> Option<&Policy> {
        self.proposal.as_ref().map(|(policy, _)| &**policy)
    }

    /// Returns whether the pending policy is due, that is, takes effect now in any case.
    pub fn is_proposal_due(&self, at: Timestamp) -> bool {
        self.waits_until().is_some_and(|until| at >= until)
    }

    /// Evaluates a sample while a policy is pending. Returns None if none is.
    pub(super) fn sync_with_proposal(&mut self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Option<Decision> {
        let &(_, since) = self.proposal.as_ref()?;
        let sample = || Input { at, event: Event::Sample(Arc::clone(snapshot)) };
        if self.is_proposal_due(at) {
            self.apply_proposed();
            return Some(Decision { proposal: Some(ProposalState::Applied), ..self.step(sample()) });
        }
        let mut trial = self.trial();
        trial.apply_proposed();
        let trial_decision = trial.step(sample());
        let pending = self.proposal.take();
        let decision = self.step(sample());
        if trial.is_conclusive(&trial_decision) && evicts_no_others(&trial_decision, &decision) {
            *self = trial;
            return Some(Decision { proposal: Some(ProposalState::Applied), ..trial_decision });
        }
        self.proposal = pending;
        let state = self.pending(since, Some(&trial_decision));
        Some(Decision { proposal: Some(state), ..decision })
    }

    /// Returns when the pending policy takes effect in any case. None if it must be applied manually.
    fn waits_until(&self) -> Option<Timestamp> {
        let (policy, since) = self.proposal.as_ref()?;
        match self.effective_apply_changes(policy) {
            ApplyChanges::Manually => None,
            ApplyChanges::Immediately => Some(*since),
            ApplyChanges::AfterTransitionPeriod => {
                let period = self.policy.pressure_transition_period.max(GoDuration::ZERO);
                since.checked_add(jiff::SignedDuration::from_nanos(period.as_nanos())).ok()
            }
        }
    }

    /// Returns the more careful setting of the two policies.
    fn effective_apply_changes(&self, proposed: &Policy) -> ApplyChanges {
        use ApplyChanges::{AfterTransitionPeriod, Immediately, Manually};
        match (self.policy.rules.apply_changes(), proposed.rules.apply_changes()) {
            (Manually, _) | (_, Manually) => Manually,
            (AfterTransitionPeriod, _) | (_, AfterTransitionPeriod) => AfterTransitionPeriod,
            (Immediately, Immediately) => Immediately,
        }
    }

    /// Returns the thresholds of a policy with the present layout, in the state of the present ones.
    pub(super) fn thresholds_of(&self, policy: &Policy) -> Thresholds {
        let layout = self.layout.filter(|layout| !layout.is_refused_by(policy.gates));
        self.thresholds.replaced(&policy.thresholds, layout)
    }

    fn adopt(&mut self, policy: Policy) {
        self.has_used_layout |= self.layout.is_some();
        self.thresholds = self.thresholds_of(&policy);
        // The new policy would evaluate the second sample for an evaluation of the former policy.
        self.awaiting_reclaim = None;
        if policy.rules.are_kubelets() {
            self.in_flight.keep_executing();
        }
        self.guard.adopt(&policy.rules);
        self.policy = policy;
        let pods = self.pods.pods().iter().map(|known| KnownPod::new(known.pod.clone(), &self.policy));
        self.pods = Arc::new(PodSet::new(pods.map(Arc::new).collect()));
    }

    /// Returns whether a trial shows what its policy does at present: every signal that it needs is known or
    /// unavailable, and no thresholds were left for the next evaluation.
    fn is_conclusive(&self, decision: &Decision) -> bool {
        let DecisionKind::Evaluated(evaluation) = &decision.kind else { return true };
        let Policy { thresholds, rules, .. } = &self.policy;
        evaluation.end != EvaluationEnd::LocalStorage
            && !self.signal_filter.has_undecided_signal(thresholds, rules)
    }
}

/// Returns whether a trial evicts only pods that a decision on the same sample evicts as well. A trial that
/// could not evaluate the sample proves nothing. A trial that collects garbage first may evict after it.
fn evicts_no_others(trial: &Decision, decision: &Decision) -> bool {
    let DecisionKind::Evaluated(evaluation) = &trial.kind else {
        return matches!(
            trial.kind,
            DecisionKind::NotEvaluated(NotEvaluated::NothingToEnforce | NotEvaluated::LayoutRefused)
        );
    };
    if evaluation.end == EvaluationEnd::AwaitingReclaim {
        return decision.awaits_reclaim();
    }
    trial.evicted_pods().all(|pod| decision.evicted_pods().any(|other| other.uid == pod.uid))
}
