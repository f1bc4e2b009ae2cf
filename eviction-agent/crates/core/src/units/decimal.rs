//! Decimal numbers: of arbitrary precision for the few quantities that do not fit 64 bits, and in billionths
//! for comparisons.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

use crate::units::Quantity;

/// Sums with more digits than this keep only the larger operand: the kubelet would need gigabytes for
/// `1e2000000000 + 1`, and no node has values of that kind.
const MAX_SPAN: i64 = 20_000;

/// `number × 10^exponent`. The number has no trailing decimal zeros.
#[derive(Clone, Debug)]
pub(super) struct Decimal {
    number: BigInt,
    /// The number of decimal digits, 0 for zero.
    digits: i64,
    exponent: i64,
    /// The scale that Go's `inf.Dec` would have. It only affects `value`.
    scale: i64,
}

impl Decimal {
    /// Creates `number × 10^-scale`.
    pub(super) fn new(number: &BigInt, scale: i64) -> Self {
        Self::without_trailing_zeros(number, -scale, scale)
    }

    fn without_trailing_zeros(number: &BigInt, exponent: i64, scale: i64) -> Self {
        if *number == BigInt::ZERO {
            return Self { number: BigInt::ZERO, digits: 0, exponent: 0, scale };
        }
        let text = number.to_string();
        let zeros = length(&text) - length(text.trim_end_matches('0'));
        Self {
            number: number / power(zeros),
            digits: length(text.trim_start_matches('-')) - zeros,
            exponent: exponent + zeros,
            scale,
        }
    }

    pub(super) fn signum(&self) -> i32 {
        match self.number.sign() {
            Sign::Minus => -1,
            Sign::NoSign => 0,
            Sign::Plus => 1,
        }
    }

    pub(super) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    pub(super) fn negated(self) -> Self {
        Self { number: -self.number, ..self }
    }

    /// Returns the exponent of the place before the first digit.
    fn top(&self) -> i64 {
        self.digits + self.exponent
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_sign = self.signum().cmp(&other.signum());
        let by_top = self.top().cmp(&other.top());
        let by_top = if self.signum() < 0 { by_top.reverse() } else { by_top };
        // If the first digits are at the same place, neither number gets longer than the longer one of them.
        let bottom = self.exponent.min(other.exponent);
        by_sign.then(by_top).then_with(|| self.at(bottom).cmp(&other.at(bottom)))
    }

    /// Returns the sum, with the larger of both scales.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        let bottom = self.exponent.min(other.exponent);
        if self.top().max(other.top()) - bottom > MAX_SPAN {
            let larger = if self.top() < other.top() { other } else { self };
            return Self { scale, ..larger.clone() };
        }
        Self::without_trailing_zeros(&(self.at(bottom) + other.at(bottom)), bottom, scale)
    }

    /// Returns the number at a lower exponent.
    fn at(&self, exponent: i64) -> BigInt {
        &self.number * power(self.exponent - exponent)
    }

    /// Returns the number rounded away from zero to a multiple of `10^-places`.
    pub(super) fn rounded_up(&self, places: i64) -> Self {
        let drop = -places - self.exponent;
        if drop <= 0 {
            return Self { scale: places, ..self.clone() };
        }
        // The number has no trailing zeros, so there is always a remainder.
        let rounded = self.quotient(drop) + self.signum();
        Self::without_trailing_zeros(&rounded, -places, places)
    }

    /// Returns the number divided by a power of ten, rounded towards zero.
    fn quotient(&self, exponent: i64) -> BigInt {
        if exponent > self.digits { BigInt::ZERO } else { &self.number / power(exponent) }
    }

    /// Returns the digits and an exponent that is a multiple of three, without trailing zeros above it.
    pub(super) fn canonical(&self) -> (String, i64) {
        let down = self.exponent.rem_euclid(3);
        (self.at(self.exponent - down).to_string(), self.exponent - down)
    }

    /// Returns the digits and the power of 1024, for an integer that is short enough to be written out.
    pub(super) fn canonical_1024(&self) -> Option<(String, u32)> {
        if !self.is_integer() || self.top() > MAX_SPAN {
            return None;
        }
        let mut amount = self.at(0);
        let mut times = 0;
        while amount.sign() != Sign::NoSign && amount.trailing_zeros().is_some_and(|z| z >= 10) {
            amount >>= 10u8;
            times += 1;
        }
        Some((amount.to_string(), times))
    }

    /// Returns the exact number of billionths, if it is an integer and fits. Does not allocate.
    pub(super) fn as_nanos(&self) -> Option<i128> {
        let factor = 10i128.checked_pow(u32::try_from(self.exponent + 9).ok()?)?;
        i128::try_from(&self.number).ok()?.checked_mul(factor)
    }

    /// Returns Go's `scaledValue` including its overflows: a number that does not fit is truncated to its low bits.
    pub(super) fn value(&self) -> i64 {
        let low = self.low_bits(self.exponent + self.scale);
        if self.scale <= 0 {
            let factor = u32::try_from(-self.scale).ok().and_then(|n| 10i64.checked_pow(n));
            return low.wrapping_mul(factor.unwrap_or(i64::MIN));
        }
        let fits = self.signum() < 0 || self.top() + self.scale <= 18;
        let divisor = u32::try_from(self.scale).ok().and_then(|n| 10i64.checked_pow(n));
        match divisor {
            Some(divisor) if fits => low / divisor + i64::from(low % divisor != 0),
            _ if self.is_integer() => self.low_bits(self.exponent),
            // Rounds towards +∞.
            _ => low_word(&self.quotient(-self.exponent)).wrapping_add(i64::from(self.signum() > 0)),
        }
    }

    /// Returns the low 64 bits of `number × 10^shift`.
    fn low_bits(&self, shift: i64) -> i64 {
        // 10^64 has 64 trailing zero bits.
        let factor = match u32::try_from(shift) {
            Ok(shift) if shift < 64 => 10i64.wrapping_pow(shift),
            _ => 0,
        };
        low_word(&self.number).wrapping_mul(factor)
    }
}

/// Returns the low 64 bits in two's complement.
fn low_word(value: &BigInt) -> i64 {
    let magnitude = value.iter_u64_digits().next().unwrap_or(0).cast_signed();
    if value.sign() == Sign::Minus { magnitude.wrapping_neg() } else { magnitude }
}

fn length(digits: &str) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX / 4)
}

fn power(exponent: i64) -> BigInt {
    BigInt::from(10).pow(u32::try_from(exponent.max(0)).unwrap_or(u32::MAX))
}

pub(super) const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// A quantity in billionths, the finest unit of Kubernetes. A quantity beyond ±1.7 × 10^29 units becomes
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

    /// Converts a whole number of units.
    pub const fn from_units(units: i128) -> Self {
        Self(units.saturating_mul(NANOS_PER_UNIT))
    }

    /// Converts a quantity.
    pub fn from_quantity(quantity: &Quantity) -> Self {
        match quantity.as_nanos() {
            Some(nanos) => Self(nanos),
            None if quantity.signum() < 0 => Self::MIN,
            None => Self::MAX,
        }
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

    /// Rounds up to a whole number of units. A number that does not fit becomes the nearest `i64`.
    pub fn units_rounded_up(self) -> i64 {
        let units = self.0.div_euclid(NANOS_PER_UNIT) + i128::from(self.0.rem_euclid(NANOS_PER_UNIT) != 0);
        let nearest = if units < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(units).unwrap_or(nearest)
    }

    /// Returns whether the value is out of range.
    pub const fn is_saturated(self) -> bool {
        matches!(self, Self::MAX | Self::MIN)
    }
}
