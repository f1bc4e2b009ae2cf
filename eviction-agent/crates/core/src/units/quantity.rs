//! Exact decimal quantities: `resource.Quantity` of k8s.io/apimachinery v0.36.3.

mod parse;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use num_bigint::BigInt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::decimal::{Decimal, NANOS_PER_UNIT};
use crate::units::deserialize_text;

/// The three formats of a quantity. A sum keeps the format of its left side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Powers of 1024: `Ki` to `Ei`.
    BinarySi,
    /// A power of ten: `e6`.
    DecimalExponent,
    /// Powers of 1000: `n` to `E`.
    DecimalSi,
}

/// An exact decimal number with the format in which it was written.
///
/// As in Go, it has two representations: `i64 × 10^i32`, and arbitrary precision for numbers that do not fit.
/// Equality and order are those of the numbers. A text that was parsed is written again unchanged, wherever
/// the kubelet does so.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    text: Option<Arc<str>>,
}

impl Quantity {
    /// Zero, written `0`.
    pub const ZERO: Self = Self::from_i64(0, Format::DecimalSi);

    /// Creates an integer.
    pub const fn from_i64(value: i64, format: Format) -> Self {
        Self { amount: Amount::Scaled { value, scale: 0 }, format, text: None }
    }

    /// Returns the format in which the quantity is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns whether the quantity is zero.
    pub fn is_zero(&self) -> bool {
        self.amount.signum() == 0
    }

    /// Returns −1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.amount.signum()
    }

    /// Adds a quantity. Zero takes the format of the other quantity. The text is dropped.
    pub fn add(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount);
    }

    /// Subtracts a quantity, with the rules of [`Quantity::add`].
    pub fn sub(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.minus(&other.amount);
    }

    /// Returns the number, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.amount.as_i64()
    }

    /// Returns the exact number of billionths. None beyond ±1.7 × 10^29 units, or if the number is finer.
    pub fn as_nanos(&self) -> Option<i128> {
        self.amount.as_nanos()
    }

    /// Returns Go's `Value()`: the number rounded up to an integer, away from zero. If it does not fit, the
    /// result is as wrong as in Go; see [`Quantity::as_i64`] for a correct one.
    pub fn value(&self) -> i64 {
        self.amount.value()
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.compare(&other.amount)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity such as \"500Mi\"", Self::parse)
    }
}

/// `value × 10^scale`, or a decimal of any precision.
#[derive(Clone, Debug)]
enum Amount {
    Scaled { value: i64, scale: i32 },
    Decimal(Arc<Decimal>),
}

impl Amount {
    fn signum(&self) -> i32 {
        match self {
            Self::Scaled { value, .. } => value.signum() as i32,
            Self::Decimal(decimal) => decimal.signum(),
        }
    }

    fn decimal(&self) -> Arc<Decimal> {
        match self {
            Self::Scaled { value, scale } => {
                Arc::new(Decimal::new(&BigInt::from(*value), -i64::from(*scale)))
            }
            Self::Decimal(decimal) => Arc::clone(decimal),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) if x == y => a.cmp(b),
            _ => self.decimal().compare(&other.decimal()),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        if let (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) = (self, other)
            && let Some((value, scale)) = add_scaled((*a, *x), (*b, *y))
        {
            return Self::Scaled { value, scale };
        }
        Self::Decimal(Arc::new(self.decimal().plus(&other.decimal())))
    }

    fn minus(&self, other: &Self) -> Self {
        if let (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) =
            (self, other)
            // Go does not check for the smallest number before it negates. That number stays as it is.
            && let Some((value, scale)) = add_scaled((*a, *x), (b.wrapping_neg(), *y))
        {
            return Self::Scaled { value, scale };
        }
        let negated = Decimal::clone(&other.decimal()).negated();
        Self::Decimal(Arc::new(self.decimal().plus(&negated)))
    }

    fn as_i64(&self) -> Option<i64> {
        let nanos = self.as_nanos().filter(|nanos| nanos % NANOS_PER_UNIT == 0)?;
        i64::try_from(nanos / NANOS_PER_UNIT).ok()
    }

    fn as_nanos(&self) -> Option<i128> {
        match self {
            Self::Scaled { value: 0, .. } => Some(0),
            Self::Scaled { value, scale } => {
                let shift = scale.checked_add(9)?;
                let factor = 10i128.checked_pow(shift.unsigned_abs())?;
                if shift >= 0 {
                    i128::from(*value).checked_mul(factor)
                } else {
                    (i128::from(*value) % factor == 0).then(|| i128::from(*value) / factor)
                }
            }
            Self::Decimal(decimal) => decimal.as_nanos(),
        }
    }

    /// Returns Go's `ScaledValue(0)`.
    fn value(&self) -> i64 {
        match self {
            Self::Scaled { value, scale } if *scale < 0 => match 10i64.checked_pow(scale.unsigned_abs()) {
                Some(factor) => value / factor + i64::from(value % factor != 0) * value.signum(),
                None => value.signum(),
            },
            // A number that does not fit is truncated to its low bits at some scales, and is 0 at the others.
            Self::Scaled { value, scale } => match (self.as_i64(), scale) {
                (Some(exact), _) => exact,
                (None, 1 | 2 | 3 | 6 | 9) if *value != i64::MIN => {
                    value.wrapping_mul(10i64.pow(scale.unsigned_abs()))
                }
                (None, _) => 0,
            },
            Self::Decimal(decimal) => decimal.value(),
        }
    }
}

/// Returns the sum of two scaled numbers at the lower scale. None if something does not fit.
fn add_scaled(a: (i64, i32), b: (i64, i32)) -> Option<(i64, i32)> {
    if b.0 == 0 {
        return Some(a);
    }
    if a.0 == 0 {
        return Some(b);
    }
    let (high, low) = if a.1 >= b.1 { (a, b) } else { (b, a) };
    let shift = u32::try_from(i64::from(high.1) - i64::from(low.1)).ok()?;
    let raised = high.0.checked_mul(10i64.checked_pow(shift)?)?;
    Some((raised.checked_add(low.0)?, low.1))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi
            && self.is_beyond_1024()
            && let Some((digits, times)) = canonical_1024(&self.amount)
        {
            return write!(f, "{digits}{}", binary_suffix(times));
        }
        let (digits, exponent) = canonical(&self.amount);
        match (self.format, exponent) {
            (Format::DecimalExponent, 0) => f.write_str(&digits),
            (Format::DecimalExponent, _) => write!(f, "{digits}e{exponent}"),
            _ => write!(f, "{digits}{}", decimal_suffix(exponent)),
        }
    }
}

impl Quantity {
    fn is_beyond_1024(&self) -> bool {
        const LIMIT: Quantity = Quantity::from_i64(1024, Format::BinarySi);
        const NEGATIVE: Quantity = Quantity::from_i64(-1024, Format::BinarySi);
        *self >= LIMIT || *self <= NEGATIVE
    }
}

/// Returns the digits and an exponent of ten that is a multiple of three.
fn canonical(amount: &Amount) -> (String, i32) {
    match amount {
        Amount::Scaled { value, scale } => {
            let (mut value, mut exponent) = (i128::from(*value), *scale);
            while value != 0 && value % 10 == 0 {
                value /= 10;
                // Exponents wrap around in Go.
                exponent = exponent.wrapping_add(1);
            }
            let down = exponent.rem_euclid(3);
            value *= 10i128.pow(down.unsigned_abs());
            (value.to_string(), exponent.wrapping_sub(down))
        }
        Amount::Decimal(decimal) => {
            let (digits, exponent) = decimal.canonical();
            (digits, exponent as i32)
        }
    }
}

/// Returns the digits and an exponent of 1024, if the number is an integer.
fn canonical_1024(amount: &Amount) -> Option<(String, u32)> {
    match amount {
        // Go takes the factors out of the negated number, which does not exist in this case.
        Amount::Scaled { .. } if amount.as_i64() == Some(i64::MIN) => Some((i64::MIN.to_string(), 0)),
        _ => amount.decimal().canonical_1024(),
    }
}

/// Returns the binary suffixes, each with its exponent of two.
fn binary_suffixes() -> impl Iterator<Item = (i32, &'static str)> {
    (0..).step_by(10).zip(["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// Returns the decimal suffixes, each with its exponent of ten.
fn decimal_suffixes() -> impl Iterator<Item = (i32, &'static str)> {
    (-9..).step_by(3).zip(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"])
}

/// Returns the suffix. Beyond the table Go writes none.
fn binary_suffix(times: u32) -> &'static str {
    binary_suffixes().nth(times as usize).map_or("", |(_, suffix)| suffix)
}

/// Returns the suffix. Beyond the table Go writes none: `1000E` becomes `1`.
fn decimal_suffix(exponent: i32) -> &'static str {
    decimal_suffixes().find(|(power, _)| *power == exponent).map_or("", |(_, suffix)| suffix)
}
