//! Exact decimal quantities: `resource.Quantity` of k8s.io/apimachinery v0.36.3.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use num_bigint::{BigInt, BigUint};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::decimal::Decimal;
use crate::units::deserialize_text;

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
            Self::Scaled { value, scale } => Arc::new(Decimal::new(BigInt::from(*value), -i64::from(*scale))),
            Self::Decimal(decimal) => Arc::clone(decimal),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) => match x.cmp(y) {
                Ordering::Equal => a.cmp(b),
                Ordering::Greater => compare_scaled(*a, i64::from(*x) - i64::from(*y), *b),
                Ordering::Less => compare_scaled(*b, i64::from(*y) - i64::from(*x), *a).reverse(),
            },
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
            // Go negates without a sample of the smallest number, which stays what it is.
            && let Some((value, scale)) = add_scaled((*a, *x), (b.wrapping_neg(), *y))
        {
            return Self::Scaled { value, scale };
        }
        let negated = Decimal::clone(&other.decimal()).negated();
        Self::Decimal(Arc::new(self.decimal().plus(&negated)))
    }

    fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Scaled { value, scale: 0 } => Some(*value),
            Self::Scaled { value: 0, .. } => Some(0),
            Self::Scaled { value, scale } => {
                let factor = 10i64.checked_pow(scale.unsigned_abs())?;
                if *scale > 0 {
                    value.checked_mul(factor)
                } else {
                    (value % factor == 0).then(|| value / factor)
                }
            }
            Self::Decimal(decimal) => decimal.as_i64(),
        }
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

    /// Go's `ScaledValue(0)`.
    fn value(&self) -> i64 {
        match self {
            Self::Scaled { value, scale } if *scale < 0 => match 10i64.checked_pow(scale.unsigned_abs()) {
                Some(factor) => value / factor + i64::from(value % factor != 0) * value.signum(),
                None => value.signum(),
            },
            // What does not fit is cut to its low bits at some scales, and 0 at the others.
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

/// Compares `a × 10^shift` with `b`, for a positive shift.
fn compare_scaled(a: i64, shift: i64, b: i64) -> Ordering {
    match u32::try_from(shift) {
        Ok(shift) if shift <= 18 => (i128::from(a) * 10i128.pow(shift)).cmp(&i128::from(b)),
        // 10^19 is beyond every i64.
        _ if a == 0 => 0.cmp(&b),
        _ => a.cmp(&0),
    }
}

/// The sum of two scaled numbers at the lower scale, unless something does not fit.
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

/// Longer texts are refused; the kubelet would read them, and spend minutes on it.
const MAX_LENGTH: usize = 10_000;

/// Most decimal digits that always fit an `i64`.
const MAX_DIGITS: i64 = 18;

/// Nothing finer than this is kept.
const NANO: i32 = -9;

/// Why a text is no quantity. The texts are those of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Something else than sign, digits, point and suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// No digits.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// A suffix that does not exist.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// Longer than any sensible number; the kubelet has no such limit.
    #[error("quantity is longer than {MAX_LENGTH} characters")]
    Length,
}

/// A quantity's text, taken apart.
struct Parts<'a> {
    positive: bool,
    /// Sign, digits and point as they stand.
    value: &'a str,
    integer: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl Quantity {
    /// Reads a quantity: optional sign, digits with an optional point, and a suffix: none,
    /// `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or `e` or `E` with an integer.
    ///
    /// What is finer than 10⁻⁹ is rounded away from zero. Numbers with a binary suffix are
    /// capped at ±(2⁶³−1), others are not.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        if text.len() > MAX_LENGTH {
            return Err(QuantityError::Length);
        }
        if text == "0" {
            return Ok(Self { text: Some(Arc::from(text)), ..Self::ZERO });
        }
        let parts = split(text)?;
        let (exponent, format) = interpret(parts.suffix).ok_or(QuantityError::Suffix)?;
        match fast(text, &parts, exponent, format) {
            Some(quantity) => Ok(quantity),
            None => slow(&parts, exponent, format),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

/// The 64-bit representation, if the number is short enough for Go to choose it.
fn fast(text: &str, parts: &Parts<'_>, exponent: i32, format: Format) -> Option<Quantity> {
    let digits = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX / 4);
    let (integer, fraction) = (digits(parts.integer), digits(parts.fraction));
    let (precision, factor, scale) = match format {
        Format::DecimalExponent | Format::DecimalSi => (MAX_DIGITS - integer - fraction, 1, exponent),
        Format::BinarySi if fraction == 0 => {
            (14 - integer - i64::from(exponent * 3 / 10), 1i64 << exponent, 0)
        }
        Format::BinarySi => return None,
    };
    if precision < 0 {
        return None;
    }
    let scale = scale.wrapping_sub(i32::try_from(fraction).ok()?);
    if scale < NANO {
        return None;
    }
    let shifted = format!("{}{}", parts.integer, parts.fraction);
    let number: i64 = shifted.parse().ok()?;
    let product = number.checked_mul(factor)?;
    let keeps_text = match format {
        Format::BinarySi => number & 7 != 0,
        Format::DecimalExponent | Format::DecimalSi => {
            scale % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0')
        }
    };
    Some(Quantity {
        amount: Amount::Scaled { value: if parts.positive { product } else { -product }, scale },
        format,
        text: keeps_text.then(|| Arc::from(text)),
    })
}

/// Any precision, rounded and capped.
fn slow(parts: &Parts<'_>, exponent: i32, mut format: Format) -> Result<Quantity, QuantityError> {
    let unsigned = parts.value.trim_start_matches(['+', '-']);
    let (integer, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    if integer.is_empty() && fraction.is_empty() {
        return Err(QuantityError::Numeric);
    }
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let mut digits = format!("{integer}{fraction}");
    let scale = if format == Format::BinarySi {
        let number = BigUint::parse_bytes(digits.as_bytes(), 10).unwrap_or_default();
        digits = (number << exponent.unsigned_abs()).to_str_radix(10);
        places
    } else {
        places.wrapping_add(exponent.wrapping_neg())
    };
    let scale = i64::from(scale);
    let mut amount = Decimal::from_digits(false, &digits, -scale, scale);
    if amount.signum() != 0 {
        amount = amount.rounded_up(i64::from(-NANO));
    }
    if format == Format::BinarySi {
        let cap = Decimal::new(i64::MAX.into(), 0);
        if amount.compare(&cap).is_gt() {
            amount = cap;
        }
        if amount.signum() != 0 && amount.compare(&Decimal::new(1.into(), 0)).is_lt() {
            format = Format::DecimalSi;
        }
    }
    if !parts.positive {
        amount = amount.negated();
    }
    Ok(Quantity { amount: Amount::Decimal(Arc::new(amount)), format, text: None })
}

/// `parseQuantityString`: leading zeros are no part of the integer digits, and a suffix may
/// be any run of suffix letters, a sign and digits; what it means is decided later.
fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let bytes = text.as_bytes();
    let run =
        |from: usize, wanted: fn(&u8) -> bool| from + bytes[from..].iter().take_while(|b| wanted(b)).count();
    let start = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let mut parts =
        Parts { positive: bytes.first() != Some(&b'-'), value: "0", integer: "0", fraction: "", suffix: "" };
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
        return Err(QuantityError::Format);
    }
    parts.suffix = &text[at..];
    Ok(parts)
}

/// The exponent, of two for a binary suffix and of ten otherwise, and the format.
fn interpret(suffix: &str) -> Option<(i32, Format)> {
    use Format::{BinarySi, DecimalExponent, DecimalSi};
    Some(match suffix {
        "" => (0, DecimalSi),
        "n" => (-9, DecimalSi),
        "u" => (-6, DecimalSi),
        "m" => (-3, DecimalSi),
        "k" => (3, DecimalSi),
        "M" => (6, DecimalSi),
        "G" => (9, DecimalSi),
        "T" => (12, DecimalSi),
        "P" => (15, DecimalSi),
        "E" => (18, DecimalSi),
        "Ki" => (10, BinarySi),
        "Mi" => (20, BinarySi),
        "Gi" => (30, BinarySi),
        "Ti" => (40, BinarySi),
        "Pi" => (50, BinarySi),
        "Ei" => (60, BinarySi),
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            // Go keeps the low 32 bits only.
            (exponent as i32, DecimalExponent)
        }
    })
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

/// Digits and an exponent of ten that is a multiple of three.
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

/// Digits and an exponent of 1024, if the number is an integer.
fn canonical_1024(amount: &Amount) -> Option<(String, u32)> {
    let mut value = match amount {
        Amount::Scaled { .. } => match amount.as_i64() {
            // Go takes the factors out of the negated number, which does not exist.
            Some(i64::MIN) => return Some((i64::MIN.to_string(), 0)),
            Some(value) => value,
            None => return amount.decimal().canonical_1024(),
        },
        Amount::Decimal(decimal) => return decimal.canonical_1024(),
    };
    let mut times = 0;
    while value != 0 && value % 1024 == 0 {
        value /= 1024;
        times += 1;
    }
    Some((value.to_string(), times))
}

/// Beyond the table Go writes no suffix at all.
fn binary_suffix(times: u32) -> &'static str {
    match times {
        1 => "Ki",
        2 => "Mi",
        3 => "Gi",
        4 => "Ti",
        5 => "Pi",
        6 => "Ei",
        _ => "",
    }
}

/// Beyond the table Go writes no suffix at all: `1000E` becomes `1`.
fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
}
