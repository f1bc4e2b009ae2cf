//! Parses the text of a quantity: `ParseQuantity` of k8s.io/apimachinery v0.36.3.

use std::sync::Arc;

use super::{Format, Quantity, binary_suffixes, decimal_suffixes};
use crate::units::nanos::Nanos;

/// The maximum length of a text, because some texts are kept. The kubelet would parse longer ones, and need minutes
/// for that.
const MAX_LENGTH: usize = 10_000;

/// The number of decimal places that are kept.
const NANO_PLACES: i32 = 9;

/// The error for a text with anything but a sign, digits, a point and a suffix.
const WRONG_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The parts of a quantity's text.
struct Parts<'a> {
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
        let parts = split(text)?;
        let (exponent, mut format) = interpret(parts.suffix).ok_or("unable to parse quantity's suffix")?;
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
