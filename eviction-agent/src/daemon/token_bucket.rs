//! How often what is armed close to a line may wake the agent.

/// Page cache that comes and goes near a line wakes the agent at each floor's worth of charges: so many times at once,
/// and so many a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WakeBucket<const PER_SECOND: u64, const AT_ONCE: u64> {
    /// When all of them are there again.
    full_ns: u64,
}

impl<const PER_SECOND: u64, const AT_ONCE: u64> WakeBucket<PER_SECOND, AT_ONCE> {
    const EACH_NS: u64 = 1_000_000_000 / PER_SECOND;

    /// Takes one, if there is any.
    pub(crate) fn take(&mut self, now_ns: u64) -> bool {
        let is_left = self.is_left(now_ns);
        if is_left {
            self.full_ns = self.full_ns.max(now_ns).saturating_add(Self::EACH_NS);
        }
        is_left
    }

    /// Whether there is one.
    pub(crate) fn is_left(&self, now_ns: u64) -> bool {
        self.next_ns(now_ns) <= now_ns
    }

    /// When there will be one.
    pub(crate) fn next_ns(&self, now_ns: u64) -> u64 {
        self.full_ns.saturating_sub((AT_ONCE - 1) * Self::EACH_NS).max(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const EACH: u64 = SECOND / 20;

    #[test]
    fn many_at_once_and_then_so_many_a_second() {
        let mut wakes = WakeBucket::<20, 64>::default();
        let taken = |wakes: &mut WakeBucket<20, 64>, now_ns| (0..1000).filter(|_| wakes.take(now_ns)).count();
        assert_eq!(taken(&mut wakes, SECOND), 64);
        assert!(!wakes.is_left(SECOND) && wakes.is_left(SECOND + EACH));
        assert_eq!(wakes.next_ns(SECOND), SECOND + EACH);
        assert_eq!(taken(&mut wakes, SECOND + EACH), 1);
        assert_eq!(taken(&mut wakes, 2 * SECOND), 19);
        assert_eq!(taken(&mut wakes, 100 * SECOND), 64);
        assert_eq!(taken(&mut wakes, 0), 0, "a clock that goes back gives none");
    }
}
