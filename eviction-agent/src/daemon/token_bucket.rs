//! Bounds how often kernel thresholds may wake the agent.

/// So many wakeups in a burst, and so many per second: page cache that comes and goes near a threshold crosses it again
/// and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket<const PER_SECOND: u64, const BURST: u64> {
    /// When the bucket is full again.
    full_ns: u64,
}

impl<const PER_SECOND: u64, const BURST: u64> TokenBucket<PER_SECOND, BURST> {
    const EACH_NS: u64 = 1_000_000_000 / PER_SECOND;

    /// Takes a token, if there is any; returns whether there was.
    pub(crate) fn take(&mut self, now_ns: u64) -> bool {
        let is_left = self.is_left(now_ns);
        if is_left {
            self.full_ns = self.full_ns.max(now_ns).saturating_add(Self::EACH_NS);
        }
        is_left
    }

    /// Returns whether there is a token.
    pub(crate) fn is_left(&self, now_ns: u64) -> bool {
        self.next_ns(now_ns) <= now_ns
    }

    /// Returns when there will be a token.
    pub(crate) fn next_ns(&self, now_ns: u64) -> u64 {
        self.full_ns.saturating_sub((BURST - 1) * Self::EACH_NS).max(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const EACH: u64 = SECOND / 20;

    #[test]
    fn a_burst_and_then_so_many_per_second() {
        let mut tokens = TokenBucket::<20, 64>::default();
        let taken =
            |tokens: &mut TokenBucket<20, 64>, now_ns| (0..1000).filter(|_| tokens.take(now_ns)).count();
        assert_eq!(taken(&mut tokens, SECOND), 64);
        assert!(!tokens.is_left(SECOND) && tokens.is_left(SECOND + EACH));
        assert_eq!(tokens.next_ns(SECOND), SECOND + EACH);
        assert_eq!(taken(&mut tokens, SECOND + EACH), 1);
        assert_eq!(taken(&mut tokens, 2 * SECOND), 19);
        assert_eq!(taken(&mut tokens, 100 * SECOND), 64);
        assert_eq!(taken(&mut tokens, 0), 0, "a clock that goes back gives none");
    }
}
