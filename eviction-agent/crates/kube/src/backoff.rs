//! Retry pauses with jitter, and the clock of decisions.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use eviction_core::time::nanos;
use rustix::time::{ClockId, clock_gettime};

/// Pauses that double, each randomly shortened to not less than half, so that agents which lost the same
/// server do not all reconnect at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a backoff with pauses from `least` to `most`.
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// Returns the pause before the next attempt.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause / 2 + random_part_of(pause / 2)
    }

    /// Restarts at the shortest pause, after a successful attempt.
    pub(crate) fn reset(&mut self) {
        self.next = self.least;
    }
}

/// Returns a random part of `whole`.
pub(crate) fn random_part_of(whole: Duration) -> Duration {
    // The random keys of hash maps are the only source of randomness in the standard library.
    let chance = RandomState::new().hash_one(0_u8) >> 32;
    whole.mul_f64(f64::from(u32::try_from(chance).unwrap_or(u32::MAX)) / f64::from(u32::MAX))
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds, the clock of decision timestamps.
pub(crate) fn now_ns() -> u64 {
    // The monotonic clock starts near zero at boot and is never negative.
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn pauses_double_up_to_the_maximum_and_restart_after_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 8 * second);
        for most in [1, 2, 4, 8, 8] {
            let pause = backoff.pause();
            assert!(pause >= second * most / 2 && pause <= second * most, "{pause:?} of {most} s");
        }
        backoff.reset();
        assert!(backoff.pause() <= second);
    }
}
