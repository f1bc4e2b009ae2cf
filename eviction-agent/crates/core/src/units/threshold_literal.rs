//! The text of a threshold: a quantity or a percentage.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Quantity, ThresholdValue, deserialize_text, parse_percentage};

/// A positive quantity, or a percentage above 0% and up to 100%, such as `500Mi` or `7.5%`.
///
/// Stricter than the kubelet's thresholds: there are no texts without effect, and nothing that
/// is not a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    value: ThresholdValue,
    text: Box<str>,
}

impl Limit {
    /// The value that it stands for.
    pub fn value(&self) -> &ThresholdValue {
        &self.value
    }

    /// Reads a quantity or a percentage.
    ///
    /// # Errors
    /// The cause, if the text is neither or is out of bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = if text.ends_with('%') {
            let share = parse_percentage(text).map_err(|error| error.to_string())?;
            if !(share > 0.0 && share <= 1.0) {
                return Err(format!("must be above 0% and at most 100%, is {text}"));
            }
            ThresholdValue::Percentage(share)
        } else {
            let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
            if quantity.signum() <= 0 {
                return Err(format!("must be above zero, is {quantity}"));
            }
            ThresholdValue::Quantity(quantity)
        };
        Ok(Self { value, text: text.into() })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", Self::parse)
    }
}
