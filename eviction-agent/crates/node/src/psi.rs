//! Stalls for memory: of the machine, or of a version 2 group that stands for the node.
//!
//! Whether tasks stalled long enough within a window is worked out from the kernel's total of
//! stalled time, which needs no privilege; the kernel's own triggers ask for CAP_SYS_RESOURCE
//! where the window is no multiple of two seconds.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use super::cgroup::files::Version;
use super::cgroup::node_root::NodeRoot;
use super::file::{KeptFile, unreadable};
use super::proc::pressure::{Pressure, PsiLine, parse_pressure};
use eviction_core::policy::preferences::{MemoryPsi, PsiKind, PsiTrigger};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::units::GoDuration;

/// Totals that are kept of a window.
const KEPT: usize = 16;

/// Reads stalls for memory. Allocates nothing.
#[derive(Debug)]
pub struct PsiReader {
    file: Result<KeptFile, UnknownReason>,
    window: Option<StallWindow>,
    /// The oldest first.
    totals: [StallTotal; KEPT],
    len: usize,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsiReading {
    /// Share of the last 10 s in which some task stalled, in hundredths of a percent.
    pub some_avg10: Reading<u64>,
    /// The same of all tasks at once.
    pub full_avg10: Reading<u64>,
    /// Whether tasks stalled as long within the window as is configured.
    pub stalled: Reading<bool>,
}

/// A stall of some length within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StallWindow {
    kind: PsiKind,
    stall_us: u64,
    window_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct StallTotal {
    at_ns: u64,
    us: u64,
}

impl PsiReader {
    /// The stalls of what counts as the node. A version 1 group has none of its own.
    pub fn open(root: &NodeRoot, proc: &Path) -> Self {
        let file = match (root.whole_machine, root.version) {
            (true, _) => Some(proc.join("pressure/memory")),
            (false, Version::V2) => Some(root.memory.join("memory.pressure")),
            (false, Version::V1) => None,
        };
        let open = |path: PathBuf| KeptFile::open(&path).map_err(unreadable);
        let file = file.map_or(Err(UnknownReason::Absent), open);
        Self { file, window: None, totals: [StallTotal::default(); KEPT], len: 0 }
    }

    /// What the policy asks for.
    pub fn ask(&mut self, pressure: Option<&MemoryPsi>) {
        let window = pressure.and_then(|pressure| {
            let MemoryPsi { kind, avg10: _, trigger } = *pressure;
            let PsiTrigger { stall, window } = trigger?;
            let nanos = |duration: GoDuration| duration.as_nanos().max(0).unsigned_abs();
            Some(StallWindow { kind, stall_us: nanos(stall) / 1000, window_ns: nanos(window) })
        });
        if window != self.window {
            self.window = window;
            self.len = 0;
        }
    }

    /// How often stalls must be read for the window to be seen.
    pub fn interval_ns(&self) -> Option<u64> {
        self.window.map(|window| window.window_ns / 4)
    }

    /// Reads them; `now_ns` is of CLOCK_MONOTONIC.
    pub fn read(&mut self, now_ns: u64) -> PsiReading {
        let mut buffer = [0; 512];
        let read = self.file.as_ref().map_err(|why| *why).and_then(|file| file.read(&mut buffer));
        let Pressure { some, full } = match read {
            Ok(text) => parse_pressure(text),
            Err(why) => {
                let unknown = Reading::Unknown(why);
                return PsiReading {
                    some_avg10: unknown,
                    full_avg10: unknown,
                    stalled: Reading::Unknown(why),
                };
            }
        };
        PsiReading { some_avg10: some.avg10, full_avg10: full.avg10, stalled: self.judge(now_ns, some, full) }
    }

    /// Growth of the total since the oldest reading within the window. Of a window in which
    /// there was none nobody knows whether the stall was in it.
    fn judge(&mut self, now_ns: u64, some: PsiLine, full: PsiLine) -> Reading<bool> {
        let Some(StallWindow { kind, stall_us, window_ns }) = self.window else {
            return Reading::Unknown(UnknownReason::Absent);
        };
        let total = match kind {
            PsiKind::Some => some.total_us,
            PsiKind::Full => full.total_us,
        };
        let us = match total {
            Reading::Known(us) => us,
            Reading::Unknown(why) => return Reading::Unknown(why),
        };
        let kept = &self.totals[..self.len];
        if kept.last().is_some_and(|last| last.us > us || last.at_ns > now_ns) {
            // Another group in its place, or another clock.
            self.len = 0;
        }
        let old = |total: &&StallTotal| now_ns - total.at_ns > window_ns;
        let outdated = self.totals[..self.len].iter().take_while(old).count();
        let before = outdated.checked_sub(1).map(|last| self.totals[last]);
        self.totals.copy_within(outdated..self.len, 0);
        self.len -= outdated;
        let within = self.totals[..self.len].first().copied();
        let spacing_ns = window_ns / (KEPT as u64 - 2);
        let due = self.totals[..self.len].last().is_none_or(|last| now_ns - last.at_ns >= spacing_ns);
        if due && self.len < KEPT {
            self.totals[self.len] = StallTotal { at_ns: now_ns, us };
            self.len += 1;
        }
        match (within, before) {
            (Some(then), _) => Reading::Known(us - then.us >= stall_us),
            (None, Some(then)) if us - then.us < stall_us => Reading::Known(false),
            (None, _) => Reading::Unknown(UnknownReason::Stale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reading::{Known, Unknown};
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn stalls(stall_ms: i64, window_ms: i64) -> PsiReader {
        let mut stalls = PsiReader {
            file: Err(UnknownReason::Absent),
            window: None,
            totals: [StallTotal::default(); KEPT],
            len: 0,
        };
        let millis = |ms: i64| GoDuration::from_nanos(ms * 1_000_000);
        let trigger = PsiTrigger { stall: millis(stall_ms), window: millis(window_ms) };
        let window = MemoryPsi { kind: PsiKind::Some, avg10: None, trigger: Some(trigger) };
        stalls.ask(Some(&window));
        stalls
    }

    fn judge(stalls: &mut PsiReader, at_ms: u64, total_ms: u64) -> Reading<bool> {
        let stall = |total| PsiLine { avg10: Known(0), total_us: total };
        stalls.judge(at_ms * MS, stall(Known(total_ms * 1000)), stall(Unknown(UnknownReason::Absent)))
    }

    #[test]
    fn a_stall_within_the_window_counts_and_one_over_more_time_does_not() {
        let mut stalls = stalls(150, 1000);
        assert_eq!(judge(&mut stalls, 0, 500), Unknown(UnknownReason::Stale), "nothing to compare with");
        assert_eq!(judge(&mut stalls, 400, 600), Known(false));
        assert_eq!(judge(&mut stalls, 900, 650), Known(true));
        assert_eq!(judge(&mut stalls, 1300, 700), Known(false), "100 ms since 400");
        assert_eq!(judge(&mut stalls, 1500, 800), Known(true), "150 ms since 900");
    }

    #[test]
    fn after_a_long_time_only_too_little_is_certain() {
        let mut stalls = stalls(150, 1000);
        judge(&mut stalls, 0, 0);
        assert_eq!(judge(&mut stalls, 10_000, 149), Known(false));
        assert_eq!(judge(&mut stalls, 20_000, 1149), Unknown(UnknownReason::Stale));
        assert_eq!(judge(&mut stalls, 20_200, 1299), Known(true));
    }

    #[test]
    fn another_question_or_a_total_that_fell_starts_anew() {
        let mut stalls = stalls(150, 1000);
        judge(&mut stalls, 0, 500);
        assert_eq!(judge(&mut stalls, 100, 400), Unknown(UnknownReason::Stale));
        stalls.ask(None);
        assert_eq!(judge(&mut stalls, 200, 900), Unknown(UnknownReason::Absent));
    }

    #[test]
    fn this_machine() {
        let root = NodeRoot {
            memory: PathBuf::new(),
            version: Version::V1,
            pids: None,
            freezer: None,
            unified: None,
            whole_machine: true,
            partial: false,
        };
        let mut of_machine = PsiReader::open(&root, Path::new("/proc"));
        let exists = std::fs::read("/proc/pressure/memory").is_ok();
        assert_eq!(of_machine.read(1).some_avg10.known().is_some(), exists);
        let group = NodeRoot { whole_machine: false, ..root };
        assert_eq!(
            PsiReader::open(&group, Path::new("/proc")).read(1).some_avg10,
            Unknown(UnknownReason::Absent)
        );
    }

    proptest! {
        /// It says yes only if the total grew as much within the window, by any reading there was.
        #[test]
        fn yes_is_true(steps in prop::collection::vec((0..700_u64, 0..300_u64), 1..60)) {
            let mut stalls = stalls(150, 1000);
            let (mut at, mut total, mut all) = (0, 0, Vec::new());
            for (passed, stalled) in steps {
                at += passed;
                total += stalled;
                let grew = all.iter().filter(|(then, _)| at - then <= 1000).any(|(_, was)| total - was >= 150);
                if judge(&mut stalls, at, total) == Known(true) {
                    prop_assert!(grew);
                }
                all.push((at, total));
            }
        }
    }
}
