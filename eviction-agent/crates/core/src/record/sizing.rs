//! What was lacking, who makes up for it, and who was passed over.

use serde::Serialize;

use super::PodName;
use crate::decision::Evaluation;
use crate::deficit::{Deficit, SkipReason};
use crate::eviction::EvaluationEnd;
use crate::expected_release::{Basis, ExpectedRelease};
use crate::signal::Signal;

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
    pub ahead: i64,
    /// What was available; after node-level reclaim, if there was a look.
    pub available: i64,
    /// What is lacking.
    pub lacking: i64,
    /// What pods on their way will free in time.
    pub in_flight: i64,
    /// What those will free that go now.
    pub chosen: i64,
    /// What nobody makes up for; less than zero if more comes free than is needed.
    pub open: i64,
    /// How it ended for this threshold.
    pub end: EvaluationEnd,
    /// Those who go, and what each will free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<VictimRecord>,
    /// Pods that went for a soft threshold and now go faster; `in_flight` counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hurried: Vec<PodName>,
    /// Those who would have gone before others, and why they did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<SkippedPodRecord>,
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VictimRecord {
    /// Who.
    pub pod: PodName,
    /// What it will free.
    pub release: i64,
    /// How that is known.
    pub basis: Basis,
}

/// A pod that was passed over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SkippedPodRecord {
    /// Who.
    pub pod: PodName,
    /// Why.
    pub why: SkipReason,
    /// What it would free.
    pub release: i64,
    /// How that is known.
    pub basis: Basis,
    /// What was lacking at its turn.
    pub open: i64,
}

impl SizingRecord {
    pub(super) fn all(evaluation: &Evaluation) -> Vec<Self> {
        evaluation.deficits.iter().filter_map(|deficit| Self::of(evaluation, deficit)).collect()
    }

    fn of(evaluation: &Evaluation, deficit: &Deficit) -> Option<Self> {
        let threshold = &evaluation.line(deficit.line)?.threshold;
        let name = |place: u32| Some(PodName::of(&evaluation.pods.get(place)?.pod));
        let victims = deficit.victims.iter().filter_map(|victim| {
            let ExpectedRelease { amount: release, basis } = victim.release;
            Some(VictimRecord { pod: name(victim.place)?, release, basis })
        });
        let passed_over = deficit.passed_over.iter().filter_map(|one| {
            let ExpectedRelease { amount: release, basis } = one.release;
            let pod = name(one.place)?;
            Some(SkippedPodRecord { pod, why: one.why, release, basis, open: one.open })
        });
        Some(Self {
            signal: threshold.signal,
            hard: threshold.is_hard(),
            threshold: deficit.threshold,
            min_reclaim: deficit.min_reclaim,
            ahead: deficit.ahead,
            available: deficit.available,
            lacking: deficit.lacking(),
            in_flight: deficit.in_flight,
            chosen: deficit.chosen(),
            open: deficit.open(),
            end: deficit.end,
            victims: victims.collect(),
            hurried: deficit.hurried.iter().filter_map(|&place| name(place)).collect(),
            passed_over: passed_over.collect(),
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(amount: &i64) -> bool {
    *amount == 0
}
