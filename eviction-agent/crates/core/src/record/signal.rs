//! Signals, thresholds and conditions in a record.

use serde::Serialize;

use crate::condition::RaisedCondition;
use crate::decision::{Decision, Evaluation};
use crate::observation::Observations;
use crate::reading::{Reading, UnknownReason};
use crate::signal::{NodeCondition, Signal};
use crate::signal_filter::eta;
use crate::threshold::Met;
use crate::time::{Timestamp, since};
use crate::trend::{Eta, Slope};
use crate::units::{GoDuration, Nanos, Quantity, ThresholdValue};

/// The observation of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignalRecord {
    /// The signal.
    pub signal: Signal,
    /// The available amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// The capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// How old the values are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<GoDuration>,
    /// The source of the values. There is only one, 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<u8>,
    /// How fast the available amount changes, in units per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<Slope>,
    /// Why there is no observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownReason>,
}

/// A threshold that counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThresholdRecord {
    /// The signal.
    pub signal: Signal,
    /// The value as configured: a quantity or a percentage.
    pub configured: String,
    /// The value, as configured or computed from the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<Quantity>,
    /// How much more must be available before the threshold is resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_reclaim: Option<Quantity>,
    /// How long the threshold must be met before it evicts. Zero for a hard threshold.
    pub grace_period: GoDuration,
    /// When the threshold will be met at the current trend, if it is not met or only predicted to be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<Eta>,
    /// Whether that is so soon and so certain that the policy acts on it, if it is configured to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub imminent: bool,
    /// The state of the threshold, if it is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<MetRecord>,
}

/// The state of a threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MetRecord {
    /// Since when the threshold is met.
    pub first_seen: Timestamp,
    /// How much more must be available before the threshold is resolved, including its minimum reclaim, in
    /// whole units.
    pub missing: i64,
    /// How much of the grace period is left.
    pub remaining_grace: GoDuration,
    /// Whether the amount is above the threshold again, but not by the minimum reclaim.
    pub by_min_reclaim: bool,
    /// Whether the threshold is only predicted to be met, and the policy acts on that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_prediction: bool,
    /// Whether the values are no newer than those of the last evaluation, so that the threshold does not evict.
    pub stale: bool,
    /// Whether the threshold drives the evaluation.
    pub driving: bool,
}

impl SignalRecord {
    pub(super) fn all(
        seen: &Observations,
        now: Timestamp,
        trend: impl Fn(Signal) -> Option<Slope>,
    ) -> Vec<Self> {
        let record = |signal| {
            let (seen, unknown) = match seen.reading(signal) {
                Reading::Known(seen) => (Some(seen), None),
                Reading::Unknown(why) => (None, Some(why)),
            };
            Self {
                signal,
                available: seen.map(|seen| seen.available),
                capacity: seen.map(|seen| seen.capacity),
                age: seen.and_then(|seen| seen.time).map(|time| since(now, time)),
                source: seen.map(|_| 0),
                trend: trend(signal),
                unknown,
            }
        };
        Signal::ALL.into_iter().map(record).collect()
    }
}

impl ThresholdRecord {
    /// Returns whether the threshold evicts at once.
    pub fn is_hard(&self) -> bool {
        self.grace_period == GoDuration::ZERO
    }

    /// Returns `hard` or `soft`.
    pub fn kind(&self) -> &'static str {
        if self.is_hard() { "hard" } else { "soft" }
    }

    /// Returns the thresholds that count in this evaluation, and replaced ones that are still met.
    pub(super) fn all(evaluation: &Evaluation, now: Timestamp) -> Vec<Self> {
        let state = |index: u8| evaluation.met.iter().find(|met| met.threshold == index);
        let indices = (0..).take(evaluation.thresholds.len());
        indices
            .filter(|index| evaluation.visible.contains(index) || state(*index).is_some())
            .filter_map(|index| Self::of(evaluation, index, state(index), now))
            .collect()
    }

    fn of(evaluation: &Evaluation, index: u8, met: Option<&Met>, now: Timestamp) -> Option<Self> {
        let threshold = evaluation.threshold(index)?;
        let seen = evaluation.observations.get(threshold.signal);
        let capacity = seen.map(|seen| seen.capacity);
        let missing = seen
            .map_or(0, |seen| threshold.resolved_at(seen.capacity).minus(seen.nanos()).units_rounded_up());
        let quantity = |value: &ThresholdValue| match (value, capacity) {
            (ThresholdValue::Quantity(quantity), _) => Some(quantity.clone()),
            (share, Some(capacity)) => Some(share.quantity(capacity)),
            (ThresholdValue::Percentage(_), None) => None,
        };
        Some(Self {
            signal: threshold.signal,
            configured: threshold.value.configured(),
            quantity: quantity(&threshold.value),
            min_reclaim: threshold.min_reclaim.as_ref().and_then(quantity),
            grace_period: threshold.grace_period,
            eta: match met {
                Some(Met { by_prediction: false, .. }) => None,
                _ => eta(threshold, &evaluation.observations, &evaluation.context),
            },
            imminent: evaluation.context.imminent.contains(&index),
            met: met.map(|met| MetRecord {
                first_seen: met.first_seen,
                missing,
                remaining_grace: remaining(threshold.grace_period, since(now, met.first_seen)),
                by_min_reclaim: met.by_min_reclaim,
                by_prediction: met.by_prediction,
                stale: met.grace_period_over && !met.may_evict,
                driving: evaluation.driving == Some(index),
            }),
        })
    }
}

fn remaining(grace: GoDuration, passed: GoDuration) -> GoDuration {
    let nanos = grace.as_nanos().saturating_sub(passed.as_nanos());
    GoDuration::from_nanos(nanos.max(0))
}

/// A node condition that holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConditionRecord {
    /// The condition.
    pub condition: NodeCondition,
    /// When a threshold that raises the condition was last met.
    pub raised_at: Timestamp,
    /// The thresholds that raise the condition in this evaluation, whatever their grace period.
    pub raised_by: Vec<RaiserRecord>,
    /// Whether no threshold raises the condition any more, and only the transition period keeps it.
    pub outlives_its_cause: bool,
    /// How long the condition will hold if no threshold raises it again.
    pub holds_for: GoDuration,
}

/// A threshold that raises a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RaiserRecord {
    /// The signal of the threshold.
    pub signal: Signal,
    /// The grace period of the threshold. Zero for a hard threshold.
    pub grace_period: GoDuration,
    /// Since when the threshold is met, or predicted to be met.
    pub first_seen: Timestamp,
    /// Whether only the minimum reclaim keeps the threshold met.
    pub by_min_reclaim: bool,
    /// Whether the threshold is only predicted to be met.
    pub by_prediction: bool,
}

impl ConditionRecord {
    pub(super) fn of(raised: &RaisedCondition, thresholds: &[ThresholdRecord], decision: &Decision) -> Self {
        let now = decision.at;
        let age = since(now, raised.at).as_nanos();
        let raiser = |threshold: &ThresholdRecord| {
            let met = threshold.met.filter(|_| threshold.signal.condition() == raised.condition)?;
            Some(RaiserRecord {
                signal: threshold.signal,
                grace_period: threshold.grace_period,
                first_seen: met.first_seen,
                by_min_reclaim: met.by_min_reclaim,
                by_prediction: met.by_prediction,
            })
        };
        let mut raised_by: Vec<_> = thresholds.iter().filter_map(raiser).collect();
        // If a condition was raised now and no met threshold raises it, predicted thresholds raised it.
        if raised_by.is_empty() && age == 0 {
            let is_predicted = |threshold: &&ThresholdRecord| {
                threshold.imminent && threshold.signal.condition() == raised.condition
            };
            raised_by.extend(thresholds.iter().filter(is_predicted).map(|threshold| RaiserRecord {
                signal: threshold.signal,
                grace_period: threshold.grace_period,
                first_seen: now,
                by_min_reclaim: false,
                by_prediction: true,
            }));
        }
        Self {
            condition: raised.condition,
            raised_at: raised.at,
            raised_by,
            outlives_its_cause: age != 0,
            holds_for: GoDuration::from_nanos(decision.transition_period.as_nanos().saturating_sub(age)),
        }
    }
}

/// The deficit of the driving threshold, in whole units of its signal: `threshold + min_reclaim − available`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeficitRecord {
    /// The signal of the threshold.
    pub signal: Signal,
    /// The threshold is met below this amount.
    pub threshold: i64,
    /// How much more must be available before the threshold is resolved.
    pub min_reclaim: i64,
    /// The available amount.
    pub available: i64,
    /// The deficit.
    pub total: i64,
}

impl DeficitRecord {
    pub(super) fn of(evaluation: &Evaluation) -> Option<Self> {
        let threshold = evaluation.driving_threshold()?;
        let signal = threshold.signal;
        let seen = evaluation.observations.get(signal)?;
        let (value, resolved_at) =
            (threshold.value.nanos(seen.capacity), threshold.resolved_at(seen.capacity));
        let units = Nanos::units_rounded_up;
        Some(Self {
            signal,
            threshold: units(value),
            min_reclaim: units(resolved_at.minus(value)),
            available: seen.available,
            total: units(resolved_at.minus(seen.nanos())),
        })
    }
}
