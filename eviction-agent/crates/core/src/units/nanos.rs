//! Numbers in billionths, which every comparison of the engine uses.

pub(super) const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// A number in billionths, the finest unit of Kubernetes. A number beyond ±1.7 × 10^29 units becomes
/// [`Nanos::MAX`] or [`Nanos::MIN`]. Both are beyond every value of a node, so a comparison with a value is
/// still exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(i128);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// Larger than any value.
    pub const MAX: Self = Self(i128::MAX);
    /// Smaller than any value.
    pub const MIN: Self = Self(i128::MIN);

    /// Creates a number from billionths.
    pub const fn new(nanos: i128) -> Self {
        Self(nanos)
    }

    /// Converts a whole number of units.
    pub const fn from_units(units: i128) -> Self {
        Self(units.saturating_mul(NANOS_PER_UNIT))
    }

    /// Returns the billionths.
    pub const fn get(self) -> i128 {
        self.0
    }

    /// Returns the sum. A value out of range stays out of range.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::MAX | Self::MIN, _) => self,
            (_, Self::MAX | Self::MIN) => other,
            _ => Self(self.0.saturating_add(other.0)),
        }
    }

    /// Returns the difference. A value out of range stays out of range.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        match (self, other) {
            (Self::MAX | Self::MIN, _) => self,
            (_, Self::MAX) => Self::MIN,
            (_, Self::MIN) => Self::MAX,
            _ => Self(self.0.saturating_sub(other.0)),
        }
    }

    /// Rounds down to a whole number of units.
    pub const fn units_rounded_down(self) -> i128 {
        self.0.div_euclid(NANOS_PER_UNIT)
    }

    /// Rounds up to a whole number of units. A number that does not fit becomes the nearest `i64`.
    pub fn units_rounded_up(self) -> i64 {
        let is_fraction = self.0.rem_euclid(NANOS_PER_UNIT) != 0;
        nearest_i64(self.units_rounded_down() + i128::from(is_fraction))
    }

    /// Returns whether the value is out of range.
    pub(super) const fn is_saturated(self) -> bool {
        matches!(self, Self::MAX | Self::MIN)
    }
}

/// Converts a number. One that does not fit becomes the nearest `i64`.
pub(crate) fn nearest_i64(number: i128) -> i64 {
    let nearest = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(nearest)
}
