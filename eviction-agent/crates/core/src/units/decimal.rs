//! Decimal numbers: of arbitrary precision for the few quantities that do not fit 64 bits, and in billionths
//! for comparisons.

use std::cmp::Ordering;

use num_bigint::{BigInt, BigUint, Sign};

use crate::units::Quantity;

/// Sums with more digits than this keep only the larger operand: the kubelet would need gigabytes for
/// `1e2000000000 + 1`, and no node has values of that kind.
const MAX_SPAN: i64 = 20_000;

/// `±magnitude × 10^exponent`. The magnitude has no trailing decimal zeros.
#[derive(Clone, Debug)]
pub(super) struct Decimal {
    negative: bool,
    magnitude: BigUint,
    digits: i64,
    exponent: i64,
    /// The scale that Go's `inf.Dec` would have. It only affects `value`.
    scale: i64,
}

impl Decimal {
    /// Creates `value × 10^-scale`.
    pub(super) fn new(value: BigInt, scale: i64) -> Self {
        let (sign, magnitude) = value.into_parts();
        Self::from_digits(sign == Sign::Minus, &magnitude.to_str_radix(10), -scale, scale)
    }

    /// Creates `±digits × 10^exponent`. Zero if `digits` contains anything but decimal digits.
    pub(super) fn from_digits(negative: bool, digits: &str, exponent: i64, scale: i64) -> Self {
        let kept = digits.trim_start_matches('0').trim_end_matches('0');
        let stripped = digits.len() - digits.trim_end_matches('0').len();
        let magnitude = BigUint::parse_bytes(kept.as_bytes(), 10).unwrap_or_default();
        if magnitude == BigUint::ZERO {
            return Self { negative: false, magnitude, digits: 0, exponent: 0, scale };
        }
        Self {
            negative,
            magnitude,
            digits: length(kept),
            exponent: exponent + i64::try_from(stripped).unwrap_or(i64::MAX / 4),
            scale,
        }
    }

    pub(super) fn signum(&self) -> i32 {
        match (self.magnitude == BigUint::ZERO, self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }

    pub(super) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    pub(super) fn negated(mut self) -> Self {
        self.negative = !self.negative && self.signum() != 0;
        self
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.signum().cmp(&other.signum()).then_with(|| match self.signum() {
            0 => Ordering::Equal,
            1 => self.compare_magnitude(other),
            _ => other.compare_magnitude(self),
        })
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        let top = (self.digits + self.exponent).cmp(&(other.digits + other.exponent));
        top.then_with(|| match self.exponent.cmp(&other.exponent) {
            Ordering::Equal => self.magnitude.cmp(&other.magnitude),
            // The leading digits are at the same place, so the shift is at most the number of digits of the
            // longer one.
            Ordering::Greater => {
                shifted(&self.magnitude, self.exponent - other.exponent).cmp(&other.magnitude)
            }
            Ordering::Less => self.magnitude.cmp(&shifted(&other.magnitude, other.exponent - self.exponent)),
        })
    }

    /// Returns the sum, with the larger of both scales.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        let bottom = match (self.signum(), other.signum()) {
            (0, _) => {
                return Self { scale, ..other.clone() };
            }
            (_, 0) => {
                return Self { scale, ..self.clone() };
            }
            _ => self.exponent.min(other.exponent),
        };
        let top = (self.digits + self.exponent).max(other.digits + other.exponent);
        if top - bottom > MAX_SPAN {
            let larger = match self.compare_magnitude(other) {
                Ordering::Less => other,
                _ => self,
            };
            return Self { scale, ..larger.clone() };
        }
        let sum = self.at(bottom) + other.at(bottom);
        let (sign, magnitude) = sum.into_parts();
        Self::from_digits(sign == Sign::Minus, &magnitude.to_str_radix(10), bottom, scale)
    }

    /// Returns the signed magnitude at a lower exponent.
    fn at(&self, exponent: i64) -> BigInt {
        let sign = if self.negative { Sign::Minus } else { Sign::Plus };
        BigInt::from_biguint(sign, shifted(&self.magnitude, self.exponent - exponent))
    }

    /// Returns the number rounded away from zero to a multiple of `10^-places`.
    pub(super) fn rounded_up(&self, places: i64) -> Self {
        let drop = -places - self.exponent;
        if self.signum() == 0 || drop <= 0 {
            return Self { scale: places, ..self.clone() };
        }
        let magnitude = if drop > self.digits {
            BigUint::from(1u8)
        } else {
            // The magnitude has no trailing zeros, so there is always a remainder.
            &self.magnitude / power(drop) + 1u8
        };
        Self::from_digits(self.negative, &magnitude.to_str_radix(10), -places, places)
    }

    /// Returns the digits and an exponent that is a multiple of three, without trailing zeros above it.
    pub(super) fn canonical(&self) -> (String, i64) {
        let down = self.exponent.rem_euclid(3);
        (self.at(self.exponent - down).to_string(), self.exponent - down)
    }

    /// Returns the digits and the power of 1024, for an integer that is short enough to be written out.
    pub(super) fn canonical_1024(&self) -> Option<(String, u32)> {
        if !self.is_integer() || self.digits + self.exponent > MAX_SPAN {
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

    /// Returns the exact integer, if the number is one and fits.
    pub(super) fn as_i64(&self) -> Option<i64> {
        if !self.is_integer() || self.digits + self.exponent > 19 {
            return None;
        }
        i64::try_from(self.at(0)).ok()
    }

    /// Returns the exact number of billionths, if it is an integer and fits.
    pub(super) fn as_nanos(&self) -> Option<i128> {
        if self.exponent < -9 || self.digits + self.exponent > 30 {
            return None;
        }
        i128::try_from(self.at(-9)).ok()
    }

    /// Returns Go's `scaledValue` including its overflows: a number that does not fit is truncated to its low bits.
    pub(super) fn value(&self) -> i64 {
        let low = self.low_bits(self.exponent + self.scale);
        if self.scale <= 0 {
            let factor = u32::try_from(-self.scale).ok().and_then(|n| 10i64.checked_pow(n));
            return low.wrapping_mul(factor.unwrap_or(i64::MIN));
        }
        let fits = self.negative || self.digits + self.exponent + self.scale <= 18;
        let divisor = u32::try_from(self.scale).ok().and_then(|n| 10i64.checked_pow(n));
        match divisor {
            Some(divisor) if fits => low / divisor + i64::from(low % divisor != 0),
            _ if self.is_integer() => self.low_bits(self.exponent),
            _ => {
                let quotient = if -self.exponent > self.digits {
                    0
                } else {
                    low_word(&(&self.magnitude / power(-self.exponent)))
                };
                // Rounds towards +∞.
                if self.negative { quotient.wrapping_neg() } else { quotient.wrapping_add(1) }
            }
        }
    }

    /// Returns the low 64 bits of `±magnitude × 10^shift`.
    fn low_bits(&self, shift: i64) -> i64 {
        // 10^64 has 64 trailing zero bits.
        let factor = match u32::try_from(shift) {
            Ok(shift) if shift < 64 => 10i64.wrapping_pow(shift),
            _ => 0,
        };
        let low = low_word(&self.magnitude).wrapping_mul(factor);
        if self.negative { low.wrapping_neg() } else { low }
    }
}

fn low_word(value: &BigUint) -> i64 {
    value.iter_u64_digits().next().unwrap_or(0).cast_signed()
}

fn length(digits: &str) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX / 4)
}

fn power(exponent: i64) -> BigUint {
    BigUint::from(10u8).pow(u32::try_from(exponent.max(0)).unwrap_or(u32::MAX))
}

fn shifted(magnitude: &BigUint, by: i64) -> BigUint {
    magnitude * power(by)
}

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
        Self(units.saturating_mul(1_000_000_000))
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
        const UNIT: i128 = 1_000_000_000;
        let units = self.0.div_euclid(UNIT) + i128::from(self.0.rem_euclid(UNIT) != 0);
        let nearest = if units < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(units).unwrap_or(nearest)
    }

    /// Returns whether the value is out of range.
    pub const fn is_saturated(self) -> bool {
        matches!(self, Self::MAX | Self::MIN)
    }
}
