//! The health of the agent, as `/healthz`, `/readyz` and the watchdog report it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use eviction_node::clock::mono_ns;

/// The maximum duration of one iteration: a sample of 50,000 cgroups takes a good part of a second.
const MAX_ITERATION_NS: u64 = 2_000_000_000;

/// How late an iteration may begin on a node without a free CPU.
const ALLOWANCE_NS: u64 = 2_000_000_000;

/// Whether the control loop runs, and whether the pods are known.
#[derive(Debug)]
pub(crate) struct Health {
    /// By when the next iteration of the control loop begins, in nanoseconds of `CLOCK_MONOTONIC`. Only the loop
    /// writes it.
    due_ns: AtomicU64,
    pub(crate) pods_known: AtomicBool,
}

impl Health {
    /// Returns the health of an agent whose control loop is about to start.
    pub(crate) fn new() -> Self {
        let due_ns = AtomicU64::new(mono_ns().saturating_add(MAX_ITERATION_NS));
        Self { due_ns, pods_known: AtomicBool::new(false) }
    }

    /// Records that an iteration begins.
    pub(crate) fn begin_iteration(&self, now_ns: u64) {
        self.due_ns.store(now_ns.saturating_add(MAX_ITERATION_NS), Ordering::Relaxed);
    }

    /// Records that an iteration has ended. The timer is set for the next one.
    pub(crate) fn end_iteration(&self, due_ns: u64) {
        self.due_ns.store(due_ns, Ordering::Relaxed);
    }

    /// Returns from when on the loop is late if no iteration begins.
    pub(crate) fn late_from_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Relaxed).saturating_add(ALLOWANCE_NS)
    }

    /// Returns how late the loop is, if that is more than the allowance.
    pub(crate) fn late_by_ns(&self, now_ns: u64) -> Option<u64> {
        let late_ns = now_ns.saturating_sub(self.due_ns.load(Ordering::Relaxed));
        (late_ns > ALLOWANCE_NS).then_some(late_ns)
    }

    /// Checks that the control loop runs.
    ///
    /// # Errors
    /// The reason, as the text of the response.
    pub(super) fn healthy(&self) -> Result<(), String> {
        match self.late_by_ns(mono_ns()) {
            None => Ok(()),
            Some(ns) => {
                let seconds = ns / 1_000_000_000;
                Err(format!("the control loop has not run for {seconds} s after it was due"))
            }
        }
    }

    /// Checks that the control loop runs and the pods are known.
    ///
    /// # Errors
    /// The reason, as the text of the response.
    pub(super) fn ready(&self) -> Result<(), String> {
        self.healthy()?;
        match self.pods_known.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("pods are not known".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_late_only_after_the_allowance() {
        const SECOND_NS: u64 = 1_000_000_000;
        let health = Health::new();
        let late_by = |now| health.late_by_ns(now);
        health.end_iteration(110 * SECOND_NS);
        assert_eq!(late_by(0), None, "a clock that runs backwards");
        assert_eq!(late_by(112 * SECOND_NS), None);
        assert_eq!(late_by(113 * SECOND_NS), Some(3 * SECOND_NS));
        health.begin_iteration(113 * SECOND_NS);
        assert_eq!(late_by(117 * SECOND_NS), None, "a long iteration");
        assert_eq!(late_by(118 * SECOND_NS), Some(3 * SECOND_NS));
        health.end_iteration(u64::MAX);
        assert_eq!(late_by(u64::MAX), None);
    }
}
