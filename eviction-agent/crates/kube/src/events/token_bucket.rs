//! How many requests there may be: a bucket of tokens.

/// Requests that may go out at once.
pub(super) const BURST: u64 = 20;

/// One more may go out each so often: with the burst no more than 44 within a minute.
pub(super) const INTERVAL_NS: u64 = 2_500_000_000;

/// What is left over for what must not wait behind a storm.
const RESERVE: u64 = 5;

/// The bucket, in nanoseconds of [`INTERVAL_NS`] saved up.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    saved_ns: u64,
    looked_ns: u64,
}

impl TokenBucket {
    /// A full one.
    pub(super) fn new(now_ns: u64) -> Self {
        Self { saved_ns: BURST * INTERVAL_NS, looked_ns: now_ns }
    }

    /// Takes a token for a request, or says when there will be one. The reserve is for what is urgent.
    pub(super) fn take(&mut self, urgent: bool, now_ns: u64) -> Result<(), u64> {
        let passed = now_ns.saturating_sub(self.looked_ns);
        self.saved_ns = self.saved_ns.saturating_add(passed).min(BURST * INTERVAL_NS);
        self.looked_ns = self.looked_ns.max(now_ns);
        let left_over = if urgent { 0 } else { RESERVE };
        match self.saved_ns.checked_sub((1 + left_over) * INTERVAL_NS) {
            Some(_) => {
                self.saved_ns -= INTERVAL_NS;
                Ok(())
            }
            None => Err(now_ns + ((1 + left_over) * INTERVAL_NS - self.saved_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_storm_gets_its_burst_and_then_one_each_interval() {
        let mut bucket = TokenBucket::new(0);
        let mut taken = 0;
        while bucket.take(false, 0).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, BURST - RESERVE);
        assert_eq!(bucket.take(false, 0), Err(INTERVAL_NS));
        assert!(bucket.take(true, 0).is_ok(), "what is urgent does not wait behind it");
        let mut in_a_minute = taken + 1;
        for millis in 0..60_000 {
            while bucket.take(true, millis * 1_000_000).is_ok() {
                in_a_minute += 1;
            }
        }
        assert!(in_a_minute <= BURST + 60 * SECOND / INTERVAL_NS, "{in_a_minute}");
    }

    #[test]
    fn what_is_saved_up_is_bounded_and_a_clock_that_goes_back_saves_nothing() {
        let mut bucket = TokenBucket::new(100 * SECOND);
        while bucket.take(true, 100 * SECOND).is_ok() {}
        assert!(bucket.take(true, 50 * SECOND).is_err());
        assert!(bucket.take(true, 101 * SECOND).is_err());
        let taken = (0..1_000).take_while(|_| bucket.take(true, 100_000 * SECOND).is_ok()).count();
        assert_eq!(taken as u64, BURST);
    }
}
