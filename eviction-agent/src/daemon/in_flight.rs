//! The eviction that is under way, where the engine remembers none.
//!
//! The kubelet waits up to 30 s for its victim to be gone before it looks again
//! (`eviction_manager.go: waitForPodsCleanup`, `podCleanupTimeout`). So does the agent: no
//! second victim for the same pressure until the first is gone or the time is over. Where
//! evictions are sized, the engine knows what is on its way, and nothing waits here.

use eviction_core::policy::VictimsPerPass;

/// `podCleanupTimeout`.
const PATIENCE_NS: u64 = 30_000_000_000;

/// `monitoringInterval`: after a victim was refused the same one would be chosen again at once.
const REFUSED_NS: u64 = 10_000_000_000;

/// What is under way, by the monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightClock {
    victims: Vec<u64>,
    until_ns: u64,
}

impl InFlightClock {
    /// What waits for the last victim to go, if anything has to.
    pub(crate) fn of(victims: VictimsPerPass) -> Option<Self> {
        (victims == VictimsPerPass::One).then(Self::default)
    }

    /// An eviction begins.
    pub(crate) fn begin(&mut self, decision: u64, now_ns: u64) {
        self.victims.push(decision);
        self.until_ns = self.until_ns.max(now_ns.saturating_add(PATIENCE_NS));
    }

    /// It was refused: nothing is under way, but to choose again at once would choose the same.
    pub(crate) fn refused(&mut self, decision: u64, now_ns: u64) {
        self.rest(decision, now_ns, REFUSED_NS);
    }

    /// Nobody was asked, and nobody is for so long, but for no longer than a victim is waited for: meanwhile nothing
    /// else is decided either.
    pub(crate) fn rest(&mut self, decision: u64, now_ns: u64, pause_ns: u64) {
        if self.victims.iter().all(|victim| *victim == decision) {
            self.until_ns = now_ns.saturating_add(pause_ns.min(PATIENCE_NS));
        }
    }

    /// It is over, whatever came of it. True if it was the last one under way.
    pub(crate) fn end(&mut self, decision: u64) -> bool {
        let before = self.victims.len();
        self.victims.retain(|victim| *victim != decision);
        before > 0 && self.victims.is_empty()
    }

    /// Whether another victim must wait.
    pub(crate) fn holds(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.until_ns {
            self.victims.clear();
        }
        !self.victims.is_empty()
    }

    /// When patience ends, if something is under way.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        (!self.victims.is_empty()).then_some(self.until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_until_the_last_victim_is_gone() {
        let mut flight = InFlightClock::default();
        assert!(!flight.holds(0));
        flight.begin(1, 10);
        flight.begin(2, 20);
        assert!(!flight.end(1));
        assert!(flight.holds(30));
        assert!(!flight.end(1), "ended once already");
        assert!(flight.end(2));
        assert!(!flight.holds(30));
        assert_eq!(flight.until_ns(), None);
    }

    #[test]
    fn a_refusal_is_thought_over_for_the_time_between_two_looks_of_the_kubelet() {
        let mut flight = InFlightClock::default();
        flight.begin(1, 5);
        flight.refused(1, 5);
        assert!(flight.holds(5 + REFUSED_NS - 1));
        assert!(!flight.holds(5 + REFUSED_NS));
        flight.begin(1, 5);
        flight.rest(1, 50, 10);
        assert!(flight.holds(59) && !flight.holds(60));
        flight.begin(1, 5);
        flight.rest(1, 50, u64::MAX);
        assert_eq!(flight.until_ns(), Some(50 + PATIENCE_NS));
        let mut flight = InFlightClock::default();
        flight.begin(2, 0);
        flight.begin(3, 0);
        flight.refused(3, 0);
        assert_eq!(flight.until_ns(), Some(PATIENCE_NS), "the other one is under way");
    }

    #[test]
    fn patience_ends() {
        let mut flight = InFlightClock::default();
        flight.begin(1, 5);
        assert!(flight.holds(5 + PATIENCE_NS - 1));
        assert!(!flight.holds(5 + PATIENCE_NS));
        assert!(!flight.end(1));
    }
}
