//! The growth of a process by its own clock: how much it had touched at which time, when a threshold was
//! crossed, and how far beyond it the process was at a given time.

use crate::stamps::{Record, Stamp};

/// The stamps of one growing process, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    stamps: Vec<Stamp>,
}

/// The pages that one page table maps. The table is a page itself, charged to the same cgroup.
const PAGES_PER_TABLE: u64 = 512;

/// The bytes that a CPU charges at once, and that a growing process touches between two stamps: 64 pages
/// (`MEMCG_CHARGE_BATCH`, `mm/memcontrol.c`).
const CHARGE_BATCH: u64 = 64 << 12;

/// The bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

impl Growth {
    /// Creates a growth from stamps. It ends before the first stamp that goes back in time or in bytes.
    pub fn new(stamps: impl IntoIterator<Item = Stamp>) -> Self {
        let mut accepted: Vec<Stamp> = Vec::new();
        for stamp in stamps {
            match accepted.last() {
                Some(last) if stamp.ns < last.ns || stamp.bytes < last.bytes => break,
                _ => accepted.push(stamp),
            }
        }
        Self { stamps: accepted }
    }

    /// Creates a growth from the record of a workload.
    pub fn of(record: &Record) -> Self {
        let go = record.go.map(|ns| Stamp { ns, bytes: 0 });
        Self::new(go.into_iter().chain(record.stamps.iter().copied()))
    }

    /// Creates a growth from the record of several threads that grow together: one may stamp a smaller sum
    /// after another one has stamped a larger sum.
    pub fn of_threads(record: &Record) -> Self {
        let mut most = 0;
        let stamps = record.stamps.iter().map(|stamp| {
            most = stamp.bytes.max(most);
            Stamp { bytes: most, ..*stamp }
        });
        Self::new(record.go.map(|ns| Stamp { ns, bytes: 0 }).into_iter().chain(stamps))
    }

    /// Returns the last stamp.
    pub fn last(&self) -> Option<Stamp> {
        self.stamps.last().copied()
    }

    /// Returns the bytes touched at that time, interpolated; before the first stamp those of the first, after
    /// the last those of the last.
    pub fn bytes_at(&self, ns: u64) -> Option<u64> {
        let after = self.stamps.partition_point(|stamp| stamp.ns <= ns);
        let Some(before) = after.checked_sub(1).and_then(|i| self.stamps.get(i)) else {
            return self.stamps.first().map(|stamp| stamp.bytes);
        };
        let Some(next) = self.stamps.get(after) else { return Some(before.bytes) };
        let share = ratio(ns - before.ns, next.ns - before.ns);
        Some(before.bytes + scale(next.bytes - before.bytes, share))
    }

    /// Returns when so many bytes had been touched, interpolated; `None` if they never were.
    pub fn reached(&self, bytes: u64) -> Option<u64> {
        let at = self.stamps.partition_point(|stamp| stamp.bytes < bytes);
        let next = self.stamps.get(at)?;
        let Some(before) = at.checked_sub(1).and_then(|i| self.stamps.get(i)) else {
            return Some(next.ns);
        };
        let share = ratio(bytes - before.bytes, next.bytes - before.bytes);
        Some(before.ns + scale(next.ns - before.ns, share))
    }

    /// Returns the bytes per second between two times; `None` if no time is between them.
    pub fn rate(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        let grown = self.bytes_at(to_ns)?.checked_sub(self.bytes_at(from_ns)?)?;
        let time = to_ns.checked_sub(from_ns).filter(|time| *time > 0)?;
        Some(grown as f64 * 1e9 / time as f64)
    }
}

/// The growth of a node's working set, and the threshold value that it must not exceed.
#[derive(Clone, Debug)]
pub struct WorkingSetGrowth {
    growth: Growth,
    base: u64,
    threshold: u64,
    pages: Pages,
}

/// The memory that is charged when a page is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The page, and its share of a new page table.
    Fresh,
    /// The page alone: the page table exists.
    Refault,
    /// 2 MiB at once, with their first page.
    Huge,
}

impl WorkingSetGrowth {
    /// Creates a growth; `base` is the working set before the growth.
    pub fn new(growth: Growth, base: u64, threshold: u64, pages: Pages) -> Self {
        Self { growth, base, threshold, pages }
    }

    /// Returns the growth.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Returns when the working set exceeded the threshold value; `None` if it never did.
    pub fn crossed(&self) -> Option<u64> {
        let charged = self.threshold.checked_sub(self.base)?;
        self.growth.reached(self.pages.touched(charged))
    }

    /// Returns when the threshold was crossed by what was charged, though not by what was touched: each CPU
    /// charges a batch ahead, and the process stamps once per batch. Only valid for a growth that was ended
    /// there; `None` if it was not that close. `charged_by_others` is what others may have charged meanwhile, bytes.
    pub fn crossed_by_batched_charges(&self, charged_by_others: u64) -> Option<u64> {
        let last = self.growth.last()?;
        let short = self.overshoot(last.ns)?.checked_neg()?;
        (u64::try_from(short).unwrap_or(0) <= max_batched_bytes() + charged_by_others).then_some(last.ns)
    }

    /// Returns the earliest time at which the working set may have exceeded the threshold value, with what is
    /// charged ahead; `None` if it never did.
    pub fn crossed_at_the_earliest(&self) -> Option<u64> {
        let charged = self.threshold.checked_sub(self.base)?.saturating_sub(max_batched_bytes());
        self.growth.reached(self.pages.touched(charged))
    }

    /// Returns the bytes beyond the threshold value at that time; negative below it.
    pub fn overshoot(&self, ns: u64) -> Option<i64> {
        let working_set = self.base + self.pages.charged(self.growth.bytes_at(ns)?);
        i64::try_from(i128::from(working_set) - i128::from(self.threshold)).ok()
    }
}

/// Returns the bytes that may be charged and not touched yet, or touched and not stamped.
fn max_batched_bytes() -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    CHARGE_BATCH.saturating_mul(u64::try_from(cpus).unwrap_or(u64::MAX).saturating_add(1))
}

impl Pages {
    fn charged(self, touched: u64) -> u64 {
        match self {
            Self::Fresh => touched + touched / PAGES_PER_TABLE,
            Self::Refault => touched,
            Self::Huge => touched.next_multiple_of(HUGE_PAGE),
        }
    }

    /// Returns the smallest amount that charges so much, the inverse of [`Self::charged`].
    fn touched(self, charged: u64) -> u64 {
        match self {
            Self::Fresh => {
                charged / (PAGES_PER_TABLE + 1) * PAGES_PER_TABLE + charged % (PAGES_PER_TABLE + 1)
            }
            Self::Refault => charged,
            Self::Huge if charged.is_multiple_of(HUGE_PAGE) => charged.saturating_sub(HUGE_PAGE) + 1,
            Self::Huge => charged / HUGE_PAGE * HUGE_PAGE + 1,
        }
    }
}

fn ratio(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a u64 is between 0 and that u64"
)]
fn scale(whole: u64, share: f64) -> u64 {
    (whole as f64 * share).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth() -> Growth {
        Growth::new([(100, 0), (200, 1000), (300, 3000)].map(|(ns, bytes)| Stamp { ns, bytes }))
    }

    #[test]
    fn times_and_bytes_are_interpolated_between_stamps() {
        let growth = growth();
        assert_eq!(growth.reached(0), Some(100));
        assert_eq!(growth.reached(500), Some(150));
        assert_eq!(growth.reached(1000), Some(200));
        assert_eq!(growth.reached(2000), Some(250));
        assert_eq!(growth.reached(3000), Some(300));
        assert_eq!(growth.bytes_at(150), Some(500));
        assert_eq!(growth.bytes_at(250), Some(2000));
    }

    #[test]
    fn values_are_not_extrapolated_beyond_the_stamps() {
        let growth = growth();
        assert_eq!(growth.reached(3001), None);
        assert_eq!(growth.bytes_at(0), Some(0));
        assert_eq!(growth.bytes_at(1000), Some(3000));
        assert_eq!(Growth::default().bytes_at(5), None);
        assert_eq!(Growth::default().reached(5), None);
    }

    #[test]
    fn batched_charges_count_for_a_crossing() {
        let ended_at = |bytes| {
            let growth = Growth::new([(1, 0), (2, bytes)].map(|(ns, bytes)| Stamp { ns, bytes }));
            WorkingSetGrowth::new(growth, 0, 100 << 20, Pages::Refault)
        };
        let threshold = 100 << 20;
        assert_eq!(ended_at(threshold).crossed(), Some(2));
        assert_eq!(
            (ended_at(threshold - 1).crossed(), ended_at(threshold - 1).crossed_by_batched_charges(0)),
            (None, Some(2))
        );
        assert_eq!(ended_at(threshold - 2 * CHARGE_BATCH).crossed_by_batched_charges(0), Some(2));
        assert_eq!(ended_at(threshold / 2).crossed_by_batched_charges(0), None);
        assert_eq!(ended_at(threshold / 2).crossed_by_batched_charges(threshold / 2), Some(2));
        let steady = Growth::new([(0, 0), (2000, 2 * threshold)].map(|(ns, bytes)| Stamp { ns, bytes }));
        let steady = WorkingSetGrowth::new(steady, 0, threshold, Pages::Refault);
        let [earliest, crossed] = [steady.crossed_at_the_earliest(), steady.crossed()].map(Option::unwrap);
        assert_eq!(crossed, 1000);
        assert!((1..1000).contains(&earliest), "{earliest}");
    }

    #[test]
    fn growth_ends_before_the_first_decreasing_stamp() {
        let stamps = [(1, 10), (2, 20), (3, 5), (4, 30)].map(|(ns, bytes)| Stamp { ns, bytes });
        assert_eq!(Growth::new(stamps).last(), Some(Stamp { ns: 2, bytes: 20 }));
    }

    #[test]
    fn growth_rate_is_in_bytes_per_second() {
        assert_eq!(growth().rate(100, 200), Some(1000.0 * 1e7));
        assert_eq!(growth().rate(200, 200), None);
    }

    #[test]
    fn stamps_with_equal_times_do_not_divide_by_zero() {
        let stamps = [(1, 0), (1, 10), (1, 20)].map(|(ns, bytes)| Stamp { ns, bytes });
        let growth = Growth::new(stamps);
        assert_eq!(growth.reached(15), Some(1));
        assert_eq!(growth.bytes_at(1), Some(20));
    }

    #[test]
    fn charges_include_page_tables() {
        assert_eq!(Pages::Fresh.charged(512 << 20), 513 << 20);
        assert_eq!(Pages::Fresh.touched(513 << 20), 512 << 20);
        assert_eq!(Pages::Refault.touched(Pages::Refault.charged(7)), 7);
    }

    #[test]
    fn a_huge_page_is_charged_with_its_first_byte() {
        assert_eq!(
            [0, 1, HUGE_PAGE, HUGE_PAGE + 1].map(|touched| Pages::Huge.charged(touched)),
            [0, HUGE_PAGE, HUGE_PAGE, 2 * HUGE_PAGE]
        );
        for charged in [1, HUGE_PAGE, HUGE_PAGE + 1, 2 * HUGE_PAGE] {
            let touched = Pages::Huge.touched(charged);
            assert!(Pages::Huge.charged(touched) >= charged && Pages::Huge.charged(touched - 1) < charged);
        }
    }

    #[test]
    fn growth_of_threads_accepts_stamps_out_of_order() {
        let stamps = [(10, 5), (12, 15), (13, 10), (15, 20)].map(|(ns, bytes)| Stamp { ns, bytes });
        let record = Record { go: Some(1), stamps: stamps.to_vec(), ..Record::default() };
        assert_eq!(Growth::of(&record).last().unwrap().bytes, 15);
        assert_eq!(Growth::of_threads(&record).last().unwrap().bytes, 20);
    }

    #[test]
    fn crossing_time_and_overshoot_are_interpolated() {
        let growth = WorkingSetGrowth::new(growth(), 500, 2500, Pages::Refault);
        assert_eq!(growth.crossed(), Some(250));
        assert_eq!(growth.overshoot(250), Some(0));
        assert_eq!(growth.overshoot(300), Some(1000));
        assert_eq!(growth.overshoot(200), Some(-1000));
    }

    #[test]
    fn threshold_below_base_or_beyond_growth_is_never_crossed() {
        assert_eq!(WorkingSetGrowth::new(growth(), 500, 400, Pages::Refault).crossed(), None);
        assert_eq!(WorkingSetGrowth::new(growth(), 500, 3501, Pages::Refault).crossed(), None);
    }
}
