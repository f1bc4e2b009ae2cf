//! The values of thresholds: quantities, and percentages of a capacity as Go parses them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::text::split_sign;
use crate::units::{Format, Nanos, Quantity, deserialize_text, quote};

/// The value of a threshold or of a minimum reclaim: absolute, or a share of the capacity.
///
/// Values are compared as in the kubelet's `compareThresholdValue`: quantities as numbers, shares as floats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ThresholdValue {
    /// An absolute value.
    Quantity(Quantity),
    /// A share of the capacity, where 1 is the whole.
    Percentage(f32),
}

impl ThresholdValue {
    /// Parses a quantity, or a percentage of any size.
    ///
    /// # Errors
    /// The cause, if the text is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.ends_with('%') {
            true => parse_percentage(text).map(Self::Percentage),
            false => Quantity::parse(text).map(Self::Quantity),
        }
    }

    /// Returns the value as in a configuration. A share is written in percent, with the digits that binary32
    /// distinguishes.
    pub fn configured(&self) -> String {
        match self {
            Self::Quantity(quantity) => quantity.to_string(),
            Self::Percentage(share) => {
                let percent = format!("{share}e2").parse::<f64>();
                // Infinity and NaN have no exponent.
                percent.map_or_else(|_| format!("{share}%"), |percent| format!("{percent}%"))
            }
        }
    }

    /// Returns the absolute value for a capacity, for comparisons.
    pub fn nanos(&self, capacity: i64) -> Nanos {
        match self {
            Self::Quantity(quantity) => quantity.nanos(),
            Self::Percentage(_) => self.quantity(capacity).nanos(),
        }
    }

    /// Returns the absolute value for a capacity: `GetThresholdQuantity`. For a share, the quantity has the
    /// binary format, whatever the signal.
    pub fn quantity(&self, capacity: i64) -> Quantity {
        match self {
            Self::Quantity(quantity) => quantity.clone(),
            Self::Percentage(share) => {
                let value = truncate(capacity as f64 * f64::from(*share));
                Quantity::from_i64(value, Format::BinarySi)
            }
        }
    }
}

/// Converts a float as Go does on amd64: a value that no `i64` can hold, including NaN, becomes the smallest one.
fn truncate(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&value) { value as i64 } else { i64::MIN }
}

/// Parses `TEXT%` as a share in binary32: `parsePercentage`. All trailing `%` are removed.
///
/// # Errors
/// Go's message, if the rest is not a float in Go's notation, or larger than any binary32.
pub fn parse_percentage(text: &str) -> Result<f32, String> {
    Ok(parse_f32(text.trim_end_matches('%'))? / 100.0)
}

/// Parses a decimal or hexadecimal float, `inf`, `infinity` or `nan`, rounded to binary32.
fn parse_f32(text: &str) -> Result<f32, String> {
    if let Some(value) = special(text) {
        return Ok(value);
    }
    let value =
        if hexadecimal_digits(text).is_some() { parse_hexadecimal(text) } else { parse_decimal(text) };
    let problem = match value {
        None => "invalid syntax",
        Some(value) if value.is_infinite() => "value out of range",
        Some(value) => return Ok(value),
    };
    Err(format!("strconv.ParseFloat: parsing {}: {problem}", quote(text)))
}

/// Parses `nan`, `inf` or `infinity`. Only infinity may have a sign.
fn special(text: &str) -> Option<f32> {
    if text.eq_ignore_ascii_case("nan") {
        return Some(f32::NAN);
    }
    let (negative, rest) = split_sign(text);
    let infinite = rest.eq_ignore_ascii_case("inf") || rest.eq_ignore_ascii_case("infinity");
    infinite.then_some(if negative { f32::NEG_INFINITY } else { f32::INFINITY })
}

/// Returns the text after `0x`. None if there is only the prefix.
fn hexadecimal_digits(text: &str) -> Option<&str> {
    let rest = split_sign(text).1;
    let digits = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"))?;
    (!digits.is_empty()).then_some(digits)
}

fn parse_decimal(text: &str) -> Option<f32> {
    let rest = split_sign(text).1;
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (rest, None),
    };
    let well_formed = is_mantissa(mantissa, u8::is_ascii_digit)
        && exponent.is_none_or(is_exponent)
        && underscores_separate_digits(rest);
    // Both languages round to the nearest value, so the standard library gives the same result as Go.
    well_formed.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// Parses `0x`, hexadecimal digits with an optional point, and a binary exponent, which is required.
fn parse_hexadecimal(text: &str) -> Option<f32> {
    let (mantissa, exponent) = hexadecimal_digits(text)?.split_once(['p', 'P'])?;
    let well_formed = is_mantissa(mantissa, u8::is_ascii_hexdigit)
        && is_exponent(exponent)
        && underscores_separate_digits(split_sign(text).1);
    if !well_formed {
        return None;
    }
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // The leading digits, whose last bit is also set if any digit after them is not zero. These 49 to 52 bits are
    // exact in binary64, and are rounded once, to the 24 bits of binary32.
    let mut leading = 0u64;
    let mut power = exponent_of(exponent);
    for (digits, step) in [(integer, 0), (fraction, -4)] {
        for digit in digits.chars().filter_map(|c| c.to_digit(16)) {
            if leading < 1 << 48 {
                leading = leading << 4 | u64::from(digit);
                power += step;
            } else {
                leading |= u64::from(digit != 0);
                power += step + 4;
            }
        }
    }
    // Any power beyond these is beyond binary32 as well.
    let scale = 2f64.powi(power.clamp(-1000, 1000) as i32);
    let magnitude = (leading as f64 * scale) as f32;
    Some(if split_sign(text).0 { -magnitude } else { magnitude })
}

/// Returns whether a text has only digits and underscores, at most one point, and at least one digit.
fn is_mantissa(text: &str, is_digit: fn(&u8) -> bool) -> bool {
    text.bytes().filter(|b| *b == b'.').count() <= 1
        && text.bytes().any(|b| is_digit(&b))
        && text.bytes().all(|b| is_digit(&b) || b == b'_' || b == b'.')
}

fn is_exponent(text: &str) -> bool {
    let digits = split_sign(text).1;
    digits.as_bytes().first().is_some_and(u8::is_ascii_digit)
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn exponent_of(text: &str) -> i64 {
    let (negative, digits) = split_sign(text);
    let value = digits
        .bytes()
        .filter(u8::is_ascii_digit)
        .fold(0i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1_000_000_000));
    if negative { -value } else { value }
}

/// Returns whether each underscore is between digits, or between a base prefix and a digit.
fn underscores_separate_digits(unsigned: &str) -> bool {
    let lower = unsigned.to_ascii_lowercase();
    let hexadecimal = lower.starts_with("0x");
    let prefixed = hexadecimal || lower.starts_with("0b") || lower.starts_with("0o");
    let (mut after_digit, mut after_underscore) = (prefixed, false);
    for byte in lower.bytes().skip(if prefixed { 2 } else { 0 }) {
        let digit = byte.is_ascii_digit() || hexadecimal && byte.is_ascii_hexdigit();
        if byte == b'_' && !after_digit || after_underscore && !digit {
            return false;
        }
        (after_digit, after_underscore) = (digit, byte == b'_');
    }
    !after_underscore
}

/// A positive quantity, or a percentage above 0% and up to 100%, such as `500Mi` or `7.5%`.
///
/// It is stricter than the kubelet's thresholds: texts without effect and values that are not numbers are rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    value: ThresholdValue,
    text: Box<str>,
}

impl Limit {
    /// Returns the value that the limit stands for.
    pub fn value(&self) -> &ThresholdValue {
        &self.value
    }

    /// Parses a quantity or a percentage.
    ///
    /// # Errors
    /// The cause, if the text is neither or is out of bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        match ThresholdValue::parse(text)? {
            ThresholdValue::Percentage(share) if !(share > 0.0 && share <= 1.0) => {
                Err(format!("must be above 0% and at most 100%, is {text}"))
            }
            ThresholdValue::Quantity(quantity) if quantity.signum() <= 0 => {
                Err(format!("must be above zero, is {quantity}"))
            }
            value => Ok(Self { value, text: text.into() }),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a quantity or a percentage such as \"500Mi\" or \"5%\"", Self::parse)
    }
}
