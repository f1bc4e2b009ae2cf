//! Pauses between tries.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Pauses that double, each of them shortened by chance to at least half, so that agents that lost
/// the same server do not come back all at once.
#[derive(Clone, Debug)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `least` to `most`.
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause / 2 + part_of(pause / 2)
    }

    /// A try was good.
    pub fn reset(&mut self) {
        self.next = self.least;
    }
}

/// Some part of `whole`, by chance.
pub fn part_of(whole: Duration) -> Duration {
    // Keys of hash maps are the randomness that the standard library has.
    let chance = RandomState::new().hash_one(0_u8) >> 32;
    whole.mul_f64(f64::from(u32::try_from(chance).unwrap_or(u32::MAX)) / f64::from(u32::MAX))
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
