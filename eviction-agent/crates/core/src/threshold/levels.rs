//! The thresholds of one signal as plain values. With them the control loop computes the headroom without
//! asking the engine.

use crate::policy::Threshold;
use crate::signal::Signal;
use crate::units::ThresholdValue;

/// The available amounts below which the thresholds of a signal are met, and from which on they are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdLevels {
    /// The values of the thresholds, in their order.
    values: Vec<i64>,
    /// The amount from which on all thresholds are resolved. `None` if there is none.
    resolved_at: Option<i64>,
}

impl ThresholdLevels {
    /// Returns the thresholds of `signal` on a node with this capacity.
    pub fn of(thresholds: &[Threshold], signal: Signal, capacity: i64) -> Self {
        let mut levels = Self::default();
        // A value beyond 64 bits becomes the largest: such a threshold is always met.
        let units = |value: &ThresholdValue| value.nanos(capacity).units_rounded_up();
        for threshold in thresholds.iter().filter(|threshold| threshold.signal == signal) {
            let value = units(&threshold.value);
            let reclaim = threshold.min_reclaim.as_ref().map_or(0, units);
            levels.values.push(value);
            levels.resolved_at = levels.resolved_at.max(Some(value.saturating_add(reclaim)));
        }
        levels
    }

    /// Returns whether a threshold may be met, or kept met by its minimum reclaim. Then an evaluation may rank pods.
    pub fn may_be_met(&self, available: i64) -> bool {
        self.resolved_at.is_some_and(|resolved_at| available < resolved_at)
    }

    /// Returns the working sets at which thresholds are met.
    pub fn working_sets(&self, capacity: u64) -> impl Iterator<Item = u64> + '_ {
        self.values.iter().map(move |value| capacity.saturating_sub((*value).max(0).unsigned_abs()))
    }

    /// Returns the lowest amount below which a threshold is met.
    pub fn lowest(&self) -> Option<i64> {
        self.values.iter().copied().min()
    }

    /// Returns the headroom to the nearest threshold that is not met. `None` if all are met or there is none.
    pub fn distance(&self, available: i64) -> Option<u64> {
        self.values.iter().filter(|value| available >= **value).map(|value| available.abs_diff(*value)).min()
    }
}
