//! How much a pod may grow between SIGTERM and SIGKILL.

use serde::{Deserialize, Serialize};

use crate::units::{Format, Quantity};

/// Bytes that the memory of a pod may grow by in the grace period of a hard memory eviction; 0 for no
/// bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Quantity", into = "Quantity")]
pub struct KillOnGrowth(u64);

impl KillOnGrowth {
    /// No bound.
    pub const OFF: Self = Self(0);

    /// Nothing where there is no bound.
    pub fn bytes(self) -> Option<u64> {
        (self != Self::OFF).then_some(self.0)
    }
}

impl Default for KillOnGrowth {
    /// A process that ends on SIGTERM needs less than that to do it; one that grows at 3 GB/s has it in
    /// 6 ms.
    fn default() -> Self {
        Self(16 << 20)
    }
}

impl TryFrom<Quantity> for KillOnGrowth {
    type Error = String;

    /// Part of a byte is rounded up.
    fn try_from(quantity: Quantity) -> Result<Self, String> {
        if quantity.signum() < 0 {
            return Err(format!("must be at least 0, got {quantity}"));
        }
        if quantity > Quantity::from_i64(i64::MAX, Format::DecimalSi) {
            return Err(format!("must be less than 8Ei, got {quantity}"));
        }
        Ok(Self(quantity.value().unsigned_abs()))
    }
}

impl From<KillOnGrowth> for Quantity {
    fn from(KillOnGrowth(bytes): KillOnGrowth) -> Self {
        Self::from_i64(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_quantity_of_bytes() {
        let read = |text: &str| {
            let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
            KillOnGrowth::try_from(quantity).map(KillOnGrowth::bytes)
        };
        assert_eq!(read("16Mi"), Ok(Some(16 << 20)));
        assert_eq!(read("1M"), Ok(Some(1_000_000)));
        assert_eq!(read("1500m"), Ok(Some(2)));
        assert_eq!(read("0"), Ok(None));
        for (wrong, why) in [
            ("-1Mi", "must be at least 0, got -1Mi"),
            ("9223372036854775808", "must be less than 8Ei, got 9223372036854775808"),
            ("1e30", "must be less than 8Ei, got 1e30"),
        ] {
            assert_eq!(read(wrong).unwrap_err(), why);
        }
        assert_eq!(Quantity::from(KillOnGrowth::default()).to_string(), "16Mi");
        assert_eq!(Quantity::from(KillOnGrowth::OFF).to_string(), "0");
    }
}
