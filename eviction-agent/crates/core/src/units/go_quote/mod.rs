//! Texts in quotes as Go writes them with `%q`: `strconv.Quote`.

mod newer;

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
                && !newer::is_newer(c)
        }
    }
}

#[cfg(test)]
mod tests {
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
