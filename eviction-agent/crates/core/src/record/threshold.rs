//! Signals and thresholds in a record.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::observation::Observations;
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal;
use crate::signal_filter::eta;
use crate::snapshot::SourceId;
use crate::threshold::Met;
use crate::time::{Timestamp, since};
use crate::trend::{Eta, Slope};
use crate::units::{GoDuration, ThresholdValue};

/// What was seen of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignalRecord {
    /// Which.
    pub signal: Signal,
    /// What is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// What there is in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// How old the figures are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<GoDuration>,
    /// Where they came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceId>,
    /// How fast what is left changes, in units per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Slope>,
    /// Why nothing was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownReason>,
}

/// A threshold that counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThresholdRecord {
    /// Of which signal.
    pub signal: Signal,
    /// The line as configured: a quantity or a percentage.
    pub configured: String,
    /// The line, as configured or worked out from the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<String>,
    /// How much more must be available before it is resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_reclaim: Option<String>,
    /// How long it must be met before it evicts; zero for a hard one.
    pub grace_period: GoDuration,
    /// When it will be met, if it is not and all goes on as it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<Eta>,
    /// That is so soon, and so sure, that the policy would act on it if it says so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub imminent: bool,
    /// Its state, if it is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<MetRecord>,
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MetRecord {
    /// Since when.
    pub first_seen: Timestamp,
    /// By how much less is available than it takes to resolve it, its minimum reclaim
    /// included, in whole units.
    pub lacks: i64,
    /// How much of its grace period is left.
    pub remaining_grace: GoDuration,
    /// It is above its line again, but not by its minimum reclaim.
    pub by_min_reclaim: bool,
    /// It is only about to be met, and the policy acts on that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_prediction: bool,
    /// Its figures are no newer than those of the last evaluation, so that it does not act.
    pub stale: bool,
    /// It drives the evaluation.
    pub handled: bool,
}

impl SignalRecord {
    pub(super) fn all(
        seen: &Observations,
        now: Timestamp,
        trend: impl Fn(Signal) -> Option<Slope>,
    ) -> Vec<Self> {
        let record = |signal| match seen.reading(signal) {
            Reading::Known(seen) => Self {
                signal,
                available: Some(seen.available),
                capacity: Some(seen.capacity),
                age: seen.time.map(|time| since(now, time)),
                source: Some(seen.source),
                trend: trend(signal),
                unknown: None,
            },
            Reading::Unknown(why) => Self {
                signal,
                available: None,
                capacity: None,
                age: None,
                source: None,
                trend: trend(signal),
                unknown: Some(why),
            },
        };
        Signal::ALL.into_iter().map(record).collect()
    }
}

impl ThresholdRecord {
    /// Whether it evicts at once.
    pub fn is_hard(&self) -> bool {
        self.grace_period == GoDuration::ZERO
    }

    /// Those that count in this evaluation, and replaced ones that still hold.
    pub(super) fn all(evaluation: &Evaluation, now: Timestamp) -> Vec<Self> {
        let state = |place: u8| evaluation.met.iter().find(|met| met.line == place);
        let places = (0..).take(evaluation.lines.len());
        places
            .filter(|place| evaluation.visible.contains(place) || state(*place).is_some())
            .filter_map(|place| Self::of(evaluation, place, state(place), now))
            .collect()
    }

    fn of(evaluation: &Evaluation, place: u8, met: Option<&Met>, now: Timestamp) -> Option<Self> {
        let line = evaluation.line(place)?;
        let threshold = &line.threshold;
        let seen = evaluation.seen.get(threshold.signal);
        let capacity = seen.map(|seen| seen.capacity);
        let lacks =
            seen.map_or(0, |seen| line.resolved_at(seen.capacity).minus(seen.nanos()).units_rounded_up());
        let text = |value: &ThresholdValue| match (value, capacity) {
            (ThresholdValue::Quantity(quantity), _) => Some(quantity.to_string()),
            (share, Some(capacity)) => Some(share.quantity(capacity).to_string()),
            (ThresholdValue::Percentage(_), None) => None,
        };
        Some(Self {
            signal: threshold.signal,
            configured: threshold.value.configured(),
            quantity: text(&threshold.value),
            min_reclaim: threshold.min_reclaim.as_ref().and_then(text),
            grace_period: threshold.grace_period,
            eta: evaluation
                .line(place)
                .filter(|_| met.is_none())
                .and_then(|line| eta(line, &evaluation.seen, &evaluation.sight)),
            imminent: evaluation.sight.imminent.contains(&place),
            met: met.map(|met| MetRecord {
                first_seen: met.first_seen,
                lacks,
                remaining_grace: remaining(threshold.grace_period, since(now, met.first_seen)),
                by_min_reclaim: met.by_min_reclaim,
                by_prediction: met.by_prediction,
                stale: met.ripe && !met.fresh,
                handled: evaluation.handled == Some(place),
            }),
        })
    }
}

fn remaining(grace: GoDuration, passed: GoDuration) -> GoDuration {
    let left = grace.as_nanos().saturating_sub(passed.as_nanos());
    GoDuration::from_nanos(left.max(0))
}
