//! Quantities in JSON: texts or bare numbers.

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use eviction_core::units::Quantity;

/// A quantity as `Quantity.UnmarshalJSON` reads it: the characters as they stand, without
/// quotes and the blanks inside them, so that a number keeps its digits. Null is zero.
#[derive(Clone, Debug)]
pub(super) struct JsonQuantity(pub(super) Quantity);

impl<'de> Deserialize<'de> for JsonQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        if text == "null" {
            return Ok(Self(Quantity::ZERO));
        }
        let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let text = quoted.unwrap_or(text).trim();
        let quantity = Quantity::parse(text)
            .map_err(|error| de::Error::custom(format_args!("{:.100}: {error}", raw.get())))?;
        Ok(Self(quantity))
    }
}
