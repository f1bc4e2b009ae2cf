//! Two clocks held together.
//!
//! The kernel stamps its records with `CLOCK_MONOTONIC`; the engine's inputs carry wall time.
//! Wall time is taken from the monotonic clock and an anchor, so that within one step of the
//! loop nothing runs backwards; the anchor follows the system's clock when that was set.

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// A difference below this is drift, which the next anchor removes without anybody noticing.
const STEP_NS: i128 = 50_000_000;

/// Monotonic nanoseconds with the wall time they stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    wall_ns: i128,
    mono_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { wall_ns: wall_ns(), mono_ns: mono_ns() }
    }

    /// The present, on both clocks.
    pub(crate) fn now(&mut self) -> Instant {
        let mono_ns = mono_ns();
        let real = wall_ns();
        let ours = self.wall_ns + i128::from(mono_ns) - i128::from(self.mono_ns);
        if (real - ours).abs() > STEP_NS {
            *self = Self { wall_ns: real, mono_ns };
        }
        self.at(mono_ns)
    }

    /// The wall time of a monotonic stamp.
    pub(crate) fn at(&self, mono_ns: u64) -> Instant {
        let wall = self.wall_ns + i128::from(mono_ns) - i128::from(self.mono_ns);
        // The range of a timestamp is thousands of years; the clock's is hundreds.
        Instant { wall: Timestamp::from_nanosecond(wall).unwrap_or(Timestamp::UNIX_EPOCH), mono_ns }
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instant {
    pub(crate) wall: Timestamp,
    pub(crate) mono_ns: u64,
}

/// `CLOCK_MONOTONIC` in nanoseconds, as `bpf_ktime_get_ns` has it.
pub(crate) fn mono_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative on this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn wall_ns() -> i128 {
    let now = clock_gettime(ClockId::Realtime);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_stamp_is_an_earlier_time() {
        let mut clock = Clock::start();
        let now = clock.now();
        let before = clock.at(now.mono_ns - 1_500);
        assert_eq!(now.wall.as_nanosecond() - before.wall.as_nanosecond(), 1_500);
    }

    #[test]
    fn a_clock_that_was_set_is_followed() {
        let mut clock = Clock::start();
        clock.wall_ns -= 3_600_000_000_000;
        let real = wall_ns();
        assert!((clock.now().wall.as_nanosecond() - real).abs() < STEP_NS);
    }
}
