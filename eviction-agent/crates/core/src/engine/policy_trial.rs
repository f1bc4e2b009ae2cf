//! A changed policy is held against the present before it takes effect.
//!
//! While one waits, every sample is taken twice: by the policy in force, and on trial by the
//! proposed one. As soon as the trial evicts nobody whom the sample would not evict anyway, the
//! proposed policy takes effect, without an evaluation in between.

use std::sync::Arc;

use crate::decision::{Action, Decision, DecisionKind, NotEvaluated, PendingPolicy, ProposalState};
use crate::eviction::EvaluationEnd;
use crate::input::{Event, Input};
use crate::pods::{KnownPod, PodSet};
use crate::policy::Policy;
use crate::policy::preferences::ApplyChanges;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::Engine;

/// A policy that waits to take effect.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    policy: Policy,
    since: Timestamp,
}

impl Engine {
    /// Takes note of a changed policy; another one that waits is forgotten.
    pub(super) fn propose(&mut self, at: Timestamp, policy: Policy) -> ProposalState {
        self.proposal = None;
        if policy == self.policy {
            return ProposalState::Unchanged;
        }
        if self.caution(&policy) == ApplyChanges::Immediately {
            self.adopt(policy);
            return ProposalState::Applied;
        }
        let proposal = self.proposal.insert(Box::new(Proposal { policy, since: at }));
        let since = proposal.since;
        ProposalState::Pending(Box::new(PendingPolicy { since, until: self.waits_until(), trial: None }))
    }

    /// Lets the policy that waits take effect now, if there is one.
    pub(super) fn apply_proposed(&mut self) -> Option<ProposalState> {
        let proposal = self.proposal.take()?;
        self.adopt(proposal.policy);
        Some(ProposalState::Applied)
    }

    /// The policy that waits, if one does: samples are evaluated by it as well.
    pub fn proposed(&self) -> Option<&Policy> {
        self.proposal.as_deref().map(|proposal| &proposal.policy)
    }

    /// Whether a policy waits that takes effect now in any case.
    pub fn is_proposal_due(&self, at: Timestamp) -> bool {
        self.waits_until().is_some_and(|until| at >= until)
    }

    /// A sample while a policy waits; nothing if none does any more.
    pub(super) fn sync_with_proposal(&mut self, at: Timestamp, snapshot: &Arc<Snapshot>) -> Option<Decision> {
        let proposal = self.proposal.as_deref()?;
        let since = proposal.since;
        let policy = proposal.policy.clone();
        let sample = || Input { at, event: Event::Sample(Arc::clone(snapshot)) };
        if self.is_proposal_due(at) {
            self.apply_proposed();
            return Some(Decision { proposal: Some(ProposalState::Applied), ..self.step(sample()) });
        }
        let mut trial = Self { proposal: None, ..self.clone() };
        trial.adopt(policy);
        // Values that were decided on before are the present all the same.
        trial.thresholds.forget_observations();
        let tried = trial.step(sample());
        let waiting = self.proposal.take();
        let decision = self.step(sample());
        if trial.is_conclusive(&tried) && evicts_no_others(&tried, &decision) {
            *self = trial;
            return Some(Decision { proposal: Some(ProposalState::Applied), ..tried });
        }
        self.proposal = waiting;
        let until = self.waits_until();
        let state =
            ProposalState::Pending(Box::new(PendingPolicy { since, until, trial: Some(Box::new(tried)) }));
        Some(Decision { proposal: Some(state), ..decision })
    }

    /// When the policy that waits takes effect in any case.
    fn waits_until(&self) -> Option<Timestamp> {
        let proposal = self.proposal.as_deref()?;
        match self.caution(&proposal.policy) {
            ApplyChanges::Manually => None,
            ApplyChanges::Immediately => Some(proposal.since),
            ApplyChanges::AfterTransitionPeriod => {
                let period = self.policy.pressure_transition_period.max(GoDuration::ZERO);
                proposal.since.checked_add(jiff::SignedDuration::from_nanos(period.as_nanos())).ok()
            }
        }
    }

    /// The more careful of what both policies say.
    fn caution(&self, proposed: &Policy) -> ApplyChanges {
        use ApplyChanges::{AfterTransitionPeriod, Immediately, Manually};
        match (self.policy.rules.apply_changes(), proposed.rules.apply_changes()) {
            (Manually, _) | (_, Manually) => Manually,
            (AfterTransitionPeriod, _) | (_, AfterTransitionPeriod) => AfterTransitionPeriod,
            (Immediately, Immediately) => Immediately,
        }
    }

    fn adopt(&mut self, policy: Policy) {
        let derived = self.layout.as_mut().and_then(|known| {
            known.is_refused = known.layout.split_image_fs && !policy.gates.separate_disk_gc;
            known.is_new = false;
            (!known.is_refused).then_some((policy.list_room, known.layout))
        });
        self.thresholds = self.thresholds.replaced(&policy.thresholds, derived);
        // A second sample for an evaluation by the former policy would be judged by this one.
        self.awaiting_reclaim = None;
        if policy.rules.are_kubelets() {
            self.in_flight.keep_executing();
        }
        self.guard.adopt(&policy.rules);
        self.policy = policy;
        self.pods = self.under_this_policy(&self.pods);
    }

    /// Whether a decision of a trial says what its policy does at present: every signal that it
    /// asks for is known, or is unavailable, and no thresholds were left for the next evaluation.
    fn is_conclusive(&self, decision: &Decision) -> bool {
        let DecisionKind::Evaluated(evaluation) = &decision.kind else { return true };
        let Policy { thresholds, rules, .. } = &self.policy;
        evaluation.end != EvaluationEnd::LocalStorage && !self.signal_filter.awaits(thresholds, rules)
    }

    /// Pods with what follows from them under the policy in force.
    fn under_this_policy(&self, pods: &PodSet) -> Arc<PodSet> {
        let known = (0..).map_while(|index| pods.get(index));
        let known = known.map(|known| Arc::new(KnownPod::new(known.pod.clone(), &self.policy)));
        Arc::new(PodSet::new(known.collect()))
    }
}

/// Whether a trial evicts nobody whom a decision on the same sample does not evict as well. One
/// that could not be made says nothing; one that collects garbage first may evict after it.
fn evicts_no_others(trial: &Decision, decision: &Decision) -> bool {
    let DecisionKind::Evaluated(tried) = &trial.kind else {
        return matches!(
            trial.kind,
            DecisionKind::NotEvaluated(NotEvaluated::NothingToEnforce | NotEvaluated::LayoutRefused)
        );
    };
    if tried.end == EvaluationEnd::AwaitingReclaim {
        return decision.awaits_reclaim();
    }
    evicted(trial).all(|uid| evicted(decision).any(|other| other == uid))
}

fn evicted(decision: &Decision) -> impl Iterator<Item = &str> {
    decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) | Action::ShortenGrace(eviction) => {
            Some(&*decision.evaluation()?.pods.get(eviction.pod)?.pod.uid)
        }
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    })
}
