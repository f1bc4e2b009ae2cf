//! The decisions of the engine: what to do and why, as indices and numbers.
//!
//! A decision keeps the pods, the snapshot and the thresholds that it is based on, so that texts and reports
//! can be written later, outside the control loop. Without pressure a decision allocates nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::condition::RaisedCondition;
use super::disk_layout::{DiskLayout, GarbageEstimate, Reclaim};
use super::eviction::{Cause, EvaluationEnd, Eviction, LABELS};
use super::in_flight::InFlightEviction;
use super::observation::Observations;
use super::oom::{ContainerTerminated, OomUpdate};
use super::pod::{Pod, PodName};
use super::pods::{KnownPod, PodSet};
use super::protection::RefusedPod;
use super::rank::Candidate;
use super::reading::UnknownReason;
use super::signal::{NodeCondition, Resource, Signal, SignalSet};
use super::signal_filter::SignalContext;
use super::snapshot::Snapshot;
use super::threshold::Met;
use super::time::Timestamp;
use super::units::GoDuration;
use crate::eviction::{Deficit, SizedPod};
use crate::policy::Threshold;

/// The engine's decision on one input.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The time of the input.
    pub at: Timestamp,
    /// The actions to carry out, in this order.
    pub actions: Vec<Action>,
    /// The node conditions that hold from now on.
    pub conditions: Vec<RaisedCondition>,
    /// How long a condition stays raised after its cause has ended.
    pub transition_period: GoDuration,
    /// Signals that have thresholds, but have been unknown for so long that the thresholds are no longer monitored.
    pub unavailable: SignalSet,
    /// The state of a proposed policy.
    pub proposal: Option<ProposalState>,
    /// What the decision is about.
    pub kind: DecisionKind,
    /// Containers that terminated earlier and whose cause is decided now.
    pub ended: Vec<ContainerTerminated>,
}

/// The state of a proposed policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalState {
    /// The proposed policy equals the one in force.
    Unchanged,
    /// The policy is in force from now on. If this decision is an evaluation, the policy already applies to it.
    Applied,
    /// The policy would evict pods that the policy in force would not, or it has not been tried on a sample yet.
    Pending {
        /// When it was proposed.
        since: Timestamp,
        /// When it takes effect in any case. None if it must be applied manually.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The pods that it would have evicted on the same sample.
        would_evict: Vec<PodName>,
        /// The garbage that it would have collected first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        would_reclaim: Vec<Reclaim>,
    },
}

/// What a decision is about.
#[expect(clippy::large_enum_variant, reason = "a box would allocate in an evaluation without pressure")]
#[derive(Clone, Debug)]
pub enum DecisionKind {
    /// The input only changed the engine's state.
    StateUpdated,
    /// An evaluation of the node.
    Evaluated(Evaluation),
    /// An evaluation that ended before the sample was examined.
    NotEvaluated(NotEvaluated),
    /// The decision whether a pod may start on this node.
    Admission {
        /// The pod.
        pod: Arc<KnownPod>,
        /// Whether the pod may start.
        admit: bool,
    },
    /// An OOM kill, or the termination of a container.
    Oom(OomUpdate),
}

/// Why a sample was not evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotEvaluated {
    /// There are no thresholds, and the limits of pods are not enforced.
    NothingToEnforce,
    /// The layout of the file systems is not known.
    LayoutUnknown,
    /// The image file system is split, and the gate `KubeletSeparateDiskGC` is off. Later evaluations raise
    /// conditions, but evict no pod for a threshold.
    LayoutRefused,
    /// The sample failed.
    NoSample(UnknownReason),
    /// A second sample arrived, but no evaluation waits for one.
    NotAwaitingReclaim,
}

/// An action to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Record the Warning event `EvictionThresholdMet` on the node.
    RecordEvent(Resource),
    /// Collect garbage of this kind. [`Event::Reclaimed`](super::input::Event::Reclaimed) then carries the
    /// next sample.
    Reclaim(Reclaim),
    /// Evict a pod.
    Evict(Eviction),
    /// Shorten the grace period of a pod that is terminating for a soft threshold, because a hard one is met.
    ShortenGrace(Eviction),
}

/// One evaluation of the node.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// How the evaluation ended.
    pub end: EvaluationEnd,
    /// The observations that passed the plausibility check.
    pub observations: Observations,
    /// Further context of the observations.
    pub context: SignalContext,
    /// The thresholds that are met, in the order in which the engine found them.
    pub met: Vec<Met>,
    /// The driving threshold of the evaluation: an index into `thresholds`.
    pub driving: Option<u8>,
    /// The garbage estimate, if node-level reclaim is left to the kubelet because it is expected to free
    /// enough. The control loop sets it: the engine itself does not wait.
    pub left_to_kubelet: Option<GarbageEstimate>,
    /// The observations after node-level reclaim.
    pub observations_after_reclaim: Option<Box<Observations>>,
    /// The pods by rank, if they were ranked.
    pub ranked: Vec<Candidate>,
    /// The indices of critical pods that would have been evicted.
    pub critical_pods: Vec<u32>,
    /// Pods that were considered for eviction, but are protected.
    pub refused_pods: Vec<RefusedPod>,
    /// The in-flight evictions when the evaluation began. Empty under the kubelet's rules.
    pub in_flight: Vec<InFlightEviction>,
    /// The deficits of the thresholds that were handled, in this order. Empty under the kubelet's rules.
    pub deficits: Vec<Deficit>,
    /// The pods that were evicted, shortened or skipped for these deficits, in this order.
    pub sized_pods: Vec<SizedPod>,
    /// The number of volumes with a limit whose usage is not known.
    pub unknown_volumes: u32,
    /// The disk layout that the evaluation is based on.
    pub layout: DiskLayout,
    /// All thresholds, including those that do not count yet or any more.
    pub thresholds: Arc<[Threshold]>,
    /// The indices of the thresholds that counted in this evaluation.
    pub visible: Arc<[u8]>,
    /// The active pods.
    pub pods: Arc<PodSet>,
    /// The sample.
    pub snapshot: Arc<Snapshot>,
}

impl Evaluation {
    /// Returns a threshold of the evaluation.
    pub fn threshold(&self, index: u8) -> Option<&Threshold> {
        self.thresholds.get(usize::from(index))
    }

    /// Returns the signal of a threshold of the evaluation.
    pub fn signal_of(&self, index: u8) -> Option<Signal> {
        Some(self.threshold(index)?.signal)
    }

    /// Returns the threshold that caused an eviction, if a threshold did.
    pub fn threshold_of(&self, cause: Cause) -> Option<&Threshold> {
        let Cause::Threshold { threshold: index } = cause else { return None };
        self.threshold(index)
    }

    /// Returns the label of an eviction's cause: the name of a signal, or one of [`LABELS`].
    pub fn label_of(&self, cause: Cause) -> &'static str {
        match cause {
            Cause::Threshold { threshold: index } => self.signal_of(index).map_or("", Signal::name),
            Cause::EmptyDir { .. } => LABELS[0],
            Cause::PodStorage => LABELS[1],
            Cause::ContainerStorage { .. } => LABELS[2],
        }
    }

    /// Returns the pods that were considered for the driving threshold.
    pub(crate) fn sized_for_driving(&self) -> impl Iterator<Item = &SizedPod> {
        let is_driving = |sized: &&SizedPod| {
            self.deficits.get(sized.deficit).map(|deficit| deficit.threshold_index) == self.driving
        };
        self.sized_pods.iter().filter(is_driving)
    }

    /// Copies the evaluation's end to the deficit that was handled last.
    pub(crate) fn end_deficit(&mut self) {
        if let Some(deficit) =
            self.deficits.last_mut().filter(|last| Some(last.threshold_index) == self.driving)
        {
            deficit.end = self.end;
        }
    }

    /// Returns the driving threshold of the evaluation.
    pub fn driving_threshold(&self) -> Option<&Threshold> {
        self.threshold(self.driving?)
    }

    /// Returns the driving signal of the evaluation.
    pub fn driving_signal(&self) -> Option<Signal> {
        self.signal_of(self.driving?)
    }

    /// Returns whether the driving threshold is a hard one.
    pub(crate) fn driving_is_hard(&self) -> bool {
        self.driving_threshold().is_some_and(Threshold::is_hard)
    }
}

impl Decision {
    /// Returns the evaluation, if the decision is one.
    pub fn evaluation(&self) -> Option<&Evaluation> {
        let DecisionKind::Evaluated(evaluation) = &self.kind else { return None };
        Some(evaluation)
    }

    /// Returns the evictions, including those whose grace period is shortened, in the order of the actions.
    pub fn evictions(&self) -> impl Iterator<Item = &Eviction> {
        self.actions.iter().filter_map(|action| match action {
            Action::Evict(eviction) | Action::ShortenGrace(eviction) => Some(eviction),
            Action::RecordEvent(_) | Action::Reclaim(_) => None,
        })
    }

    /// Returns the pods of [`Decision::evictions`].
    pub fn evicted_pods(&self) -> impl Iterator<Item = &Pod> {
        let pods = self.evaluation().map(|evaluation| &evaluation.pods);
        self.evictions().filter_map(move |eviction| Some(&pods?.get(eviction.pod)?.pod))
    }

    /// Returns the conditions whose state is unknown, because a signal that raises them is unavailable.
    pub fn unknown_conditions(&self) -> impl Iterator<Item = NodeCondition> {
        let is_unavailable =
            |condition| self.unavailable.iter().any(|signal| signal.condition() == condition);
        let holds = |condition| self.conditions.iter().any(|raised| raised.condition == condition);
        let is_unknown = move |condition: &NodeCondition| is_unavailable(*condition) && !holds(*condition);
        NodeCondition::ALL.into_iter().filter(is_unknown)
    }

    /// Returns the reclaims, in the order of the actions.
    pub(crate) fn reclaims(&self) -> impl Iterator<Item = Reclaim> {
        self.actions.iter().filter_map(|action| match action {
            Action::Reclaim(reclaim) => Some(*reclaim),
            Action::RecordEvent(_) | Action::Evict(_) | Action::ShortenGrace(_) => None,
        })
    }

    /// Returns whether the decision asks for node-level reclaim and a second sample.
    pub fn awaits_reclaim(&self) -> bool {
        self.reclaims().next().is_some()
    }
}
