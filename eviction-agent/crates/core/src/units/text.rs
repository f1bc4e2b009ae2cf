//! Texts: deserialized by serde, quoted as in Go, and bytes with three digits.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};

struct TextVisitor<F> {
    wanted: &'static str,
    parse: F,
}

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for TextVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wanted)
    }

    fn visit_str<D: Error>(self, text: &str) -> Result<T, D> {
        (self.parse)(text).map_err(D::custom)
    }
}

/// Deserializes a value that is written as a text. `wanted` is the expected type in the error for other types.
///
/// # Errors
/// If the value has another type, or if the parser returns an error.
pub fn deserialize_text<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(TextVisitor { wanted, parse })
}

/// Removes a sign from the start of a text. Returns whether it was a minus.
pub(super) fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Quotes a text with double quotes. Quotes, backslashes and unprintable characters are escaped.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            _ if is_print(c) => quoted.push(c),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\0'..' ' | '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            '\u{80}'..'\u{10000}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns whether a character is printable: letters, marks, numbers, punctuation, symbols and the plain
/// space. Characters that Unicode added after 15.0, which Go 1.26 has, count as well.
fn is_print(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\0'..='\u{9f}' => false,
        _ => {
            // The standard library has the same table. It also escapes combining marks, but not behind
            // another character.
            let mut pair = [b'a', 0, 0, 0, 0];
            let length = c.encode_utf8(&mut pair[1..]).len();
            str::from_utf8(&pair[..=length]).is_ok_and(|pair| pair.escape_debug().count() == 2)
        }
    }
}

const SUFFIXES: [&str; 7] = ["B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Formats bytes as a Kubernetes quantity, rounded to three digits: `8Gi`, `1.43Gi`, `512Mi`.
pub fn display_bytes(number: i128) -> String {
    let size = number.unsigned_abs();
    let sign = if number < 0 { "-" } else { "" };
    let power = (1..SUFFIXES.len()).rfind(|power| size >> (10 * power) > 0).unwrap_or(0);
    let (unit, suffix) = (1_u128 << (10 * power), SUFFIXES[power]);
    if size.is_multiple_of(unit) {
        return format!("{sign}{}{suffix}", size / unit);
    }
    // Hundredths are precise enough.
    let hundredths = (size * 100 + unit / 2) / unit;
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let digits = match whole {
        0..10 => format!("{whole}.{rest:02}"),
        10..100 => format!("{whole}.{}", rest / 10),
        _ => whole.to_string(),
    };
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{sign}{digits}{suffix}")
}

#[cfg(test)]
mod go_quote_tests {
    use super::quote;

    #[test]
    fn escapes_match_those_of_go() {
        for (text, quoted) in [
            ("", r#""""#),
            ("a \"b\" \\c", r#""a \"b\" \\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
            ("\u{80}\u{a0}\u{200b}\u{feff}", r#""\u0080\u00a0\u200b\ufeff""#),
            ("\u{e0001}\u{10ffff}", r#""\U000e0001\U0010ffff""#),
            ("é 日本 \u{301} \u{1f600} \u{fffd}", "\"é 日本 \u{301} \u{1f600} \u{fffd}\""),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }
}

#[cfg(test)]
mod display_tests {
    use super::display_bytes;

    #[test]
    fn bytes_are_displayed_with_three_digits() {
        let table = [
            (0, "0B"),
            (-1, "-1B"),
            (1023, "1023B"),
            (1536, "1.5Ki"),
            (100 << 20, "100Mi"),
            ((1 << 30) + 1, "1Gi"),
            (1_531_000_000, "1.43Gi"),
            (15_310_000_000, "14.2Gi"),
            (150 * (1 << 30) + 5, "150Gi"),
            (i128::from(i64::MAX), "8Ei"),
            (i128::from(i64::MIN), "-8Ei"),
            (i128::from(u64::MAX), "16Ei"),
        ];
        for (number, text) in table {
            assert_eq!(display_bytes(number), text, "{number}");
        }
    }
}
