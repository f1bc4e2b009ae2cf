//! Durations as Go writes and parses them: `time.Duration`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::deserialize_text;
use super::text::split_sign;

/// A signed number of nanoseconds, written like `1h2m3.5s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// The duration zero.
    pub const ZERO: Self = Self(0);

    /// Creates a duration from nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Creates a duration from seconds. Beyond 292 years it is the longest duration.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Returns the duration in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Reads numbers with units, such as `1h30m` or `-1.5s`; `0` needs none: `time.ParseDuration`.
    ///
    /// # Errors
    /// Go's message, if the text has another form or is longer than 292 years.
    pub fn parse(text: &str) -> Result<Self, String> {
        const LIMIT: u64 = 1 << 63;
        let invalid = || format!("time: invalid duration {}", quote(text));
        let (negative, mut rest) = split_sign(text);
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut sum = 0u64;
        while !rest.is_empty() {
            let (integer, fraction, after) = number(rest).ok_or_else(invalid)?;
            let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(end);
            if unit.is_empty() {
                return Err(format!("time: missing unit in duration {}", quote(text)));
            }
            let unknown_unit = || format!("time: unknown unit {} in duration {}", quote(unit), quote(text));
            let nanos = nanoseconds(unit).ok_or_else(unknown_unit)?;
            let whole = whole(integer).filter(|whole| *whole <= LIMIT / nanos).ok_or_else(invalid)?;
            let part = whole * nanos + part(fraction, nanos);
            // In Go the sum of 2^63 and 2^63 wraps to 0.
            sum = sum.wrapping_add(part);
            if part > LIMIT || sum > LIMIT {
                return Err(invalid());
            }
            rest = next;
        }
        match (negative, i64::try_from(sum)) {
            (true, _) => Ok(Self(sum.cast_signed().wrapping_neg())),
            (false, Ok(sum)) => Ok(Self(sum)),
            (false, Err(_)) => Err(invalid()),
        }
    }
}

/// Splits a text into the digits before and after the point, and the rest. There must be at least one digit,
/// and the number before the point must not exceed 2^63.
fn number(text: &str) -> Option<(&str, &str, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (integer, rest) = text.split_at(digits(text));
    whole(integer)?;
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    (!integer.is_empty() || !fraction.is_empty()).then_some((integer, fraction, rest))
}

fn whole(digits: &str) -> Option<u64> {
    let value = if digits.is_empty() { Ok(0) } else { digits.parse() };
    value.ok().filter(|value| *value <= 1 << 63)
}

/// Returns a fraction of a unit, in floating point as in Go. Digits that do not fit are dropped.
fn part(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0u64, 1.0f64);
    for digit in digits.bytes() {
        if value > (i64::MAX / 10).unsigned_abs() {
            break;
        }
        let next = value * 10 + u64::from(digit - b'0');
        if next > 1 << 63 {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

fn nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Quotes a text as package `time` does, which differs from `strconv`.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='\u{7f}' => quoted.push(c),
            _ => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    quoted.push_str(&format!("\\x{byte:02x}"));
                }
            }
        }
    }
    quoted.push('"');
    quoted
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{sign}{nanos}ns"),
            1_000..1_000_000 => write!(f, "{sign}{}µs", fraction(nanos, 3)),
            1_000_000..1_000_000_000 => write!(f, "{sign}{}ms", fraction(nanos, 6)),
            _ => {
                let seconds = nanos / 1_000_000_000;
                let rest = fraction(nanos % 60_000_000_000, 9);
                match (seconds / 3600, seconds / 60 % 60) {
                    (0, 0) => write!(f, "{sign}{rest}s"),
                    (0, minutes) => write!(f, "{sign}{minutes}m{rest}s"),
                    (hours, minutes) => write!(f, "{sign}{hours}h{minutes}m{rest}s"),
                }
            }
        }
    }
}

/// Writes a number divided by a power of ten, without trailing zeros.
fn fraction(value: u64, places: u32) -> String {
    let unit = 10u64.pow(places);
    let text = format!("{}.{:0width$}", value / unit, value % unit, width = places as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a duration such as \"1m30s\"", Self::parse)
    }
}
