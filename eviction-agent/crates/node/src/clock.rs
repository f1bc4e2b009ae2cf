//! Two clocks held together.
//!
//! The kernel stamps its records with `CLOCK_MONOTONIC`; the engine's inputs carry wall time. What
//! the engine is told is steady: the wall time of the agent's start and the monotonic time since,
//! so that a system clock that is set ends no grace period and raises no dead. What people read is
//! put right when it is written, and what others have stamped is brought to the steady time.
//!
//! The monotonic clock is that of the boot. An agent that goes on where another one ended takes over its
//! steady time as well, so that a time that was written down is still the same time.

use std::sync::OnceLock;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A difference below this is the time between two readings, or drift that nobody notices.
const STEP_NS: i128 = 50_000_000;

/// The clock of this process: the same for everybody in it.
static PROCESS: OnceLock<Clock> = OnceLock::new();

/// The wall time that belongs to a monotonic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Clock {
    /// The steady time at which the monotonic clock was zero.
    zero: Timestamp,
}

impl Clock {
    /// The clock of this process.
    pub fn start() -> Self {
        *PROCESS.get_or_init(|| Self { zero: timestamp(wall_ns() - i128::from(mono_ns())) })
    }

    /// The same, as another agent of this boot had it. To be called before anybody asks for the time:
    /// a clock that runs goes on.
    pub fn resume(former: Self) -> Self {
        *PROCESS.get_or_init(|| former)
    }

    /// The present, on both clocks.
    pub fn now(&self) -> Instant {
        self.at(mono_ns())
    }

    /// The steady time of a monotonic stamp.
    pub fn at(&self, mono_ns: u64) -> Instant {
        Instant { wall: timestamp(self.steady_ns(mono_ns)), mono_ns }
    }

    /// The monotonic stamp of a steady time; nothing is before the monotonic clock began.
    pub fn mono_of(&self, steady: Timestamp) -> u64 {
        u64::try_from((steady.as_nanosecond() - self.zero.as_nanosecond()).max(0)).unwrap_or(u64::MAX)
    }

    /// What the system's clock shows, or would have shown, at a steady time.
    pub fn shown(&self, steady: Timestamp) -> Timestamp {
        timestamp(steady.as_nanosecond() + self.was_set_by(wall_ns(), mono_ns()))
    }

    /// The steady time of what somebody stamped by the system's clock.
    pub fn steady(&self, shown: Timestamp) -> Timestamp {
        timestamp(shown.as_nanosecond() - self.was_set_by(wall_ns(), mono_ns()))
    }

    fn steady_ns(&self, mono_ns: u64) -> i128 {
        self.zero.as_nanosecond() + i128::from(mono_ns)
    }

    /// By how much the system's clock was set since the start.
    fn was_set_by(&self, wall_ns: i128, mono_ns: u64) -> i128 {
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

/// `CLOCK_MONOTONIC` in nanoseconds, as `bpf_ktime_get_ns` has it.
pub fn mono_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The monotonic clock starts near zero at boot and never shows a negative time.
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000)
        + u64::try_from(now.tv_nsec).unwrap_or(0)
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
    fn an_earlier_stamp_is_an_earlier_time() {
        let clock = Clock::start();
        let now = clock.now();
        let before = clock.at(now.mono_ns - 1_500);
        assert_eq!(now.wall.as_nanosecond() - before.wall.as_nanosecond(), 1_500);
        assert_eq!(clock.mono_of(before.wall), now.mono_ns - 1_500);
        assert_eq!(clock.mono_of(Timestamp::MIN), 0);
    }

    #[test]
    fn a_clock_that_is_set_moves_what_people_read_and_nothing_else() {
        let start = Clock { zero: timestamp(wall_ns() - i128::from(mono_ns())) };
        for step in [HOUR_NS, -HOUR_NS] {
            // As if the system's clock had been set by so much since.
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
    fn between_two_readings_nothing_was_set() {
        let clock = Clock { zero: timestamp(990) };
        assert_eq!(clock.was_set_by(1_000 + 90 + STEP_NS, 100), 0);
        assert_eq!(clock.was_set_by(1_000 + 91 + STEP_NS, 100), STEP_NS + 1);
    }
}
