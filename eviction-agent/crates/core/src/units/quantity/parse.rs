//! Parses the text of a quantity: `ParseQuantity` of k8s.io/apimachinery v0.36.3.

use std::sync::Arc;

use num_bigint::BigInt;

use super::{Amount, Format, Quantity, binary_suffixes, decimal_suffixes};
use crate::units::decimal::Decimal;

/// The maximum length of a text. The kubelet would parse longer texts, and need minutes for that.
const MAX_LENGTH: usize = 10_000;

/// The largest number of decimal digits that always fit an `i64`.
const MAX_DIGITS: i64 = 18;

/// The finest scale that is kept.
const NANO: i32 = -9;

/// The error for a text with anything but a sign, digits, a point and a suffix.
const WRONG_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The parts of a quantity's text.
struct Parts<'a> {
    positive: bool,
    /// The sign, the digits and the point, as written.
    value: &'a str,
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
        if text == "0" {
            return Ok(Self { text: Some(Arc::from(text)), ..Self::ZERO });
        }
        let parts = split(text)?;
        let (exponent, format) = interpret(parts.suffix).ok_or("unable to parse quantity's suffix")?;
        match fast(text, &parts, exponent, format) {
            Some(quantity) => Ok(quantity),
            None => slow(&parts, exponent, format),
        }
    }
}

/// Returns the 64-bit representation, if the number is short enough for Go to choose it.
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

/// Returns the representation of arbitrary precision, rounded and limited.
fn slow(parts: &Parts<'_>, exponent: i32, mut format: Format) -> Result<Quantity, String> {
    let unsigned = parts.value.trim_start_matches(['+', '-']);
    let (integer, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    if integer.is_empty() && fraction.is_empty() {
        return Err("unable to parse numeric part of quantity".to_owned());
    }
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    // Always a number: `split` accepts only digits.
    let number: BigInt = format!("{integer}{fraction}").parse().unwrap_or_default();
    let (number, scale) = match format {
        Format::BinarySi => (number << exponent.unsigned_abs(), places),
        Format::DecimalExponent | Format::DecimalSi => (number, places.wrapping_sub(exponent)),
    };
    let mut amount = Decimal::new(&number, scale.into());
    if amount.signum() != 0 {
        amount = amount.rounded_up(i64::from(-NANO));
    }
    if format == Format::BinarySi {
        let cap = Decimal::new(&i64::MAX.into(), 0);
        if amount.compare(&cap).is_gt() {
            amount = cap;
        }
        if amount.signum() != 0 && amount.compare(&Decimal::new(&1.into(), 0)).is_lt() {
            format = Format::DecimalSi;
        }
    }
    if !parts.positive {
        amount = amount.negated();
    }
    Ok(Quantity { amount: Amount::Decimal(Arc::new(amount)), format, text: None })
}

/// `parseQuantityString`: leading zeros do not count as integer digits, and a suffix may be any run of suffix
/// letters, a sign and digits. The meaning of the suffix is determined later.
fn split(text: &str) -> Result<Parts<'_>, String> {
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
        return Err(WRONG_FORMAT.to_owned());
    }
    parts.suffix = &text[at..];
    Ok(parts)
}

/// Returns the exponent, of two for a binary suffix and of ten otherwise, and the format.
fn interpret(suffix: &str) -> Option<(i32, Format)> {
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
