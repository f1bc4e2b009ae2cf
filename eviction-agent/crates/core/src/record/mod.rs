//! A decision as plain data, with its reasons and without indices.
//!
//! A [`DecisionRecord`] is created once from a [`Decision`], after all urgent work is done. Event lines,
//! metrics, Kubernetes Events, recordings and the text of [`explain`](crate::explain) are created from it.
//! The same decision gives the same bytes.

mod candidate;
mod eviction;
mod margin;
mod signal;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use candidate::RankedPods;
pub use candidate::{CandidateOutcome, CandidateRecord, PodSample};
pub use eviction::{
    EvictionRecord, InFlightPhase, InFlightRecord, PlannedVictim, ReleaseRecord, SizingRecord, SkippedVictim,
};
pub use margin::{MarginRecord, NearestRecord};
use serde::Serialize;
pub use signal::{
    ConditionRecord, DeficitRecord, MemoryRecord, MetRecord, RaiserRecord, SignalRecord, ThresholdRecord,
    UnknownValue,
};

use crate::decision::{Action, Decision, DecisionKind, Evaluation, NotEvaluated, ProposalState};
use crate::disk_layout::{GarbageEstimate, Reclaim};
use crate::eviction::EvaluationEnd;
use crate::message;
use crate::oom::{ContainerTerminated, OomUpdate};
use crate::pod::PodName;
use crate::protection::RefusedPod;
use crate::signal::{NodeCondition, Resource, Signal};
use crate::signal_filter::RejectedReading;
use crate::time::Timestamp;

/// The record of one decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecisionRecord {
    /// The time of the input.
    pub at: Timestamp,
    /// What the decision is about.
    #[serde(flatten)]
    pub subject: RecordSubject,
    /// The node conditions that hold, and why.
    pub conditions: Vec<ConditionRecord>,
    /// Containers that terminated, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terminations: Vec<ContainerTerminated>,
    /// Conditions whose status is unknown: a signal that raises them is unavailable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_conditions: Vec<NodeCondition>,
    /// Signals that are unavailable: unknown for many samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<Signal>,
    /// The state of a proposed policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<ProposalState>,
}

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordSubject {
    /// Nothing: the input only changed the engine's state.
    Nothing,
    /// An evaluation of the node.
    Evaluation(Box<EvaluationRecord>),
    /// An evaluation that did not take place.
    NotEvaluated(NotEvaluated),
    /// The admission of a pod.
    Admission {
        /// The pod.
        pod: PodName,
        /// Whether the pod may start.
        admit: bool,
        /// The message of the pod's status if it may not start.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// An OOM kill, or a record of a container's termination.
    Oom(OomUpdate),
}

/// The record of one evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationRecord {
    /// How the evaluation ended.
    pub end: EvaluationEnd,
    /// The observation of each signal.
    pub signals: Vec<SignalRecord>,
    /// The observations after node-level reclaim.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signals_after_reclaim: Vec<SignalRecord>,
    /// The node's memory by every measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryRecord>,
    /// The readings that were rejected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedReading>,
    /// The thresholds that count.
    pub thresholds: Vec<ThresholdRecord>,
    /// The resource that is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starved: Option<Resource>,
    /// The deficit of the driving threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deficit: Option<DeficitRecord>,
    /// The in-flight evictions that the evaluation took into account.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<InFlightRecord>,
    /// The deficit of each threshold that was handled, the last one being that of `starved`. Empty under the
    /// kubelet's rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizing: Vec<SizingRecord>,
    /// The garbage to collect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reclaim: Vec<Reclaim>,
    /// The garbage estimate, if node-level reclaim is left to the kubelet because it is expected to free enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_to_kubelet: Option<GarbageEstimate>,
    /// Bytes that will be freed without an eviction, if the evaluation waits for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited_bytes: Option<i64>,
    /// The pods with the values that they are ranked by, the first to be evicted first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateRecord>,
    /// The smallest change of a single pod's usage with which another pod would have been evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestRecord>,
    /// Critical pods that would have been evicted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub critical_pods: Vec<PodName>,
    /// Pods that were considered but are protected, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_pods: Vec<RefusedPod<PodName>>,
    /// The evictions, including those whose grace period is shortened.
    pub evictions: Vec<EvictionRecord>,
    /// The number of volumes with a limit whose usage is not known.
    pub unknown_volumes: u32,
}

impl DecisionRecord {
    /// Creates the record of a decision.
    pub fn of(decision: &Decision) -> Self {
        let subject = match &decision.kind {
            DecisionKind::StateUpdated => RecordSubject::Nothing,
            DecisionKind::NotEvaluated(why) => RecordSubject::NotEvaluated(*why),
            DecisionKind::Evaluated(evaluation) => {
                RecordSubject::Evaluation(Box::new(EvaluationRecord::of(decision, evaluation)))
            }
            DecisionKind::Oom(update) => RecordSubject::Oom(update.clone()),
            DecisionKind::Admission { pod, admit } => RecordSubject::Admission {
                pod: PodName::of(&pod.pod),
                admit: *admit,
                message: (!admit).then(|| message::refusal(&decision.conditions)),
            },
        };
        let thresholds = match &subject {
            RecordSubject::Evaluation(evaluation) => &*evaluation.thresholds,
            _ => &[],
        };
        let conditions = decision.conditions.iter();
        Self {
            at: decision.at,
            conditions: conditions.map(|raised| ConditionRecord::of(raised, thresholds, decision)).collect(),
            subject,
            terminations: decision.ended.clone(),
            unknown_conditions: decision.unknown_conditions().collect(),
            unavailable: decision.unavailable.iter().collect(),
            proposal: decision.proposal.clone(),
        }
    }

    /// Returns the evaluation, if the decision is one.
    pub fn evaluation(&self) -> Option<&EvaluationRecord> {
        match &self.subject {
            RecordSubject::Evaluation(evaluation) => Some(evaluation),
            _ => None,
        }
    }
}

impl EvaluationRecord {
    fn of(decision: &Decision, evaluation: &Evaluation) -> Self {
        let slopes = |signal: Signal| evaluation.context.slopes[signal as usize];
        let signals = |seen| SignalRecord::all(seen, decision.at, slopes);
        let ranked_pods = RankedPods::of(decision, evaluation);
        let candidates = ranked_pods.map_or(Vec::new(), |ranked| ranked.records());
        Self {
            end: evaluation.end,
            signals: signals(&evaluation.observations),
            signals_after_reclaim: evaluation
                .observations_after_reclaim
                .as_deref()
                .map_or(Vec::new(), signals),
            memory: MemoryRecord::of(evaluation),
            rejected: evaluation.context.rejected.clone(),
            thresholds: ThresholdRecord::all(evaluation, decision.at),
            starved: evaluation.driving_signal().map(Signal::resource),
            deficit: DeficitRecord::of(evaluation),
            in_flight: InFlightRecord::all(evaluation, decision.at),
            sizing: SizingRecord::all(evaluation),
            reclaim: decision.reclaims().collect(),
            left_to_kubelet: evaluation.left_to_kubelet,
            awaited_bytes: (evaluation.end == EvaluationEnd::AwaitingSpace)
                .then(|| i64::try_from(evaluation.snapshot.node.awaited_bytes).unwrap_or(i64::MAX)),
            nearest: NearestRecord::of(&candidates),
            candidates,
            critical_pods: critical_pods(evaluation),
            refused_pods: refused_pods(evaluation),
            evictions: evictions(decision, evaluation).collect(),
            unknown_volumes: evaluation.unknown_volumes,
        }
    }

    /// Returns the observation of a signal.
    pub fn signal(&self, signal: Signal) -> Option<&SignalRecord> {
        self.signals.iter().find(|record| record.signal == signal)
    }

    /// Returns the threshold that a pod is evicted for.
    pub fn threshold_of(&self, eviction: &EvictionRecord) -> Option<&ThresholdRecord> {
        let is_hard = eviction.hard?;
        let matches = |it: &&ThresholdRecord| it.signal.name() == eviction.signal && it.is_hard() == is_hard;
        self.thresholds.iter().find(matches)
    }
}

/// Returns the evictions among the actions of a decision.
fn evictions(decision: &Decision, evaluation: &Evaluation) -> impl Iterator<Item = EvictionRecord> {
    decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) => EvictionRecord::of(evaluation, eviction, false),
        Action::ShortenGrace(eviction) => EvictionRecord::of(evaluation, eviction, true),
        Action::RecordEvent(_) | Action::Reclaim(_) => None,
    })
}

/// Returns the critical pods, each once, although a pod may be considered for several thresholds.
fn critical_pods(evaluation: &Evaluation) -> Vec<PodName> {
    let mut listed = BTreeSet::new();
    let indices = evaluation.critical_pods.iter().filter(|&&index| listed.insert(index));
    indices.filter_map(|&index| Some(PodName::of(&evaluation.pods.get(index)?.pod))).collect()
}

/// Returns the refused pods, each with a reason only once, although a pod may be considered for several thresholds.
fn refused_pods(evaluation: &Evaluation) -> Vec<RefusedPod<PodName>> {
    let mut listed = BTreeSet::new();
    let refused = evaluation.refused_pods.iter().filter(|it| listed.insert((it.pod, it.why)));
    let named = |it: &RefusedPod| {
        let pod = PodName::of(&evaluation.pods.get(it.pod)?.pod);
        Some(RefusedPod { pod, why: it.why })
    };
    refused.filter_map(named).collect()
}
