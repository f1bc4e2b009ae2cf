//! The monotonic clock and the wall clock of the agent.
//!
//! The kernel stamps its records with `CLOCK_MONOTONIC`; the engine's inputs carry wall time. The engine gets a
//! steady time: the wall time of the agent's start plus the monotonic time since. So setting the system clock
//! does not affect grace periods. Times in the output are corrected when they are written, and times that
//! others stamped are converted to the steady time.
//!
//! The monotonic clock is that of the boot. An agent that continues the work of an earlier one also takes over
//! its steady time, so that a recorded time keeps its meaning.

use std::sync::OnceLock;
use std::time::Duration;

use eviction_core::time::nanos;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A difference below this is the time between two readings, or negligible drift.
const STEP_NS: i128 = 50_000_000;

/// The clock of this process, shared by all of its threads.
static PROCESS: OnceLock<Clock> = OnceLock::new();

/// Maps monotonic time to wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Clock {
    /// The steady time at which the monotonic clock was zero.
    zero: Timestamp,
}

impl Clock {
    /// Returns the clock of this process, and starts it at the first call.
    pub fn start() -> Self {
        *PROCESS.get_or_init(|| Self { zero: timestamp(wall_ns() - i128::from(mono_ns())) })
    }

    /// Takes over the clock of an earlier agent of this boot. Must be called before the first reading: a clock
    /// that has been started does not change.
    pub fn resume(former: Self) -> Self {
        *PROCESS.get_or_init(|| former)
    }

    /// Returns the current time on both clocks.
    pub fn now(&self) -> Instant {
        self.at(mono_ns())
    }

    /// Returns the steady time of a monotonic stamp.
    pub fn at(&self, mono_ns: u64) -> Instant {
        Instant { wall: timestamp(self.steady_ns(mono_ns)), mono_ns }
    }

    /// Returns the monotonic stamp of a steady time; 0 for a time before the monotonic clock began.
    pub fn mono_of(&self, steady: Timestamp) -> u64 {
        u64::try_from((steady.as_nanosecond() - self.zero.as_nanosecond()).max(0)).unwrap_or(u64::MAX)
    }

    /// Returns what the system clock shows, or would have shown, at a steady time.
    pub fn shown(&self, steady: Timestamp) -> Timestamp {
        timestamp(steady.as_nanosecond() + self.clock_step_ns(wall_ns(), mono_ns()))
    }

    /// Returns the steady time of a stamp of the system clock.
    pub fn steady(&self, shown: Timestamp) -> Timestamp {
        timestamp(shown.as_nanosecond() - self.clock_step_ns(wall_ns(), mono_ns()))
    }

    fn steady_ns(&self, mono_ns: u64) -> i128 {
        self.zero.as_nanosecond() + i128::from(mono_ns)
    }

    /// Returns by how much the system clock was set since the start.
    fn clock_step_ns(&self, wall_ns: i128, mono_ns: u64) -> i128 {
        let step = wall_ns - self.steady_ns(mono_ns);
        if step.abs() > STEP_NS { step } else { 0 }
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instant {
    /// Steady wall time.
    pub wall: Timestamp,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub mono_ns: u64,
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, as `bpf_ktime_get_ns` does.
pub fn mono_ns() -> u64 {
    // The monotonic clock starts near zero at boot and never shows a negative time.
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default())
}

fn wall_ns() -> i128 {
    let now = clock_gettime(ClockId::Realtime);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn timestamp(ns: i128) -> Timestamp {
    // The range of a timestamp is thousands of years; the clock's is hundreds.
    Timestamp::from_nanosecond(ns).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i128 = 3_600_000_000_000;

    #[test]
    fn monotonic_stamp_converts_to_steady_time_and_back() {
        let clock = Clock::start();
        let now = clock.now();
        let before = clock.at(now.mono_ns - 1_500);
        assert_eq!(now.wall.as_nanosecond() - before.wall.as_nanosecond(), 1_500);
        assert_eq!(clock.mono_of(before.wall), now.mono_ns - 1_500);
        assert_eq!(clock.mono_of(Timestamp::MIN), 0);
    }

    #[test]
    fn setting_the_system_clock_changes_only_displayed_times() {
        let start = Clock { zero: timestamp(wall_ns() - i128::from(mono_ns())) };
        for step in [HOUR_NS, -HOUR_NS] {
            // As if the system clock had been set by this much since the start.
            let clock = Clock { zero: timestamp(start.zero.as_nanosecond() - step) };
            let steady = clock.now().wall;
            let later = clock.at(7).wall.as_nanosecond();
            assert_eq!(later, start.zero.as_nanosecond() - step + 7, "the engine's time goes on as it went");
            let off = clock.shown(steady).as_nanosecond() - steady.as_nanosecond() - step;
            assert!(off.abs() < STEP_NS, "{off}");
            let back = clock.steady(clock.shown(steady)).as_nanosecond() - steady.as_nanosecond();
            assert!(back.abs() < STEP_NS, "{back}");
        }
    }

    #[test]
    fn small_difference_of_the_clocks_is_not_a_step() {
        let clock = Clock { zero: timestamp(990) };
        assert_eq!(clock.clock_step_ns(1_000 + 90 + STEP_NS, 100), 0);
        assert_eq!(clock.clock_step_ns(1_000 + 91 + STEP_NS, 100), STEP_NS + 1);
    }
}
