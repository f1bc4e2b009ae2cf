//! A margin: a percentage of a threshold, or a quantity.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use eviction_core::units::{Quantity, ThresholdValue, deserialize_text, parse_percentage};

/// A percentage from 0% to 100%, or a quantity that is not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct MarginValue(pub(super) ThresholdValue);

impl MarginValue {
    fn parse(text: &str) -> Result<Self, String> {
        if text.ends_with('%') {
            let share = parse_percentage(text).map_err(|error| error.to_string())?;
            return match (0.0..=1.0).contains(&share) {
                true => Ok(Self(ThresholdValue::Percentage(share))),
                false => Err(format!("must be 0% to 100%, got {text}")),
            };
        }
        match Quantity::parse(text).map_err(|error| error.to_string())? {
            quantity if quantity.signum() < 0 => Err(format!("must not be negative, got {quantity}")),
            quantity => Ok(Self(ThresholdValue::Quantity(quantity))),
        }
    }
}

impl fmt::Display for MarginValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.configured())
    }
}

impl Serialize for MarginValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MarginValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", Self::parse)
    }
}
