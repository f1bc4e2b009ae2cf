//! Texts: read by serde, in quotes as Go writes them, and bytes in three digits.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};

struct Text<F> {
    wanted: &'static str,
    parse: F,
}

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wanted)
    }

    fn visit_str<D: Error>(self, text: &str) -> Result<T, D> {
        (self.parse)(text).map_err(D::custom)
    }
}

/// Reads a value that is written as a text; `wanted` says in an error what other types are not.
///
/// # Errors
/// Another type, or the cause of the parser.
pub fn deserialize_text<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text { wanted, parse })
}

/// Double quotes, with escapes for quotes, backslashes and what cannot be printed.
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

/// Letters, marks, numbers, punctuation, symbols and the plain blank.
fn is_print(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\0'..='\u{9f}' => false,
        _ => {
            // The standard library has the same table; behind another character it does not
            // escape combining marks as well.
            let mut pair = [b'a', 0, 0, 0, 0];
            let length = c.encode_utf8(&mut pair[1..]).len();
            str::from_utf8(&pair[..=length]).is_ok_and(|pair| pair.escape_debug().count() == 2)
                && !is_newer(c)
        }
    }
}

/// First and last of each run, in order.
const RUNS: &[(u32, u32)] = &[
    (0x88f, 0x88f),
    (0x897, 0x897),
    (0xc5c, 0xc5c),
    (0xcdc, 0xcdc),
    (0x1acf, 0x1add),
    (0x1ae0, 0x1aeb),
    (0x1b4e, 0x1b4f),
    (0x1b7f, 0x1b7f),
    (0x1c89, 0x1c8a),
    (0x20c1, 0x20c1),
    (0x2427, 0x2429),
    (0x2b96, 0x2b96),
    (0x2ffc, 0x2fff),
    (0x31e4, 0x31e5),
    (0x31ef, 0x31ef),
    (0xa7cb, 0xa7cf),
    (0xa7d2, 0xa7d2),
    (0xa7d4, 0xa7d4),
    (0xa7da, 0xa7dc),
    (0xa7f1, 0xa7f1),
    (0xfbc3, 0xfbd2),
    (0xfd90, 0xfd91),
    (0xfdc8, 0xfdce),
    (0x105c0, 0x105f3),
    (0x10940, 0x10959),
    (0x10d40, 0x10d65),
    (0x10d69, 0x10d85),
    (0x10d8e, 0x10d8f),
    (0x10ec2, 0x10ec7),
    (0x10ed0, 0x10ed8),
    (0x10efa, 0x10efc),
    (0x11380, 0x11389),
    (0x1138b, 0x1138b),
    (0x1138e, 0x1138e),
    (0x11390, 0x113b5),
    (0x113b7, 0x113c0),
    (0x113c2, 0x113c2),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113ca),
    (0x113cc, 0x113d5),
    (0x113d7, 0x113d8),
    (0x113e1, 0x113e2),
    (0x116d0, 0x116e3),
    (0x11b60, 0x11b67),
    (0x11bc0, 0x11be1),
    (0x11bf0, 0x11bf9),
    (0x11db0, 0x11ddb),
    (0x11de0, 0x11de9),
    (0x11f5a, 0x11f5a),
    (0x13460, 0x143fa),
    (0x16100, 0x16139),
    (0x16d40, 0x16d79),
    (0x16ea0, 0x16eb8),
    (0x16ebb, 0x16ed3),
    (0x16ff2, 0x16ff6),
    (0x187f8, 0x187ff),
    (0x18cff, 0x18cff),
    (0x18d09, 0x18d1e),
    (0x18d80, 0x18df2),
    (0x1cc00, 0x1ccfc),
    (0x1cd00, 0x1ceb3),
    (0x1ceba, 0x1ced0),
    (0x1cee0, 0x1cef0),
    (0x1e5d0, 0x1e5fa),
    (0x1e5ff, 0x1e5ff),
    (0x1e6c0, 0x1e6de),
    (0x1e6e0, 0x1e6f5),
    (0x1e6fe, 0x1e6ff),
    (0x1f6d8, 0x1f6d8),
    (0x1f777, 0x1f77a),
    (0x1f8b2, 0x1f8bb),
    (0x1f8c0, 0x1f8c1),
    (0x1f8d0, 0x1f8d8),
    (0x1fa54, 0x1fa57),
    (0x1fa89, 0x1fa8a),
    (0x1fa8e, 0x1fa8f),
    (0x1fabe, 0x1fabe),
    (0x1fac6, 0x1fac6),
    (0x1fac8, 0x1fac8),
    (0x1facd, 0x1facd),
    (0x1fadc, 0x1fadc),
    (0x1fadf, 0x1fadf),
    (0x1fae9, 0x1faea),
    (0x1faef, 0x1faef),
    (0x1fbcb, 0x1fbef),
    (0x1fbfa, 0x1fbfa),
    (0x2b73a, 0x2b73f),
    (0x2cea2, 0x2cead),
    (0x2ebf0, 0x2ee5d),
    (0x323b0, 0x33479),
];

/// Whether a character is one of them.
pub(super) fn is_newer(c: char) -> bool {
    let code = u32::from(c);
    let after = RUNS.partition_point(|run| run.1 < code);
    RUNS.get(after).is_some_and(|run| run.0 <= code)
}

const SUFFIXES: [&str; 7] = ["B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Bytes as a Kubernetes quantity, rounded to three digits: `8Gi`, `1.43Gi`, `512Mi`.
pub fn display_bytes(number: i128) -> String {
    let size = number.unsigned_abs();
    let sign = if number < 0 { "-" } else { "" };
    let power = (1..SUFFIXES.len()).rfind(|power| size >> (10 * power) > 0).unwrap_or(0);
    let (unit, suffix) = (1_u128 << (10 * power), SUFFIXES[power]);
    if size.is_multiple_of(unit) {
        return format!("{sign}{}{suffix}", size / unit);
    }
    // Tenths and hundredths are enough to tell one from another.
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
    use super::{is_print, quote};

    #[test]
    fn escapes_are_those_of_go() {
        for (text, quoted) in [
            ("", r#""""#),
            ("a \"b\" \\c", r#""a \"b\" \\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
            ("\u{80}\u{a0}\u{200b}\u{feff}", r#""\u0080\u00a0\u200b\ufeff""#),
            ("\u{e0001}\u{1cd01}\u{10ffff}", r#""\U000e0001\U0001cd01\U0010ffff""#),
            ("é 日本 \u{301} \u{1f600} \u{fffd}", "\"é 日本 \u{301} \u{1f600} \u{fffd}\""),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    /// Number and fingerprint were made with `unicode.IsPrint` of Go 1.26.
    #[test]
    fn what_can_be_printed_is_what_go_can_print() {
        let printable = ('\0'..=char::MAX).filter(|c| is_print(*c));
        let (count, fingerprint) = printable.fold((0u32, 0u64), |(count, sum), c| {
            (count + 1, sum.wrapping_mul(31).wrapping_add(u64::from(u32::from(c))))
        });
        assert_eq!((count, fingerprint), (148_998, 11_005_349_497_113_234_412));
    }
}

#[cfg(test)]
mod display_tests {
    use super::display_bytes;

    #[test]
    fn bytes_have_three_digits() {
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
