//! A steady rate.

use std::time::{Duration, Instant};

/// Keeps work at a number of bytes per second, counted from its making.
pub(crate) struct Pace {
    start: Instant,
    rate: u64,
}

impl Pace {
    /// `rate` 0 does not hold back.
    pub(crate) fn new(rate: u64) -> Self {
        Self { start: Instant::now(), rate }
    }

    /// Waits until `bytes` may have been done.
    pub(crate) fn wait(&self, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        if let Some(rest) = due.checked_sub(self.start.elapsed()) {
            std::thread::sleep(rest);
        }
    }
}
