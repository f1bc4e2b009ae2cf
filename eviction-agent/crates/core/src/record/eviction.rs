//! Evictions in a record: those decided now, those in flight, and how they cover the deficits.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::eviction::{
    Deficit, EvaluationEnd, Eviction, ExpectedRelease, SizedOutcome, SizedPod, SkipReason,
};
use crate::in_flight::{EvictionEnd, InFlightEviction};
use crate::message::{self, Annotations};
use crate::nullable::is_zero;
use crate::pod::PodName;
use crate::policy::Threshold;
use crate::signal::Signal;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// A pod that is evicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionRecord {
    /// The pod.
    pub pod: PodName,
    /// The cause: the label of the kubelet's metric `kubelet_evictions`.
    pub signal: &'static str,
    /// Whether the threshold is hard. Absent for a limit of the pod.
    #[serde(skip)]
    pub hard: Option<bool>,
    /// The grace period in seconds.
    pub grace_period_seconds: i64,
    /// Whether the pod was already terminating for a soft threshold, and its grace period is shortened.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shortens_grace: bool,
    /// Whether the pod's PodDisruptionBudget has refused the eviction and is not asked again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignores_budget: bool,
    /// The message of the event, and of the status and the condition of the pod.
    pub message: String,
    /// The annotations of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
}

impl EvictionRecord {
    /// Returns whether the pod is evicted for a limit of its own, not for a threshold.
    pub(crate) fn is_above_limit(&self) -> bool {
        self.hard.is_none()
    }

    pub(super) fn of(evaluation: &Evaluation, eviction: &Eviction, shortens_grace: bool) -> Option<Self> {
        let known = evaluation.pods.get(eviction.pod)?;
        let (message, annotations) = message::eviction(evaluation, eviction);
        Some(Self {
            pod: PodName::of(&known.pod),
            signal: evaluation.label_of(eviction.cause),
            hard: evaluation.threshold_of(eviction.cause).map(Threshold::is_hard),
            grace_period_seconds: eviction.grace_period_seconds,
            shortens_grace,
            ignores_budget: eviction.ignores_budget,
            message,
            annotations,
        })
    }
}

/// An in-flight eviction that the evaluation took into account.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightRecord {
    /// The pod.
    pub pod: PodName,
    /// The cause, as in [`EvictionRecord::signal`](crate::record::EvictionRecord::signal).
    pub signal: &'static str,
    /// Whether the cause is a hard threshold or a limit of the pod.
    pub hard: bool,
    /// When the eviction was decided.
    pub decided_at: Timestamp,
    /// The progress of the eviction.
    #[serde(flatten)]
    pub state: InFlightPhase,
    /// What the pod was expected to free, for each signal with an amount above zero.
    pub expected: Vec<ReleaseRecord>,
}

/// The progress of an eviction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InFlightPhase {
    /// The pod is terminating.
    Terminating {
        /// How much of the grace period is left.
        remaining_grace: GoDuration,
    },
    /// The pod has terminated. Its release still counts for values that are older than that.
    Terminated {
        /// When the pod terminated.
        since: Timestamp,
    },
    /// The eviction failed: nothing is expected of it, and the pod is considered after all others.
    Failed {
        /// The reason that the executor reported.
        reason: Box<str>,
        /// How long ago the eviction failed.
        age: GoDuration,
    },
    /// The pod did not terminate in time. The eviction counts as failed.
    Expired {
        /// How long ago the eviction expired.
        age: GoDuration,
    },
}

/// What is freed for a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseRecord {
    /// The signal.
    pub signal: Signal,
    /// The amount.
    #[serde(flatten)]
    pub release: ExpectedRelease,
}

impl InFlightRecord {
    pub(super) fn all(evaluation: &Evaluation, now: Timestamp) -> Vec<Self> {
        evaluation.in_flight.iter().map(|in_flight| Self::of(in_flight, now)).collect()
    }

    fn of(in_flight: &InFlightEviction, now: Timestamp) -> Self {
        let expected = Signal::ALL.map(|signal| (signal, in_flight.release(signal)));
        let expected = expected.iter().filter(|(_, release)| release.amount > 0);
        Self {
            pod: (*in_flight.pod).clone(),
            signal: in_flight.signal,
            hard: in_flight.hard,
            decided_at: in_flight.decided_at,
            state: match &in_flight.ended {
                None => {
                    let remaining_grace = in_flight.remaining_grace(now).unwrap_or_default();
                    InFlightPhase::Terminating { remaining_grace }
                }
                Some(EvictionEnd::Terminated) => InFlightPhase::Terminated { since: in_flight.since },
                Some(EvictionEnd::Failed(reason)) => {
                    InFlightPhase::Failed { reason: reason.clone(), age: in_flight.age(now) }
                }
                Some(EvictionEnd::Expired) => InFlightPhase::Expired { age: in_flight.age(now) },
            },
            expected: expected.map(|&(signal, release)| ReleaseRecord { signal, release }).collect(),
        }
    }
}

/// The deficit of a threshold and how it was handled, in whole units of its signal:
/// `lacking = threshold + min_reclaim + predicted − available`, `remaining = lacking − in_flight − chosen`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizingRecord {
    /// The signal of the threshold.
    pub signal: Signal,
    /// Whether the threshold is hard.
    pub hard: bool,
    /// The threshold is met below this amount.
    pub threshold: i64,
    /// How much more must be available before the threshold is resolved.
    pub min_reclaim: i64,
    /// The amount added for a threshold that is only predicted to be met.
    #[serde(skip_serializing_if = "is_zero")]
    pub predicted: i64,
    /// The available amount. If there was a sample after node-level reclaim, it is the amount of that sample.
    pub available: i64,
    /// The deficit.
    pub lacking: i64,
    /// What terminating pods will free in time.
    pub in_flight: i64,
    /// What the pods evicted now will free.
    pub chosen: i64,
    /// The deficit that is not covered. Negative if more is freed than needed.
    pub remaining: i64,
    /// How the evaluation ended for this threshold.
    pub end: EvaluationEnd,
    /// The pods that are evicted, and what each will free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<PlannedVictim>,
    /// Pods that were terminating for a soft threshold, and whose grace period is shortened. `in_flight` counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<PodName>,
    /// Pods that were skipped, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedVictim>,
}

/// A pod that is evicted for a deficit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedVictim {
    /// The pod.
    pub pod: PodName,
    /// What the pod is expected to free.
    #[serde(flatten)]
    pub release: ExpectedRelease,
}

/// A pod that was skipped for one that ranks behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedVictim {
    /// The pod.
    pub pod: PodName,
    /// The reason.
    pub reason: SkipReason,
    /// What the pod would free.
    #[serde(flatten)]
    pub release: ExpectedRelease,
    /// The remaining deficit when the pod was considered.
    pub remaining: i64,
}

impl SizingRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        let deficits = evaluation.deficits.iter().enumerate();
        deficits.filter_map(|(index, deficit)| Self::of(evaluation, index, deficit)).collect()
    }

    fn of(evaluation: &Evaluation, index: usize, deficit: &Deficit) -> Option<Self> {
        let threshold = evaluation.threshold(deficit.threshold_index)?;
        let (mut victims, mut shortened, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for &SizedPod { pod, release, outcome, .. } in
            evaluation.sized_pods.iter().filter(|sized| sized.deficit == index)
        {
            let Some(known) = evaluation.pods.get(pod) else { continue };
            let pod = PodName::of(&known.pod);
            match outcome {
                SizedOutcome::Evicted => victims.push(PlannedVictim { pod, release }),
                SizedOutcome::GraceShortened => shortened.push(pod),
                SizedOutcome::Skipped { why, remaining } => {
                    skipped.push(SkippedVictim { pod, reason: why, release, remaining });
                }
            }
        }
        Some(Self {
            signal: threshold.signal,
            hard: threshold.is_hard(),
            threshold: deficit.threshold,
            min_reclaim: deficit.min_reclaim,
            predicted: deficit.predicted,
            available: deficit.available,
            lacking: deficit.lacking(),
            in_flight: deficit.in_flight,
            chosen: deficit.chosen,
            remaining: deficit.remaining(),
            end: deficit.end,
            victims,
            shortened,
            skipped,
        })
    }
}
