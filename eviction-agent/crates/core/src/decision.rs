//! What the engine answers: what to do, and why, in indices and numbers.
//!
//! A decision keeps the pods, the snapshot and the thresholds that it was made of, so that
//! texts and reports can be written from it later, away from the path of reaction. In a
//! calm pass none of this allocates.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::condition::RaisedCondition;
use super::disk_layout::{DiskLayout, GarbageEstimate, Reclaim};
use super::eviction::{Cause, EvaluationEnd, Eviction, LABELS};
use super::in_flight::InFlightEviction;
use super::observation::Observations;
use super::oom::{ContainerTerminated, OomUpdate};
use super::pods::{KnownPod, PodSet};
use super::protection::RefusedPod;
use super::rank::Candidate;
use super::reading::UnknownReason;
use super::signal::{NodeCondition, Resource, Signal, SignalSet};
use super::signal_filter::SignalContext;
use super::snapshot::Snapshot;
use super::threshold::{Met, ResolvedThreshold};
use super::time::Timestamp;
use super::units::GoDuration;
use crate::eviction::{Deficit, SizedPod};

/// The answer to one input.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The time of the input.
    pub at: Timestamp,
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// The node conditions that hold from now on.
    pub conditions: Vec<RaisedCondition>,
    /// For how long they hold after their cause is gone.
    pub transition_period: GoDuration,
    /// Signals that thresholds ask for, but that have been unknown for so long that nobody
    /// watches them.
    pub unavailable: SignalSet,
    /// What becomes of a policy that was proposed.
    pub proposal: Option<ProposalState>,
    /// What was decided about.
    pub kind: DecisionKind,
    /// Containers that ended some time ago and whose cause is decided now.
    pub ended: Vec<ContainerTerminated>,
}

/// What becomes of a policy that was proposed.
#[derive(Clone, Debug)]
pub enum ProposalState {
    /// It is the one in force already.
    Unchanged,
    /// It is in force from now on, for this very decision if that is an evaluation.
    Applied,
    /// It would evict pods that the policy in force would not, or has not been tried on a
    /// sample.
    Pending(Box<PendingPolicy>),
}

/// A policy that waits to take effect.
#[derive(Clone, Debug)]
pub struct PendingPolicy {
    /// Since when.
    pub since: Timestamp,
    /// When it takes effect in any case; nothing if only by hand.
    pub until: Option<Timestamp>,
    /// What it would have decided on the same sample.
    pub trial: Option<Box<Decision>>,
}

/// What a decision is about.
#[expect(clippy::large_enum_variant, reason = "a calm pass allocates nothing, so it has no box of its own")]
#[derive(Clone, Debug)]
pub enum DecisionKind {
    /// The input changed what the engine knows, and nothing else.
    StateUpdated,
    /// An evaluation of the node.
    Evaluated(Evaluation),
    /// An evaluation that ended before it looked at anything.
    NotEvaluated(NotEvaluated),
    /// Whether a pod may start.
    Admission(Admission),
    /// A kill by the kernel, or the end of a container.
    Oom(OomUpdate),
}

/// Why a sample decided nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotEvaluated {
    /// There are no thresholds, and pods are not held to limits.
    NothingToEnforce,
    /// It is not known how the file systems are laid out.
    LayoutUnknown,
    /// The image file system is split, and the gate `KubeletSeparateDiskGC` is off. Passes
    /// after this one raise conditions, but evict for no threshold.
    LayoutRefused,
    /// The sample failed.
    #[serde(rename = "no_look")]
    NoSample(UnknownReason),
    /// The second sample came without an evaluation that waits for one.
    #[serde(rename = "not_waiting")]
    NotAwaitingReclaim,
}

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Record on the node that an eviction threshold is met: Warning `EvictionThresholdMet`.
    RecordEvent(Resource),
    /// Collect garbage of this kind; [`Event::Reclaimed`](super::input::Event::Reclaimed) has the next sample.
    Reclaim(Reclaim),
    /// Evict a pod.
    Evict(Eviction),
    /// A pod that goes for a soft threshold has less time from now on: a hard one is met.
    ShortenGrace(Eviction),
}

/// One evaluation of the node.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// How it ended.
    pub end: EvaluationEnd,
    /// What was seen, as far as it is believed.
    pub observations: Observations,
    /// What was seen beside.
    pub context: SignalContext,
    /// The thresholds that are met, in the order in which they were found.
    pub met: Vec<Met>,
    /// The one that drives the evaluation: its index in `thresholds`.
    pub driving: Option<u8>,
    /// Node-level reclaim is left to the kubelet, which is expected to remove enough. Noted by who carries
    /// out decisions: the engine does not wait by itself.
    pub left_to_kubelet: Option<GarbageEstimate>,
    /// What was seen after node-level reclaim.
    pub observations_after_reclaim: Option<Box<Observations>>,
    /// The pods by rank, if they were ranked.
    pub ranked: Vec<Candidate>,
    /// Indices of critical pods that would have been evicted.
    pub critical_pods: Vec<u32>,
    /// Pods whose turn had come, but which are protected.
    pub refused_pods: Vec<RefusedPod>,
    /// What was remembered of earlier evictions when the evaluation began.
    pub in_flight: Vec<InFlightEviction>,
    /// What the thresholds lack that were dealt with, in this order, where evictions are sized.
    pub deficits: Vec<Deficit>,
    /// The pods that were dealt with for these, in this order.
    pub sized_pods: Vec<SizedPod>,
    /// Volumes under a limit whose usage is not known.
    pub unknown_volumes: u32,
    /// By which layout the evaluation went.
    pub layout: DiskLayout,
    /// All thresholds, also those that do not count (any more).
    pub thresholds: Arc<[ResolvedThreshold]>,
    /// The indices of those that counted in this evaluation.
    pub visible: Arc<[u8]>,
    /// The active pods.
    pub pods: Arc<PodSet>,
    /// The sample.
    pub snapshot: Arc<Snapshot>,
}

impl Evaluation {
    /// A threshold of the evaluation.
    pub fn threshold(&self, index: u8) -> Option<&ResolvedThreshold> {
        self.thresholds.get(usize::from(index))
    }

    /// The signal of a threshold of the evaluation.
    pub fn signal_of(&self, index: u8) -> Option<Signal> {
        Some(self.threshold(index)?.threshold.signal)
    }

    /// The threshold that a pod goes for, if it is one.
    pub fn threshold_of(&self, cause: Cause) -> Option<&ResolvedThreshold> {
        match cause {
            Cause::Threshold { threshold: index } => self.threshold(index),
            Cause::EmptyDir { .. } | Cause::PodStorage | Cause::ContainerStorage { .. } => None,
        }
    }

    /// What a pod goes for: the name of a signal, or one of [`LABELS`].
    pub fn label_of(&self, cause: Cause) -> &'static str {
        match cause {
            Cause::Threshold { threshold: index } => self.signal_of(index).map_or("", Signal::name),
            Cause::EmptyDir { .. } => LABELS[0],
            Cause::PodStorage => LABELS[1],
            Cause::ContainerStorage { .. } => LABELS[2],
        }
    }

    /// The pods that were dealt with for the threshold that drives the evaluation.
    pub(crate) fn sized_for_driving(&self) -> impl Iterator<Item = &SizedPod> {
        let is_driving = |sized: &&SizedPod| {
            self.deficits.get(sized.deficit).map(|deficit| deficit.threshold_index) == self.driving
        };
        self.sized_pods.iter().filter(is_driving)
    }

    /// Notes how it ended for the threshold that was dealt with last.
    pub(crate) fn end_deficit(&mut self) {
        if let Some(deficit) =
            self.deficits.last_mut().filter(|last| Some(last.threshold_index) == self.driving)
        {
            deficit.end = self.end;
        }
    }

    /// The signal that drives the evaluation.
    pub fn driving_signal(&self) -> Option<Signal> {
        self.signal_of(self.driving?)
    }
}

/// Whether a pod may start here.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Which pod.
    pub pod: Arc<KnownPod>,
    /// The answer.
    pub admit: bool,
}

impl Decision {
    /// The evaluation, if there was one.
    pub fn evaluation(&self) -> Option<&Evaluation> {
        match &self.kind {
            DecisionKind::Evaluated(evaluation) => Some(evaluation),
            DecisionKind::StateUpdated
            | DecisionKind::NotEvaluated(_)
            | DecisionKind::Admission(_)
            | DecisionKind::Oom(_) => None,
        }
    }

    /// Conditions of which nobody can tell whether they hold, since a signal that raises them
    /// is unavailable.
    pub fn unknown_conditions(&self) -> impl Iterator<Item = NodeCondition> {
        let all = [NodeCondition::DiskPressure, NodeCondition::MemoryPressure, NodeCondition::PidPressure];
        let blind = |condition| self.unavailable.iter().any(|signal| signal.condition() == condition);
        let holds = |condition| self.conditions.iter().any(|raised| raised.condition == condition);
        all.into_iter().filter(move |condition| blind(*condition) && !holds(*condition))
    }

    /// Whether node-level reclaim and a second sample are asked for.
    pub fn awaits_reclaim(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Reclaim(_)))
    }
}
