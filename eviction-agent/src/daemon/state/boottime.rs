//! One moment on the clocks that a process has for itself and on the one that outlives it.

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};

use super::super::clock::Clock;

/// Readings of one moment. Kept are times of `CLOCK_BOOTTIME`: nobody sets it, and it goes on
/// while the machine sleeps. The wall clock has no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    pub(super) boot_ns: i64,
    /// The engine's clock.
    pub(super) steady: Timestamp,
    pub(super) mono_ns: u64,
}

impl Clocks {
    /// The present.
    pub(crate) fn now() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let now = Clock::start().now();
        let boot_ns = boot.tv_sec.saturating_mul(1_000_000_000).saturating_add(boot.tv_nsec);
        Self { boot_ns, steady: now.wall, mono_ns: now.mono_ns }
    }

    /// An engine's time, to be kept.
    pub(super) fn kept(self, steady: Timestamp) -> i64 {
        let ago = self.steady.as_nanosecond() - steady.as_nanosecond();
        self.boot_ns.saturating_sub(clamped(ago))
    }

    /// A kept time, for the engine of this process.
    pub(super) fn steady(self, kept_ns: i64) -> Timestamp {
        let ago = SignedDuration::from_nanos(self.boot_ns.saturating_sub(kept_ns));
        self.steady.checked_sub(ago).unwrap_or(self.steady)
    }

    /// A stamp of the monotonic clock, to be kept.
    pub(super) fn kept_mono(self, mono_ns: u64) -> i64 {
        let ago = i128::from(self.mono_ns) - i128::from(mono_ns);
        self.boot_ns.saturating_sub(clamped(ago))
    }

    /// A kept time as a stamp of the monotonic clock. What was before it began is its beginning.
    pub(super) fn mono(self, kept_ns: i64) -> u64 {
        let ago = i128::from(self.boot_ns) - i128::from(kept_ns);
        u64::try_from((i128::from(self.mono_ns) - ago).max(0)).unwrap_or(self.mono_ns)
    }
}

fn clamped(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_on_the_clocks_of_another_process() {
        let second = |second| Timestamp::from_second(second).unwrap();
        let one = Clocks { boot_ns: 50_000_000_000, steady: second(1_000), mono_ns: 40_000_000_000 };
        // Started 7 s later, while somebody had set the wall clock back by hours.
        let other = Clocks { boot_ns: 57_000_000_000, steady: second(-9_000), mono_ns: 47_000_000_000 };
        assert_eq!(other.steady(one.kept(second(998))), second(-9_009));
        assert_eq!(other.mono(one.kept_mono(38_000_000_000)), 38_000_000_000);
        // The machine slept for 3 s meanwhile.
        let slept = Clocks { mono_ns: 44_000_000_000, ..other };
        assert_eq!(slept.mono(one.kept_mono(38_000_000_000)), 35_000_000_000);
        assert_eq!(slept.mono(0), 0);
        assert_eq!(slept.mono(i64::MIN), 0);
        assert_eq!(one.kept_mono(u64::MAX), i64::MAX);
    }

    #[test]
    fn the_present_is_the_same_on_all() {
        let clocks = Clocks::now();
        assert_eq!(clocks.steady(clocks.kept(clocks.steady)), clocks.steady);
        assert_eq!(clocks.mono(clocks.kept_mono(clocks.mono_ns)), clocks.mono_ns);
    }
}
