//! Percentages of a capacity, and the values of thresholds.

use serde::{Deserialize, Serialize};

use super::float::{FloatError, parse_f32};
use super::{Format, Quantity};

/// The value of a threshold or of a minimum reclaim: absolute, or a share of the capacity.
///
/// Two are equal as the kubelet's `compareThresholdValue` has it: quantities as numbers,
/// shares as floats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ThresholdValue {
    /// An absolute value.
    Quantity(Quantity),
    /// A share, 1 being the whole.
    Percentage(f32),
}

impl ThresholdValue {
    /// As a configuration has it: a share is written in percent, to the digits that binary32 tells
    /// apart.
    pub fn configured(&self) -> String {
        match self {
            Self::Quantity(quantity) => quantity.to_string(),
            Self::Percentage(share) => {
                let percent = format!("{share}e2").parse::<f64>();
                percent.map_or_else(|_| share.to_string(), |percent| format!("{percent}%"))
            }
        }
    }

    /// The absolute value for a capacity: `GetThresholdQuantity`. A share gives a quantity
    /// in binary format, whatever the signal.
    pub fn quantity(&self, capacity: i64) -> Quantity {
        match self {
            Self::Quantity(quantity) => quantity.clone(),
            Self::Percentage(share) => {
                let value = truncate(capacity as f64 * f64::from(*share));
                Quantity::from_i64(value, Format::BinarySi)
            }
        }
    }
}

/// Go's conversion on amd64: what no `i64` can hold, NaN included, is the smallest one.
fn truncate(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&value) { value as i64 } else { i64::MIN }
}

/// Reads `TEXT%` as a share in binary32: `parsePercentage`. All trailing `%` are taken off.
///
/// # Errors
/// If the rest is no float as Go writes them.
pub fn parse_percentage(text: &str) -> Result<f32, FloatError> {
    Ok(parse_f32(text.trim_end_matches('%'))? / 100.0)
}
