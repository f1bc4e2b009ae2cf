//! A threshold that is met, as it outlives the engine.

use serde::{Deserialize, Serialize};

use crate::signal::Signal;
use crate::time::Timestamp;
use crate::units::{GoDuration, ThresholdValue};

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetSince {
    /// Of which signal.
    pub signal: Signal,
    /// The line, as [`text_of`] has it: a changed one is another threshold.
    pub value: Box<str>,
    /// Its grace period: zero for a hard one.
    pub grace_period: GoDuration,
    /// Since when.
    pub first_seen: Timestamp,
    /// Its grace period is over, so that it holds until its minimum reclaim.
    pub ripe: bool,
}

/// The value of a threshold as a memory has it.
pub fn text_of(value: &ThresholdValue) -> Box<str> {
    match value {
        ThresholdValue::Quantity(quantity) => quantity.to_string().into(),
        ThresholdValue::Percentage(share) => format!("{share}").into(),
    }
}
