//! Signals, memory, thresholds and conditions in a record.

use serde::Serialize;

use crate::condition::RaisedCondition;
use crate::decision::{Decision, Evaluation};
use crate::observation::Observations;
use crate::reading::{Reading, UnknownReason};
use crate::signal::{NodeCondition, Signal};
use crate::signal_filter::eta;
use crate::snapshot::MemoryDetail;
use crate::threshold::{MemoryConditions, Met};
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

/// The node's memory by every measure, whichever the policy uses. Amounts are in bytes. An absent value is
/// one that the node does not have, or one that is listed in `unknown`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRecord {
    /// Capacity less working set, as in the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_by_working_set: Option<u64>,
    /// The same, with active file pages counted as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_without_active_file: Option<u64>,
    /// The kernel's own estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_available: Option<u64>,
    /// Usage without inactive file pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
    /// Page cache that was used recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_file: Option<u64>,
    /// The share of the last ten seconds in which some task stalled for memory, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some_avg10: Option<f64>,
    /// The share in which all tasks stalled at once, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the policy's trigger requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled: Option<bool>,
    /// Swap in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_used: Option<u64>,
    /// The total swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total: Option<u64>,
    /// Whether the further conditions of memory thresholds are fulfilled.
    pub conditions: MemoryConditions,
    /// Values that should exist but are unknown, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownValue>,
}

/// A value that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownValue {
    /// The name of the value.
    pub value: &'static str,
    /// Why the value is unknown.
    pub reason: UnknownReason,
}

impl MemoryRecord {
    /// Returns the memory by every measure. None if only the usage and the working set were read.
    pub(super) fn of(evaluation: &Evaluation) -> Option<Self> {
        let detail = evaluation.snapshot.node.memory_detail;
        if detail == MemoryDetail::default()
            && evaluation.context.memory_conditions == MemoryConditions::Fulfilled
        {
            return None;
        }
        let MemoryDetail {
            mem_available,
            active_file,
            some_avg10,
            full_avg10,
            stalled,
            swap_used,
            swap_total,
        } = detail;
        let memory = evaluation.snapshot.node.memory.known();
        let available = memory.and_then(|memory| memory.available);
        let percent = |hundredths: Reading<u64>| hundredths.known().map(|share| share as f64 / 100.0);
        let values = [
            ("mem_available", why(mem_available)),
            ("active_file", why(active_file)),
            ("some_avg10", why(some_avg10)),
            ("full_avg10", why(full_avg10)),
            ("stalled", why(stalled)),
            ("swap_used", why(swap_used)),
            ("swap_total", why(swap_total)),
        ];
        let unknown =
            values.into_iter().filter_map(|(value, reason)| Some(UnknownValue { value, reason: reason? }));
        Some(Self {
            available_by_working_set: available,
            available_without_active_file: available
                .zip(active_file.known())
                .map(|(available, cache)| available.saturating_add(cache)),
            mem_available: mem_available.known(),
            working_set: memory.and_then(|memory| memory.working_set),
            active_file: active_file.known(),
            some_avg10: percent(some_avg10),
            full_avg10: percent(full_avg10),
            stalled: stalled.known(),
            swap_used: swap_used.known(),
            swap_total: swap_total.known(),
            conditions: evaluation.context.memory_conditions,
            unknown: unknown.collect(),
        })
    }
}

/// Returns why a value is unknown. None for a value that the node does not have.
fn why<T>(reading: Reading<T>) -> Option<UnknownReason> {
    match reading {
        Reading::Known(_) | Reading::Unknown(UnknownReason::Absent) => None,
        Reading::Unknown(why) => Some(why),
    }
}
