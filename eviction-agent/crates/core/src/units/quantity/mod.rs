//! Exact decimal quantities: `resource.Quantity` of k8s.io/apimachinery v0.36.3.

mod amount;
mod parse;
#[cfg(test)]
mod tests;
mod write;

use std::cmp::Ordering;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::deserialize_text;
use amount::Amount;
pub use parse::QuantityError;

/// The three ways of writing a quantity. A sum keeps the format of its left side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Powers of 1024: `Ki` to `Ei`.
    BinarySi,
    /// A power of ten: `e6`.
    DecimalExponent,
    /// Powers of 1000: `n` to `E`.
    DecimalSi,
}

/// An exact decimal number with the format it was written in.
///
/// It has two representations, as in Go: `i64 × 10^i32`, and arbitrary precision for what
/// does not fit. Equality and order are those of the numbers; a text that was read is
/// written again as it was, wherever the kubelet does so.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    text: Option<Arc<str>>,
}

impl Quantity {
    /// Zero, written `0`.
    pub const ZERO: Self = Self::from_i64(0, Format::DecimalSi);

    /// An integer.
    pub const fn from_i64(value: i64, format: Format) -> Self {
        Self { amount: Amount::Scaled { value, scale: 0 }, format, text: None }
    }

    /// The format it is written in.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.amount.signum() == 0
    }

    /// −1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.amount.signum()
    }

    /// Compares the numbers, exactly.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.amount.compare(&other.amount)
    }

    /// The sum. A zero takes over the other's format. The text is forgotten.
    pub fn add(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount);
    }

    /// The difference, with the rules of [`Quantity::add`].
    pub fn sub(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.minus(&other.amount);
    }

    /// The number, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.amount.as_i64()
    }

    /// The number in billionths, exactly; nothing beyond ±1.7 × 10^29 units, or finer.
    pub fn as_nanos(&self) -> Option<i128> {
        self.amount.as_nanos()
    }

    /// Go's `Value()`: rounded up to an integer, away from zero. What does not fit is
    /// garbage there, and the same garbage here; see [`Quantity::as_i64`] for an honest answer.
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
        self.compare(other) == Ordering::Equal
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
        self.compare(other)
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
