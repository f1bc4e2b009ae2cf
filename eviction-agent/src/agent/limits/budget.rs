//! How often groups near their limits may wake the agent.

/// So many a second: each is a wake-up and a read of one group.
const PER_SECOND: u64 = 20;

/// So many at once, when many groups come to their limits together.
const AT_ONCE: u64 = 64;

const EACH_NS: u64 = 1_000_000_000 / PER_SECOND;

/// Page cache that comes and goes near a line wakes the agent at each floor's worth of charges. What
/// is beyond the budget is armed again later.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// When it is full again.
    full_ns: u64,
}

impl Budget {
    /// Takes one, if there is any.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        if self.next_ns(now_ns) > now_ns {
            return false;
        }
        self.full_ns = self.full_ns.max(now_ns).saturating_add(EACH_NS);
        true
    }

    /// When there will be one.
    pub(super) fn next_ns(&self, now_ns: u64) -> u64 {
        self.full_ns.saturating_sub((AT_ONCE - 1) * EACH_NS).max(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn many_at_once_and_then_so_many_a_second() {
        let mut budget = Budget::default();
        let taken = |budget: &mut Budget, now_ns| (0..1000).filter(|_| budget.take(now_ns)).count() as u64;
        assert_eq!(taken(&mut budget, SECOND), AT_ONCE);
        assert_eq!(budget.next_ns(SECOND), SECOND + EACH_NS);
        assert_eq!(taken(&mut budget, SECOND + EACH_NS), 1);
        assert_eq!(taken(&mut budget, 2 * SECOND), PER_SECOND - 1);
        assert_eq!(taken(&mut budget, 100 * SECOND), AT_ONCE);
        assert_eq!(taken(&mut budget, 0), 0, "a clock that goes back gives none");
    }
}
