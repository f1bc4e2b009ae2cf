//! Parses numbers and keys in the text files of the kernel.
#![forbid(unsafe_code)]

use eviction_core::reading::UnknownReason;

/// Parses an unsigned decimal number and nothing else.
///
/// Values above 2^63 − 1 are [`UnknownReason::Implausible`]: the kernel's counters of bytes and tasks are
/// signed longs, so values such as 2^64 − 1 are underflows. The same holds for a number with a minus sign.
pub fn parse_number(text: &[u8]) -> Result<u64, UnknownReason> {
    if let [b'-', digits @ ..] = text {
        let numeric = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        return Err(if numeric { UnknownReason::Implausible } else { UnknownReason::Unparsable });
    }
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(UnknownReason::Unparsable);
    }
    text.iter()
        .try_fold(0_i64, |value, digit| value.checked_mul(10)?.checked_add(i64::from(digit - b'0')))
        .and_then(|value| u64::try_from(value).ok())
        .ok_or(UnknownReason::Implausible)
}

/// Parses a file that holds one number: the number and at most one line feed.
pub fn parse_number_line(text: &[u8]) -> Result<u64, UnknownReason> {
    parse_number(text.strip_suffix(b"\n").unwrap_or(text))
}

/// Returns the lines of a text. A last line without a line feed was cut off and is an error.
pub fn complete_lines(text: &[u8]) -> Result<impl Iterator<Item = &[u8]>, UnknownReason> {
    match text.strip_suffix(b"\n") {
        Some(body) => Ok(body.split(|byte| *byte == b'\n')),
        None => Err(UnknownReason::Unparsable),
    }
}

/// Returns the words of a line, separated by blanks.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// A value that a text may contain once: absent until it is found, unparsable if it is found again.
#[derive(Clone, Copy, Debug)]
pub struct SingleValue(Option<Result<u64, UnknownReason>>);

impl SingleValue {
    /// A value that was not found yet.
    pub const NEW: Self = Self(None);

    /// Records a value. A second one makes it unparsable, since it is not known which of the two is right.
    pub fn found(&mut self, value: Result<u64, UnknownReason>) {
        self.0 = Some(if self.0.is_none() { value } else { Err(UnknownReason::Unparsable) });
    }

    /// Returns the value, or [`UnknownReason::Absent`] if it was not found.
    pub fn get(self) -> Result<u64, UnknownReason> {
        self.0.unwrap_or(Err(UnknownReason::Absent))
    }
}

/// Parses the values of `keys` in a text of lines `key value`, or `key value unit` if there is a unit. Other
/// lines are ignored.
pub fn parse_keys<const N: usize>(
    text: &[u8],
    keys: [&[u8]; N],
    unit: Option<&[u8]>,
) -> [Result<u64, UnknownReason>; N] {
    let lines = match complete_lines(text) {
        Ok(lines) => lines,
        Err(why) => return [Err(why); N],
    };
    let mut found = [SingleValue::NEW; N];
    for line in lines {
        let mut words = words(line);
        let Some(key) = words.next() else { continue };
        let Some(index) = keys.iter().position(|wanted| *wanted == key) else { continue };
        found[index].found(match (words.next(), words.next(), words.next()) {
            (Some(value), found_unit, None) if found_unit == unit => parse_number(value),
            _ => Err(UnknownReason::Unparsable),
        });
    }
    found.map(SingleValue::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_parsed() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("9223372036854775807", Ok(i64::MAX as u64)),
            ("9223372036854775808", Err(UnknownReason::Implausible)),
            ("18446744073709551615", Err(UnknownReason::Implausible)),
            ("99999999999999999999999999", Err(UnknownReason::Implausible)),
            ("-1", Err(UnknownReason::Implausible)),
            ("-", Err(UnknownReason::Unparsable)),
            ("-x", Err(UnknownReason::Unparsable)),
            ("+1", Err(UnknownReason::Unparsable)),
            ("", Err(UnknownReason::Unparsable)),
            ("max", Err(UnknownReason::Unparsable)),
            ("1 2", Err(UnknownReason::Unparsable)),
            ("1\n", Err(UnknownReason::Unparsable)),
            ("0x10", Err(UnknownReason::Unparsable)),
            ("１", Err(UnknownReason::Unparsable)),
        ] {
            assert_eq!(parse_number(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse_number_line(b"12\n"), Ok(12));
        assert_eq!(parse_number_line(b"12\n\n"), Err(UnknownReason::Unparsable));
        assert_eq!(parse_number_line(b"\n"), Err(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn number_is_parsed_exactly_or_refused_above_the_maximum(value: u64) {
            let parsed = parse_number(value.to_string().as_bytes());
            prop_assert_eq!(parsed, if value <= i64::MAX as u64 { Ok(value) } else { Err(UnknownReason::Implausible) });
        }

        #[test]
        fn arbitrary_bytes_give_their_number_or_an_error(bytes: Vec<u8>) {
            let parsed = parse_number_line(&bytes);
            if let Ok(value) = parsed {
                let text = std::str::from_utf8(&bytes).unwrap().trim_end_matches('\n');
                prop_assert_eq!(text.parse::<u64>(), Ok(value));
            }
        }
    }
}
