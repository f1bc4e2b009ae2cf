//! Work at a steady rate.

use std::time::{Duration, Instant};

/// Limits work to a number of bytes per second, counted from its creation.
pub(crate) struct Pace {
    start: Instant,
    rate: u64,
}

impl Pace {
    /// Creates a pace; `rate` 0 is unlimited.
    pub(crate) fn new(rate: u64) -> Self {
        Self { start: Instant::now(), rate }
    }

    /// Waits until `bytes` are due.
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
