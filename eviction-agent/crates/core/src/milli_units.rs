//! Quantities as integers, for the comparisons that a pass makes by the thousand.

use super::units::Quantity;

/// A quantity in billionths, the finest that Kubernetes has. Beyond ±1.7 × 10^29 units it
/// is [`Nanos::MAX`] or [`Nanos::MIN`], which lie beyond every figure of a node, so that a
/// comparison with a figure is exact all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(i128);

impl Nanos {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// More than any figure.
    pub const MAX: Self = Self(i128::MAX);
    /// Less than any figure.
    pub const MIN: Self = Self(i128::MIN);

    /// A whole number of units.
    pub const fn from_units(units: i128) -> Self {
        Self(units.saturating_mul(1_000_000_000))
    }

    /// A quantity.
    pub fn from_quantity(quantity: &Quantity) -> Self {
        match quantity.as_nanos() {
            Some(nanos) => Self(nanos),
            None if quantity.signum() < 0 => Self::MIN,
            None => Self::MAX,
        }
    }

    /// The billionths.
    pub const fn get(self) -> i128 {
        self.0
    }

    /// The sum. What lies beyond everything stays there.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::MAX | Self::MIN, _) => self,
            (_, Self::MAX | Self::MIN) => other,
            _ => Self(self.0.saturating_add(other.0)),
        }
    }

    /// The difference. What lies beyond everything stays there.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        match (self, other) {
            (Self::MAX | Self::MIN, _) => self,
            (_, Self::MAX) => Self::MIN,
            (_, Self::MIN) => Self::MAX,
            _ => Self(self.0.saturating_sub(other.0)),
        }
    }

    /// The next whole number of units, or the nearest that fits.
    pub fn units_rounded_up(self) -> i64 {
        const UNIT: i128 = 1_000_000_000;
        let units = self.0.div_euclid(UNIT) + i128::from(self.0.rem_euclid(UNIT) != 0);
        let nearest = if units < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(units).unwrap_or(nearest)
    }

    /// The least whole number of units above it, or the nearest that fits: less than this is at
    /// most as much.
    pub fn next_unit(self) -> i64 {
        const UNIT: i128 = 1_000_000_000;
        let next = self.0.div_euclid(UNIT) + 1;
        i64::try_from(next).unwrap_or(if next < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether it stands for more or less than can be told.
    pub const fn is_saturated(self) -> bool {
        matches!(self, Self::MAX | Self::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::Nanos;
    use crate::units::Quantity;

    #[test]
    fn what_does_not_reach_the_next_unit_is_at_most_as_much() {
        let next = |text: &str| Nanos::from_quantity(&Quantity::parse(text).unwrap()).next_unit();
        assert_eq!(["0", "100", "100500m", "1n"].map(next), [1, 101, 101, 1]);
        assert_eq!(["-1", "-500m", "-1500m"].map(next), [0, 0, -1]);
        assert_eq!([Nanos::MAX.next_unit(), Nanos::MIN.next_unit()], [i64::MAX, i64::MIN]);
    }
}
