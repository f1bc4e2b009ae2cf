//! Pauses between tries, and the clock of decisions.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Pauses that double, each of them shortened by chance to at least half, so that agents that lost
/// the same server do not come back all at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `least` to `most`.
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// The pause before the next try.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause / 2 + part_of(pause / 2)
    }

    /// A try was good.
    pub(crate) fn reset(&mut self) {
        self.next = self.least;
    }
}

/// Some part of `whole`, by chance.
pub(crate) fn part_of(whole: Duration) -> Duration {
    // Keys of hash maps are the randomness that the standard library has.
    let chance = RandomState::new().hash_one(0_u8) >> 32;
    whole.mul_f64(f64::from(u32::try_from(chance).unwrap_or(u32::MAX)) / f64::from(u32::MAX))
}

/// Nanoseconds of CLOCK_MONOTONIC, which decisions are stamped with.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The monotonic clock starts near zero at boot and never shows a negative time.
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Backoff;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_anew() {
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
