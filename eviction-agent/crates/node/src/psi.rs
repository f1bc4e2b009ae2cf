//! Memory stalls (PSI) of the machine, or of a cgroup v2 that stands for the node.
//!
//! Whether tasks stalled long enough within a window is computed from the kernel's total of stalled time, which
//! needs no privilege. The kernel's own triggers need CAP_SYS_RESOURCE where the window is not a multiple of
//! two seconds.
//!
//! `/proc/pressure/*` and `*.pressure` of a cgroup v2 are written by the same kernel code, so one parser reads both.
//! procfs's own parser slices lines without checks and panics on short ones, so it is not used.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::path::Path;

use super::cgroup::files::Version;
use super::cgroup::node_root::NodeRoot;
use super::file::{NOT_FOUND, OpenFile, complete_lines, parse_number, record_once, words};
use eviction_core::policy::preferences::{MemoryPsi, PsiKind, PsiTrigger};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryDetail;
use eviction_core::units::GoDuration;

/// The stalls of some task, or of all tasks that had something to do: one line of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsiLine {
    /// Share of the last 10 s with a stall, in hundredths of a percent.
    pub avg10: Reading<u64>,
    /// Total stall time in microseconds, since boot or since the cgroup was created.
    pub total_us: Reading<u64>,
}

/// Parses the line of this kind in the text of a pressure file. Other lines, and fields of newer formats, are
/// ignored. Before 5.13 the file of the CPU has no full stalls.
pub fn parse_pressure(text: &[u8], kind: PsiKind) -> PsiLine {
    let mut values = [NOT_FOUND; 2];
    let lines = match complete_lines(text) {
        Ok(lines) => lines,
        Err(why) => return PsiLine { avg10: Reading::Unknown(why), total_us: Reading::Unknown(why) },
    };
    let kind: &[u8] = match kind {
        PsiKind::Some => b"some",
        PsiKind::Full => b"full",
    };
    for line in lines {
        let mut words = words(line);
        if words.next() != Some(kind) {
            continue;
        }
        for word in words {
            if let Some(share) = word.strip_prefix(b"avg10=") {
                record_once(&mut values[0], parse_share(share));
            } else if let Some(total) = word.strip_prefix(b"total=") {
                record_once(&mut values[1], parse_number(total));
            }
        }
    }
    let [avg10, total_us] = values.map(Reading::from);
    PsiLine { avg10, total_us }
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

/// The number of stall totals that are kept per window.
const MAX_TOTALS: usize = 16;

/// Reads stalls for memory. Allocates nothing.
#[derive(Debug)]
pub struct PsiReader {
    file: Result<OpenFile, UnknownReason>,
    /// Which stalls count, and how long they are within which window.
    window: Option<(PsiKind, PsiTrigger)>,
    /// The totals that are kept, oldest first, at most [`MAX_TOTALS`].
    totals: VecDeque<StallTotal>,
}

#[derive(Clone, Copy, Debug)]
struct StallTotal {
    at_ns: u64,
    us: u64,
}

impl PsiReader {
    /// Opens the pressure file of what counts as the node. A cgroup v1 has none.
    pub fn open(root: &NodeRoot, proc: &Path) -> Self {
        let file = match (root.whole_machine, root.version) {
            (true, _) => OpenFile::open(&proc.join("pressure/memory")),
            (false, Version::V2) => OpenFile::open(&root.memory.join("memory.pressure")),
            (false, Version::V1) => Err(UnknownReason::Absent),
        };
        Self { file, window: None, totals: VecDeque::with_capacity(MAX_TOTALS) }
    }

    /// Takes the stall window from the PSI settings of the policy. A changed window discards the totals.
    pub fn set_window(&mut self, pressure: Option<&MemoryPsi>) {
        let window = pressure.and_then(|pressure| Some((pressure.kind, pressure.trigger?)));
        if window != self.window {
            self.window = window;
            self.totals.clear();
        }
    }

    /// Returns the interval, in nanoseconds, at which stalls must be read to evaluate the window.
    pub fn interval_ns(&self) -> Option<u64> {
        self.window.map(|(_, trigger)| nanos(trigger.window) / 4)
    }

    /// Reads the stalls into `detail`; `now_ns` is a time of CLOCK_MONOTONIC.
    pub fn read_into(&mut self, detail: MemoryDetail, now_ns: u64) -> MemoryDetail {
        let mut buffer = [0; 512];
        let read = self.file.as_ref().map_err(|why| *why).and_then(|file| file.read(&mut buffer));
        match read.map(|text| [PsiKind::Some, PsiKind::Full].map(|kind| parse_pressure(text, kind))) {
            Ok([some, full]) => MemoryDetail {
                some_avg10: some.avg10,
                full_avg10: full.avg10,
                stalled: self.evaluate(now_ns, some, full),
                ..detail
            },
            Err(why) => MemoryDetail {
                some_avg10: Reading::Unknown(why),
                full_avg10: Reading::Unknown(why),
                stalled: Reading::Unknown(why),
                ..detail
            },
        }
    }

    /// Compares the growth of the stall total since the oldest reading within the window with the configured
    /// stall. Without a reading within the window the result is unknown, unless the total grew too little since
    /// an earlier reading.
    fn evaluate(&mut self, now_ns: u64, some: PsiLine, full: PsiLine) -> Reading<bool> {
        let Some((kind, trigger)) = self.window else {
            return Reading::Unknown(UnknownReason::Absent);
        };
        let (stall_us, window_ns) = (nanos(trigger.stall) / 1000, nanos(trigger.window));
        let total = match kind {
            PsiKind::Some => some.total_us,
            PsiKind::Full => full.total_us,
        };
        let us = match total {
            Reading::Known(us) => us,
            Reading::Unknown(why) => return Reading::Unknown(why),
        };
        if self.totals.back().is_some_and(|last| last.us > us || last.at_ns > now_ns) {
            // The cgroup was replaced, or the clock is another one.
            self.totals.clear();
        }
        let mut before = None;
        while let Some(old) = self.totals.pop_front_if(|total| now_ns - total.at_ns > window_ns) {
            before = Some(old);
        }
        let within = self.totals.front().copied();
        let spacing_ns = window_ns / (MAX_TOTALS as u64 - 2);
        let due = self.totals.back().is_none_or(|last| now_ns - last.at_ns >= spacing_ns);
        if due && self.totals.len() < MAX_TOTALS {
            self.totals.push_back(StallTotal { at_ns: now_ns, us });
        }
        match (within, before) {
            (Some(then), _) => Reading::Known(us - then.us >= stall_us),
            (None, Some(then)) if us - then.us < stall_us => Reading::Known(false),
            (None, _) => Reading::Unknown(UnknownReason::Stale),
        }
    }
}

fn nanos(duration: GoDuration) -> u64 {
    duration.as_nanos().max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reading::{Known, Unknown};
    use proptest::prelude::*;

    #[test]
    fn real_pressure_file_is_parsed() {
        let text = b"some avg10=12.34 avg60=0.00 avg300=100.00 total=157656722\nfull avg10=0.01 avg60=0.00 avg300=0.00 total=5\n";
        let some = PsiLine { avg10: Known(1234), total_us: Known(157_656_722) };
        assert_eq!(parse_pressure(text, PsiKind::Some), some);
        assert_eq!(parse_pressure(text, PsiKind::Full), PsiLine { avg10: Known(1), total_us: Known(5) });
    }

    #[test]
    fn missing_or_invalid_values_are_unknown() {
        let some = |text: &str| parse_pressure(text.as_bytes(), PsiKind::Some);
        let text = "some avg10=101.00 avg60=1.5 total=-1 avg1=3.00 x\nhalf avg10=1.00\n";
        let implausible = Unknown(UnknownReason::Implausible);
        assert_eq!(some(text), PsiLine { avg10: implausible, total_us: implausible });
        let full = parse_pressure(text.as_bytes(), PsiKind::Full);
        assert_eq!(full.total_us, Unknown(UnknownReason::Absent));
        for share in ["1.5", "max"] {
            let line = PsiLine { avg10: Unknown(UnknownReason::Unparsable), total_us: Known(1) };
            assert_eq!(some(&format!("some avg10={share} total=1\n")), line);
        }
        for text in ["some\nsome avg10=1.00\nsome avg10=1.00\n", "", "some avg10=1.00"] {
            assert_eq!(some(text).avg10, Unknown(UnknownReason::Unparsable), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            parse_pressure(&bytes, PsiKind::Some);
            parse_pressure(&bytes, PsiKind::Full);
        }

        #[test]
        fn parsed_share_and_total_equal_the_written_ones(share in 0..=10_000_u64, total in 0..=i64::MAX as u64) {
            let text = format!("some avg10={}.{:02} avg60=0.00 avg300=0.00 total={total}\n", share / 100, share % 100);
            let some = parse_pressure(text.as_bytes(), PsiKind::Some);
            prop_assert_eq!((some.avg10, some.total_us), (Known(share), Known(total)));
        }
    }

    const MS: u64 = 1_000_000;

    fn stalls(stall_ms: i64, window_ms: i64) -> PsiReader {
        let mut stalls =
            PsiReader { file: Err(UnknownReason::Absent), window: None, totals: VecDeque::new() };
        let millis = |ms: i64| GoDuration::from_nanos(ms * 1_000_000);
        let trigger = PsiTrigger { stall: millis(stall_ms), window: millis(window_ms) };
        let window = MemoryPsi { kind: PsiKind::Some, avg10: None, trigger: Some(trigger) };
        stalls.set_window(Some(&window));
        stalls
    }

    fn evaluate(stalls: &mut PsiReader, at_ms: u64, total_ms: u64) -> Reading<bool> {
        let stall = |total| PsiLine { avg10: Known(0), total_us: total };
        stalls.evaluate(at_ms * MS, stall(Known(total_ms * 1000)), stall(Unknown(UnknownReason::Absent)))
    }

    #[test]
    fn stall_time_is_counted_within_the_window_only() {
        let mut stalls = stalls(150, 1000);
        assert_eq!(evaluate(&mut stalls, 0, 500), Unknown(UnknownReason::Stale), "nothing to compare with");
        assert_eq!(evaluate(&mut stalls, 400, 600), Known(false));
        assert_eq!(evaluate(&mut stalls, 900, 650), Known(true));
        assert_eq!(evaluate(&mut stalls, 1300, 700), Known(false), "100 ms since 400");
        assert_eq!(evaluate(&mut stalls, 1500, 800), Known(true), "150 ms since 900");
    }

    #[test]
    fn without_a_recent_reading_only_small_growth_gives_a_result() {
        let mut stalls = stalls(150, 1000);
        evaluate(&mut stalls, 0, 0);
        assert_eq!(evaluate(&mut stalls, 10_000, 149), Known(false));
        assert_eq!(evaluate(&mut stalls, 20_000, 1149), Unknown(UnknownReason::Stale));
        assert_eq!(evaluate(&mut stalls, 20_200, 1299), Known(true));
    }

    #[test]
    fn changed_window_or_decreased_total_discards_the_readings() {
        let mut stalls = stalls(150, 1000);
        evaluate(&mut stalls, 0, 500);
        assert_eq!(evaluate(&mut stalls, 100, 400), Unknown(UnknownReason::Stale));
        stalls.set_window(None);
        assert_eq!(evaluate(&mut stalls, 200, 900), Unknown(UnknownReason::Absent));
    }

    #[test]
    fn machine_pressure_is_read_where_the_kernel_has_psi() {
        let root = NodeRoot {
            memory: "".into(),
            version: Version::V1,
            pids: None,
            freezer: None,
            unified: None,
            whole_machine: true,
            partial: false,
        };
        let mut of_machine = PsiReader::open(&root, Path::new("/proc"));
        let exists = std::fs::read("/proc/pressure/memory").is_ok();
        assert_eq!(of_machine.read_into(MemoryDetail::default(), 1).some_avg10.known().is_some(), exists);
        let group = NodeRoot { whole_machine: false, ..root };
        let mut of_group = PsiReader::open(&group, Path::new("/proc"));
        let detail = of_group.read_into(MemoryDetail::default(), 1);
        assert_eq!(detail.some_avg10, Unknown(UnknownReason::Absent));
    }

    proptest! {
        /// It says yes only if the total grew as much within the window, by any reading there was.
        #[test]
        fn stall_is_reported_only_if_the_total_grew_within_the_window(steps in prop::collection::vec((0..700_u64, 0..300_u64), 1..60)) {
            let mut stalls = stalls(150, 1000);
            let (mut at, mut total, mut all) = (0, 0, Vec::new());
            for (passed, stalled) in steps {
                at += passed;
                total += stalled;
                let grew = all.iter().filter(|(then, _)| at - then <= 1000).any(|(_, was)| total - was >= 150);
                if evaluate(&mut stalls, at, total) == Known(true) {
                    prop_assert!(grew);
                }
                all.push((at, total));
            }
        }
    }
}
