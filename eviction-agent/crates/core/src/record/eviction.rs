//! Evictions in a record: those decided now, those in flight, and how they were sized.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::decision::Evaluation;
use crate::eviction::{
    Deficit, EvaluationEnd, Eviction, ExpectedRelease, SizedOutcome, SizedPod, SkipReason,
};
use crate::in_flight::{Ended, Failure, InFlightEviction};
use crate::message;
use crate::message::EvictionText;
use crate::pod::PodName;
use crate::signal::Signal;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionRecord {
    /// Who.
    pub pod: PodName,
    /// For what: the label of the kubelet's metric `kubelet_evictions`.
    pub signal: &'static str,
    /// Whether the threshold is a hard one; absent for a limit of the pod's own.
    #[serde(skip)]
    pub hard: Option<bool>,
    /// How long it may take to end.
    pub grace_period_seconds: i64,
    /// It went for a soft threshold already, and has less time from now on.
    #[serde(skip_serializing_if = "is_not")]
    #[serde(rename = "takes_over")]
    pub shortens_grace: bool,
    /// Its PodDisruptionBudget said no, and is not asked again.
    #[serde(skip_serializing_if = "is_not")]
    pub ignores_budget: bool,
    /// For the event, the status and the condition of the pod.
    pub message: String,
    /// For the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<&'static str, String>>,
}

impl EvictionRecord {
    pub(super) fn of(evaluation: &Evaluation, eviction: &Eviction, takes_over: bool) -> Option<Self> {
        let known = evaluation.pods.get(eviction.pod)?;
        let EvictionText { message, annotations } = message::eviction(evaluation, eviction);
        Some(Self {
            pod: PodName::of(&known.pod),
            signal: evaluation.label_of(eviction.cause),
            hard: evaluation.threshold_of(eviction.cause).map(|resolved| resolved.threshold.is_hard()),
            grace_period_seconds: eviction.grace_period_seconds,
            shortens_grace: takes_over,
            ignores_budget: eviction.ignores_budget,
            message,
            annotations,
        })
    }
}

/// Whether to leave out what only matters if it is true.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_not(flag: &bool) -> bool {
    !flag
}

/// An earlier eviction that the evaluation remembered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightRecord {
    /// Whose.
    pub pod: PodName,
    /// What for, as [`EvictionRecord::signal`](crate::record::EvictionRecord::signal).
    pub signal: &'static str,
    /// Whether that is a hard threshold, or a limit of the pod's own.
    pub hard: bool,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// How far it has come.
    #[serde(flatten)]
    pub state: InFlightPhase,
    /// What it was expected to free, of each signal of which that is something.
    pub expected: Vec<ReleaseRecord>,
}

/// How far an eviction has come.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InFlightPhase {
    /// The pod is terminating.
    #[serde(rename = "under_way")]
    Terminating {
        /// How much of its grace period is left.
        remaining_grace: GoDuration,
    },
    /// It is gone. Until values are newer than that, what it held counts as terminating.
    #[serde(rename = "gone")]
    Terminated {
        /// Since when.
        since: Timestamp,
    },
    /// It did not go: nothing is expected of it, and it goes after all others.
    Failed {
        /// What whoever evicts said.
        why: Box<str>,
        /// How long ago.
        age: GoDuration,
    },
    /// Its time is over and nothing was freed: the same as failed.
    Expired {
        /// How long ago.
        age: GoDuration,
    },
}

/// What comes free of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseRecord {
    /// Of which.
    pub of: Signal,
    /// How much.
    #[serde(flatten)]
    pub release: ExpectedRelease,
}

impl InFlightRecord {
    pub(super) fn all(evaluation: &Evaluation, now: Timestamp) -> Vec<Self> {
        evaluation.in_flight.iter().map(|in_flight| Self::of(in_flight, now)).collect()
    }

    fn of(in_flight: &InFlightEviction, now: Timestamp) -> Self {
        let expected = Signal::ALL.map(|of| (of, in_flight.release(of)));
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
                Some(Ended::Terminated) => InFlightPhase::Terminated { since: in_flight.since },
                Some(Ended::Failed(Failure::Reported(why))) => {
                    InFlightPhase::Failed { why: why.clone(), age: in_flight.age(now) }
                }
                Some(Ended::Failed(Failure::Expired)) => InFlightPhase::Expired { age: in_flight.age(now) },
            },
            expected: expected.map(|&(of, release)| ReleaseRecord { of, release }).collect(),
        }
    }
}

/// What a threshold lacks and how that was dealt with, in whole units of its signal:
/// `lacking = threshold + min_reclaim + ahead − available`, `open = lacking − in_flight − chosen`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizingRecord {
    /// Of what.
    pub signal: Signal,
    /// Whether the threshold is a hard one.
    pub hard: bool,
    /// Below this the threshold is met.
    pub threshold: i64,
    /// How much more must be available before it is resolved.
    pub min_reclaim: i64,
    /// What is counted in advance for a threshold that is about to be met.
    #[serde(skip_serializing_if = "is_zero")]
    #[serde(rename = "ahead")]
    pub predicted: i64,
    /// What was available; after node-level reclaim, if there was a sample.
    pub available: i64,
    /// What is lacking.
    pub lacking: i64,
    /// What pods terminating will free in time.
    pub in_flight: i64,
    /// What those will free that go now.
    pub chosen: i64,
    /// What nobody makes up for; less than zero if more comes free than is needed.
    #[serde(rename = "open")]
    pub remaining: i64,
    /// How it ended for this threshold.
    pub end: EvaluationEnd,
    /// Those who go, and what each will free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<PlannedVictim>,
    /// Pods that went for a soft threshold and now go faster; `in_flight` counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "hurried")]
    pub shortened: Vec<PodName>,
    /// Those who would have gone before others, and why they did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "passed_over")]
    pub skipped: Vec<SkippedVictim>,
}

/// A pod that is evicted for a deficit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedVictim {
    /// The pod.
    pub pod: PodName,
    /// What it is expected to free.
    #[serde(flatten)]
    pub release: ExpectedRelease,
}

/// A pod that was skipped for one that ranks behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedVictim {
    /// The pod.
    pub pod: PodName,
    /// Why.
    pub why: SkipReason,
    /// What it would free.
    #[serde(flatten)]
    pub release: ExpectedRelease,
    /// What was lacking at its turn.
    #[serde(rename = "open")]
    pub remaining: i64,
}

impl SizingRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        let deficits = evaluation.deficits.iter().enumerate();
        deficits.filter_map(|(index, deficit)| Self::of(evaluation, index, deficit)).collect()
    }

    fn of(evaluation: &Evaluation, index: usize, deficit: &Deficit) -> Option<Self> {
        let threshold = &evaluation.threshold(deficit.threshold_index)?.threshold;
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
                    skipped.push(SkippedVictim { pod, why, release, remaining });
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(amount: &i64) -> bool {
    *amount == 0
}
