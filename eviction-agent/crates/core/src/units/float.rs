//! Floats as Go reads them: `strconv.ParseFloat(text, 32)`.

use super::go_quote;

/// Why a text is no float. The texts are those of Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FloatError {
    /// Not a number in Go's notation.
    #[error("strconv.ParseFloat: parsing {}: invalid syntax", go_quote::quote(.0))]
    Syntax(String),
    /// Larger than any binary32.
    #[error("strconv.ParseFloat: parsing {}: value out of range", go_quote::quote(.0))]
    Range(String),
}

/// Reads a decimal or hexadecimal float, `inf`, `infinity` or `nan`, rounded to binary32.
pub(super) fn parse_f32(text: &str) -> Result<f32, FloatError> {
    if let Some(value) = special(text) {
        return Ok(value);
    }
    let value =
        if hexadecimal_digits(text).is_some() { parse_hexadecimal(text) } else { parse_decimal(text) };
    match value {
        None => Err(FloatError::Syntax(text.to_owned())),
        Some(value) if value.is_infinite() => Err(FloatError::Range(text.to_owned())),
        Some(value) => Ok(value),
    }
}

/// Only infinity may have a sign.
fn special(text: &str) -> Option<f32> {
    if text.eq_ignore_ascii_case("nan") {
        return Some(f32::NAN);
    }
    let (negative, rest) = sign(text);
    let infinite = rest.eq_ignore_ascii_case("inf") || rest.eq_ignore_ascii_case("infinity");
    infinite.then_some(if negative { f32::NEG_INFINITY } else { f32::INFINITY })
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

/// What follows `0x`; a prefix alone is none.
fn hexadecimal_digits(text: &str) -> Option<&str> {
    let rest = sign(text).1;
    let digits = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"))?;
    (!digits.is_empty()).then_some(digits)
}

fn parse_decimal(text: &str) -> Option<f32> {
    let rest = sign(text).1;
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (rest, None),
    };
    let well_formed = is_mantissa(mantissa, u8::is_ascii_digit)
        && exponent.is_none_or(is_exponent)
        && underscores_separate_digits(rest);
    // Both languages round to the nearest, so the standard library's answer is Go's.
    well_formed.then(|| text.replace('_', "").parse().ok()).flatten()
}

/// `0x`, hexadecimal digits with an optional point, and a binary exponent, which is a must.
fn parse_hexadecimal(text: &str) -> Option<f32> {
    let (mantissa, exponent) = hexadecimal_digits(text)?.split_once(['p', 'P'])?;
    let well_formed = is_mantissa(mantissa, u8::is_ascii_hexdigit)
        && is_exponent(exponent)
        && underscores_separate_digits(sign(text).1);
    if !well_formed {
        return None;
    }
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut bits = 0u64;
    let mut power = 0i64;
    let mut rest = false;
    for (digits, step) in [(integer, 0), (fraction, -4)] {
        for digit in digits.chars().filter_map(|c| c.to_digit(16)) {
            if bits.leading_zeros() >= 4 {
                bits = bits << 4 | u64::from(digit);
                power += step;
            } else {
                rest |= digit != 0;
                power += step + 4;
            }
        }
    }
    let magnitude = round(bits, power.saturating_add(exponent_of(exponent)), rest);
    Some(if sign(text).0 { -magnitude } else { magnitude })
}

/// `bits × 2^power`, plus a little if `rest`, to the nearest binary32, ties to even.
fn round(bits: u64, power: i64, rest: bool) -> f32 {
    if bits == 0 {
        return 0.0;
    }
    let top = power + 63 - i64::from(bits.leading_zeros());
    if top > 127 {
        return f32::INFINITY;
    }
    let unit = (top - 23).max(-149);
    let mut mantissa = u128::from(bits);
    if unit > power {
        let drop = (unit - power).min(100);
        let remainder = mantissa & ((1 << drop) - 1);
        let half = 1u128 << (drop - 1);
        mantissa >>= drop;
        if remainder > half || remainder == half && (rest || mantissa & 1 == 1) {
            mantissa += 1;
        }
    } else {
        mantissa <<= power - unit;
    }
    // 25 bits by a power of two: exact in binary64, and in binary32 unless it overflows.
    let scale = f64::from_bits(((unit + 1023) as u64) << 52);
    (mantissa as f64 * scale) as f32
}

/// Digits and underscores with at most one point and at least one digit.
fn is_mantissa(text: &str, is_digit: fn(&u8) -> bool) -> bool {
    text.bytes().filter(|b| *b == b'.').count() <= 1
        && text.bytes().any(|b| is_digit(&b))
        && text.bytes().all(|b| is_digit(&b) || b == b'_' || b == b'.')
}

fn is_exponent(text: &str) -> bool {
    let digits = sign(text).1;
    digits.as_bytes().first().is_some_and(u8::is_ascii_digit)
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn exponent_of(text: &str) -> i64 {
    let (negative, digits) = sign(text);
    let value = digits
        .bytes()
        .filter(u8::is_ascii_digit)
        .fold(0i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1_000_000_000));
    if negative { -value } else { value }
}

/// An underscore stands between digits, or between a base prefix and a digit.
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
