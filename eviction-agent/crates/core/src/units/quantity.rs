//! Decimal quantities: `resource.Quantity` of k8s.io/apimachinery v0.36.3.

mod parse;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::deserialize_text;
use crate::units::nanos::{NANOS_PER_UNIT, Nanos};

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

/// A decimal number with the format in which it was written.
///
/// Equality and order are those of the numbers. A text that was parsed is written again unchanged, wherever
/// the kubelet does so, and if the number is out of the range of [`Nanos`].
#[derive(Clone, Debug)]
pub struct Quantity {
    nanos: Nanos,
    format: Format,
    text: Option<Arc<str>>,
}

impl Quantity {
    /// Zero, written `0`.
    pub const ZERO: Self = Self::from_i64(0, Format::DecimalSi);

    /// Creates an integer.
    pub const fn from_i64(value: i64, format: Format) -> Self {
        Self { nanos: Nanos::from_units(value as i128), format, text: None }
    }

    /// Returns the number.
    pub const fn nanos(&self) -> Nanos {
        self.nanos
    }

    /// Returns the format in which the quantity is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns whether the quantity is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == Nanos::ZERO
    }

    /// Returns −1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.nanos.get().signum() as i32
    }

    /// Adds a quantity. Zero takes the format of the other quantity. The text is dropped. If the sum is out of
    /// range, the larger operand stays as it was written.
    pub fn add(&mut self, other: &Self) {
        let format = if self.is_zero() { other.format } else { self.format };
        let nanos = self.nanos.plus(other.nanos);
        if !nanos.is_saturated() {
            *self = Self { nanos, format, text: None };
        } else if self.nanos.get().unsigned_abs() < other.nanos.get().unsigned_abs() {
            *self = Self { format, ..other.clone() };
        }
    }

    /// Returns the number, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        let nanos = self.nanos.get();
        let is_whole = nanos % NANOS_PER_UNIT == 0;
        i64::try_from(nanos / NANOS_PER_UNIT).ok().filter(|_| is_whole)
    }

    /// Returns the number rounded up to an integer. A number that does not fit becomes the nearest `i64`.
    pub fn value(&self) -> i64 {
        self.nanos.units_rounded_up()
    }

    /// Returns a number and an exponent of ten that is a multiple of three. The number is not zero.
    fn in_powers_of_1000(&self) -> (i128, i32) {
        let (mut number, mut exponent) = (self.nanos.get(), -9_i32);
        while number % 10 == 0 {
            number /= 10;
            exponent += 1;
        }
        let down = exponent.rem_euclid(3);
        (number * 10i128.pow(down.unsigned_abs()), exponent - down)
    }

    /// Returns a number and an exponent of 1024. None for a fraction, and below 1024.
    fn in_powers_of_1024(&self) -> Option<(i128, usize)> {
        let nanos = self.nanos.get();
        let (mut number, mut exponent) = (nanos / NANOS_PER_UNIT, 0);
        if nanos % NANOS_PER_UNIT != 0 || number.abs() < 1024 {
            return None;
        }
        // Go takes the factors out of the negated number, which does not exist in this case.
        let is_lowest = number == i128::from(i64::MIN);
        while number % 1024 == 0 && !is_lowest {
            number /= 1024;
            exponent += 1;
        }
        Some((number, exponent))
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
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
        self.nanos.cmp(&other.nanos)
    }
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
            && let Some((number, exponent)) = self.in_powers_of_1024()
        {
            return write!(f, "{number}{}", binary_suffix(exponent));
        }
        match (self.format, self.in_powers_of_1000()) {
            (Format::DecimalExponent, (number, 0)) => write!(f, "{number}"),
            (Format::DecimalExponent, (number, exponent)) => write!(f, "{number}e{exponent}"),
            (_, (number, exponent)) => write!(f, "{number}{}", decimal_suffix(exponent)),
        }
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

/// Returns the binary suffixes, each with its exponent of two.
fn binary_suffixes() -> impl Iterator<Item = (i32, &'static str)> {
    (0..).step_by(10).zip(["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// Returns the decimal suffixes, each with its exponent of ten.
fn decimal_suffixes() -> impl Iterator<Item = (i32, &'static str)> {
    (-9..).step_by(3).zip(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"])
}

/// Returns the suffix for an exponent of 1024. Beyond the table Go writes none.
fn binary_suffix(exponent: usize) -> &'static str {
    binary_suffixes().nth(exponent).map_or("", |(_, suffix)| suffix)
}

/// Returns the suffix. Beyond the table Go writes none: `1000E` becomes `1`.
fn decimal_suffix(exponent: i32) -> &'static str {
    decimal_suffixes().find(|(power, _)| *power == exponent).map_or("", |(_, suffix)| suffix)
}
