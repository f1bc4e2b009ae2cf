//! Times as they arrive with inputs. The core has no clock.

use std::time::Duration;

use jiff::SignedDuration;

use super::units::{GoDuration, nearest_i64};

/// A point in time, UTC, to the nanosecond.
pub type Timestamp = jiff::Timestamp;

/// Go's zero `time.Time`, the start of year 1. For the kubelet it means "no time".
pub const GO_ZERO: Timestamp = Timestamp::constant(-62_135_596_800, 0);

/// Returns whether the time of a statistic is unset: absent, or Go's zero time.
pub fn is_unset(time: Option<Timestamp>) -> bool {
    time.is_none_or(|time| time == GO_ZERO)
}

/// Returns `now − then`, negative if the clock was set back: Go's `Time.Sub`, which is limited to ±292 years.
pub fn since(now: Timestamp, then: Timestamp) -> GoDuration {
    GoDuration::from_nanos(nearest_i64(now.as_nanosecond() - then.as_nanosecond()))
}

/// Returns `time + by`. If that is out of range, the time stays as it is.
pub fn later(time: Timestamp, by: GoDuration) -> Timestamp {
    time.checked_add(SignedDuration::from_nanos(by.as_nanos())).unwrap_or(time)
}

/// Returns a duration in nanoseconds, as in monotonic timestamps. A duration that does not fit 64 bits
/// becomes the maximum.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A limit of a rate: `BURST` tokens at once, and one more in each `INTERVAL_NS`. Full at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket<const INTERVAL_NS: u64, const BURST: u64> {
    /// When the bucket is full again.
    full_ns: u64,
}

impl<const INTERVAL_NS: u64, const BURST: u64> TokenBucket<INTERVAL_NS, BURST> {
    /// Takes a token. Returns whether there was one.
    pub fn take(&mut self, now_ns: u64) -> bool {
        self.take_unreserved(0, now_ns).is_ok()
    }

    /// Takes a token if more than `reserve` are left. Otherwise returns when there will be one.
    ///
    /// # Errors
    /// The time of the next token.
    pub fn take_unreserved(&mut self, reserve: u64, now_ns: u64) -> Result<(), u64> {
        let next_ns = self.next_unreserved_ns(reserve);
        if next_ns > now_ns {
            return Err(next_ns);
        }
        self.full_ns = self.full_ns.max(now_ns).saturating_add(INTERVAL_NS);
        Ok(())
    }

    /// Returns whether there is a token.
    pub fn has_token(&self, now_ns: u64) -> bool {
        self.next_unreserved_ns(0) <= now_ns
    }

    /// Returns when there will be a token.
    pub fn next_ns(&self, now_ns: u64) -> u64 {
        self.next_unreserved_ns(0).max(now_ns)
    }

    fn next_unreserved_ns(&self, reserve: u64) -> u64 {
        self.full_ns.saturating_sub((BURST - reserve - 1) * INTERVAL_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::TokenBucket;

    const SECOND: u64 = 1_000_000_000;
    const EACH: u64 = SECOND / 20;

    type Tokens = TokenBucket<EACH, 64>;

    fn taken(tokens: &mut Tokens, now_ns: u64) -> usize {
        (0..1000).filter(|_| tokens.take(now_ns)).count()
    }

    #[test]
    fn a_token_bucket_allows_a_burst_and_then_a_constant_rate() {
        let mut tokens = Tokens::default();
        assert_eq!(taken(&mut tokens, SECOND), 64);
        assert!(!tokens.has_token(SECOND) && tokens.has_token(SECOND + EACH));
        assert_eq!(tokens.next_ns(SECOND), SECOND + EACH);
        assert_eq!(taken(&mut tokens, SECOND + EACH), 1);
        assert_eq!(taken(&mut tokens, 2 * SECOND), 19);
        assert_eq!(taken(&mut tokens, 100 * SECOND), 64);
        assert_eq!(taken(&mut tokens, 0), 0, "a clock that goes back gives none");
    }

    #[test]
    fn reserved_tokens_are_left_for_others() {
        let mut tokens = Tokens::default();
        let unreserved = (0..1000).filter(|_| tokens.take_unreserved(5, 0).is_ok()).count();
        assert_eq!(unreserved, 59);
        assert_eq!(tokens.take_unreserved(5, 0), Err(EACH));
        assert_eq!(taken(&mut tokens, 0), 5);
    }
}
