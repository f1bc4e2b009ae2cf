//! Decimal quantities, `resource.Quantity` of k8s.io/apimachinery v0.36.3, and the numbers in billionths that every
//! comparison of the engine uses.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// The maximum length of a text, because some texts are kept. The kubelet would parse longer ones, and need minutes
/// for that.
const MAX_LENGTH: usize = 10_000;

/// The number of decimal places that are kept.
const NANO_PLACES: i32 = 9;

/// The error for a text with anything but a sign, digits, a point and a suffix.
const WRONG_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The parts of a quantity's text.
struct QuantityParts<'a> {
    positive: bool,
    /// The sign, the digits and the point, as written.
    value: &'a str,
    /// The digits before the point, without leading zeros, but at least one digit.
    integer: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl Quantity {
    /// Parses a quantity: an optional sign, digits with an optional point, and a suffix: none,
    /// `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or `e` or `E` with an integer.
    ///
    /// Numbers finer than 10⁻⁹ are rounded away from zero. Numbers with a binary suffix are limited to
    /// ±(2⁶³−1), others are not.
    ///
    /// # Errors
    /// The message of Kubernetes, if the text has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err(WRONG_FORMAT.to_owned());
        }
        if text.len() > MAX_LENGTH {
            return Err(format!("quantity is longer than {MAX_LENGTH} characters"));
        }
        let parts = split_parts(text)?;
        let (exponent, mut format) = parse_suffix(parts.suffix).ok_or("unable to parse quantity's suffix")?;
        let digits = format!("{}{}", parts.integer, parts.fraction);
        let places = i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX);
        let (factor, scale) = match format {
            Format::BinarySi => (1u64 << exponent, places),
            // Exponents wrap around in Go.
            Format::DecimalExponent | Format::DecimalSi => (1, places.wrapping_sub(exponent)),
        };
        let mut nanos = in_nanos(&times(&digits, factor), scale);
        // Go parses a number that surely fits 64 bits in another way. Then the text may have no digits, and may
        // be kept.
        let (is_short, is_kept) = match format {
            Format::BinarySi => (
                places == 0 && digits.len() + exponent.unsigned_abs() as usize * 3 / 10 <= 14,
                digits.parse().is_ok_and(|number: u64| !number.is_multiple_of(8)),
            ),
            Format::DecimalExponent | Format::DecimalSi => (
                digits.len() <= 18 && exponent.wrapping_sub(places) >= -NANO_PLACES,
                scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
            ),
        };
        if !is_short && !parts.value.contains(|c: char| c.is_ascii_digit()) {
            return Err("unable to parse numeric part of quantity".to_owned());
        }
        if format == Format::BinarySi {
            nanos = nanos.min(Nanos::from_units(i64::MAX.into()));
            if (Nanos::new(1)..Nanos::from_units(1)).contains(&nanos) {
                format = Format::DecimalSi;
            }
        }
        if !parts.positive {
            nanos = Nanos::ZERO.minus(nanos);
        }
        let text = (is_short && is_kept || nanos.is_saturated()).then(|| Arc::from(text));
        Ok(Self { nanos, format, text })
    }
}

/// Returns the digits of a product.
fn times(digits: &str, factor: u64) -> String {
    let mut carry = 0;
    let mut low = Vec::with_capacity(digits.len());
    for digit in digits.bytes().rev() {
        carry += u64::from(digit - b'0') * factor;
        low.push(char::from(b'0' + (carry % 10) as u8));
        carry /= 10;
    }
    let low: String = low.into_iter().rev().collect();
    format!("{carry}{low}")
}

/// Returns `digits × 10^-scale`, rounded up.
fn in_nanos(digits: &str, scale: i32) -> Nanos {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Nanos::ZERO;
    }
    let shift = i64::from(NANO_PLACES) - i64::from(scale);
    let dropped = usize::try_from(-shift).unwrap_or(0);
    let (kept, dropped) = digits.split_at(digits.len().saturating_sub(dropped));
    let number = if kept.is_empty() { Some(0) } else { kept.parse::<i128>().ok() };
    let factor = u32::try_from(shift).map_or(Some(1), |shift| 10i128.checked_pow(shift));
    let product = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    let rounded = product.and_then(|product| product.checked_add(dropped.contains(|c| c != '0').into()));
    rounded.map_or(Nanos::MAX, Nanos::new)
}

/// `parseQuantityString`: leading zeros do not count as integer digits, and a suffix may be any run of suffix
/// letters, a sign and digits. The meaning of the suffix is determined later.
fn split_parts(text: &str) -> Result<QuantityParts<'_>, String> {
    let bytes = text.as_bytes();
    let run =
        |from: usize, wanted: fn(&u8) -> bool| from + bytes[from..].iter().take_while(|b| wanted(b)).count();
    let start = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let mut parts = QuantityParts {
        positive: bytes.first() != Some(&b'-'),
        value: "0",
        integer: "0",
        fraction: "",
        suffix: "",
    };
    let first = run(start, |b| *b == b'0');
    if first == bytes.len() {
        return Ok(parts);
    }
    let mut at = run(first, u8::is_ascii_digit);
    if at > first {
        parts.integer = &text[first..at];
    }
    if bytes.get(at) == Some(&b'.') {
        let end = run(at + 1, u8::is_ascii_digit);
        parts.fraction = &text[at + 1..end];
        at = end;
    }
    parts.value = &text[..at];
    let letters = run(at, |b| b"eEinumkKMGTP".contains(b));
    let sign = letters + usize::from(matches!(bytes.get(letters), Some(b'+' | b'-')));
    if run(sign, u8::is_ascii_digit) != bytes.len() {
        return Err(WRONG_FORMAT.to_owned());
    }
    parts.suffix = &text[at..];
    Ok(parts)
}

/// Returns the exponent, of two for a binary suffix and of ten otherwise, and the format.
fn parse_suffix(suffix: &str) -> Option<(i32, Format)> {
    let is_wanted = |(_, known): &(i32, &str)| *known == suffix;
    if let Some((exponent, _)) = decimal_suffixes().find(is_wanted) {
        return Some((exponent, Format::DecimalSi));
    }
    if let Some((exponent, _)) = binary_suffixes().find(is_wanted) {
        return Some((exponent, Format::BinarySi));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Go keeps only the low 32 bits.
    Some((exponent as i32, Format::DecimalExponent))
}

const NANOS_PER_UNIT: i128 = 1_000_000_000;

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
