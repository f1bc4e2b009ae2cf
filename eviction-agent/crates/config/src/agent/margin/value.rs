//! A margin: a percentage of a threshold, or a quantity.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use eviction_core::units::{Quantity, ThresholdValue, deserialize_text, parse_percentage};

/// A percentage from 0% to 100%, or a quantity that is not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct MarginValue {
    value: ThresholdValue,
    text: Box<str>,
}

impl MarginValue {
    pub(super) fn percent(percent: u8) -> Self {
        let share = f32::from(percent) / 100.0;
        Self { value: ThresholdValue::Percentage(share), text: format!("{percent}%").into() }
    }

    /// The value that it stands for.
    pub fn value(&self) -> &ThresholdValue {
        &self.value
    }

    /// Reads a percentage or a quantity.
    ///
    /// # Errors
    /// The cause, if the text is neither or is out of bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = if text.ends_with('%') {
            let share = parse_percentage(text).map_err(|error| error.to_string())?;
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("must be 0% to 100%, got {text}"));
            }
            ThresholdValue::Percentage(share)
        } else {
            let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
            if quantity.signum() < 0 {
                return Err(format!("must not be negative, got {quantity}"));
            }
            ThresholdValue::Quantity(quantity)
        };
        Ok(Self { value, text: text.into() })
    }
}

impl fmt::Display for MarginValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for MarginValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for MarginValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", Self::parse)
    }
}
