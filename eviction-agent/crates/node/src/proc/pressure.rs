//! Pressure stall information: `/proc/pressure/*`, and `*.pressure` of a cgroup v2.
//!
//! procfs's own parser slices lines without checks and panics on short ones, so it is not used. The files of
//! cgroups are written by the same kernel code, so one parser reads both.
#![forbid(unsafe_code)]

use serde::Serialize;

use crate::kv_file::{SingleValue, complete_lines, parse_number, words};
use eviction_core::reading::{Reading, UnknownReason};

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PsiLine {
    /// Share of the last 10 s with a stall, in hundredths of a percent.
    pub avg10: Reading<u64>,
    /// Total stall time in microseconds, since boot or since the cgroup was created.
    pub total_us: Reading<u64>,
}

/// A pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pressure {
    /// Time in which some task was stalled.
    pub some: PsiLine,
    /// Time in which all tasks that had something to do were stalled. Before 5.13 there is no such line for the
    /// CPU.
    pub full: PsiLine,
}

/// Parses the text of a pressure file. Lines and fields of newer formats are ignored.
pub fn parse_pressure(text: &[u8]) -> Pressure {
    let mut lines_found = [[SingleValue::NEW; 2]; 2];
    let lines = match complete_lines(text) {
        Ok(lines) => lines,
        Err(why) => {
            let stall = stall([Err(why); 2]);
            return Pressure { some: stall, full: stall };
        }
    };
    for line in lines {
        let mut words = words(line);
        let found = match words.next() {
            Some(b"some") => &mut lines_found[0],
            Some(b"full") => &mut lines_found[1],
            _ => continue,
        };
        for word in words {
            if let Some(share) = word.strip_prefix(b"avg10=") {
                found[0].found(parse_share(share));
            } else if let Some(total) = word.strip_prefix(b"total=") {
                found[1].found(parse_number(total));
            }
        }
    }
    let [some, full] = lines_found.map(|found| stall(found.map(SingleValue::get)));
    Pressure { some, full }
}

fn stall([avg10, total]: [Result<u64, UnknownReason>; 2]) -> PsiLine {
    PsiLine { avg10: avg10.into(), total_us: total.into() }
}

/// Parses a percentage with two digits after the point, as the kernel writes it.
fn parse_share(text: &[u8]) -> Result<u64, UnknownReason> {
    let point = text.iter().position(|byte| *byte == b'.').ok_or(UnknownReason::Unparsable)?;
    let (whole, hundredths) = (parse_number(&text[..point])?, &text[point + 1..]);
    if hundredths.len() != 2 {
        return Err(UnknownReason::Unparsable);
    }
    match whole.checked_mul(100).and_then(|share| share.checked_add(parse_number(hundredths).ok()?)) {
        Some(share) if share <= 10_000 => Ok(share),
        Some(_) => Err(UnknownReason::Implausible),
        None => Err(UnknownReason::Unparsable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reading::{Known, Unknown};
    use proptest::prelude::*;

    #[test]
    fn real_pressure_file_is_parsed() {
        let text = b"some avg10=12.34 avg60=0.00 avg300=100.00 total=157656722\nfull avg10=0.01 avg60=0.00 avg300=0.00 total=5\n";
        let pressure = parse_pressure(text);
        assert_eq!(pressure.some.avg10, Known(1234));
        assert_eq!(pressure.some.total_us, Known(157_656_722));
        assert_eq!(pressure.full.avg10, Known(1));
    }

    #[test]
    fn missing_or_invalid_values_are_unknown() {
        let pressure = parse_pressure(b"some avg10=101.00 avg60=1.5 total=-1 avg1=3.00 x\nhalf avg10=1.00\n");
        assert_eq!(pressure.some.avg10, Unknown(UnknownReason::Implausible));
        for share in ["1.5", "max"] {
            let text = format!("some avg10={share} total=1\n");
            let some = parse_pressure(text.as_bytes()).some;
            assert_eq!((some.avg10, some.total_us), (Unknown(UnknownReason::Unparsable), Known(1)));
        }
        assert_eq!(pressure.some.total_us, Unknown(UnknownReason::Implausible));
        assert_eq!(pressure.full.total_us, Unknown(UnknownReason::Absent));
        assert_eq!(
            parse_pressure(b"some\nsome avg10=1.00\nsome avg10=1.00\n").some.avg10,
            Unknown(UnknownReason::Unparsable)
        );
        assert_eq!(parse_pressure(b"").some.avg10, Unknown(UnknownReason::Unparsable));
        assert_eq!(parse_pressure(b"some avg10=1.00").some.avg10, Unknown(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            parse_pressure(&bytes);
        }

        #[test]
        fn parsed_share_and_total_equal_the_written_ones(share in 0..=10_000_u64, total in 0..=i64::MAX as u64) {
            let text = format!("some avg10={}.{:02} avg60=0.00 avg300=0.00 total={total}\n", share / 100, share % 100);
            let some = parse_pressure(text.as_bytes()).some;
            prop_assert_eq!((some.avg10, some.total_us), (Known(share), Known(total)));
        }
    }
}
