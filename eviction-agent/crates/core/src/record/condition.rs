//! Node conditions in a record.

use serde::Serialize;

use super::ThresholdRecord;
use crate::condition::Raised;
use crate::decision::Decision;
use crate::signal::{NodeCondition, Signal};
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// A node condition that holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConditionRecord {
    /// Which.
    pub condition: NodeCondition,
    /// When a threshold that raises it was last met.
    pub raised_at: Timestamp,
    /// The thresholds that raise it in this evaluation. Grace does not matter for it.
    pub raised_by: Vec<RaiserRecord>,
    /// Whether that is over, and only the transition period keeps it.
    pub outlives_its_cause: bool,
    /// How long it will hold if nothing raises it again.
    pub holds_for: GoDuration,
}

/// A threshold that raises a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RaiserRecord {
    /// Of which signal.
    pub signal: Signal,
    /// Its grace period; zero for a hard one.
    pub grace_period: GoDuration,
    /// Since when it is met, or foreseen to be.
    pub first_seen: Timestamp,
    /// Only its minimum reclaim keeps it.
    pub by_min_reclaim: bool,
    /// It is about to be met.
    pub by_prediction: bool,
}

impl ConditionRecord {
    pub(super) fn of(raised: &Raised, thresholds: &[ThresholdRecord], decision: &Decision) -> Self {
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
        // What nothing that is met raised just now was raised by what is about to be.
        if raised_by.is_empty() && age == 0 {
            let foreseen = |threshold: &&ThresholdRecord| {
                threshold.imminent && threshold.signal.condition() == raised.condition
            };
            raised_by.extend(thresholds.iter().filter(foreseen).map(|threshold| RaiserRecord {
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
