//! The health of the agent, as `/healthz`, `/readyz` and the watchdog report it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use eviction_node::clock::mono_ns;

/// The maximum duration of one iteration: a sample of 50,000 cgroups takes a good part of a second.
const MAX_ITERATION_NS: u64 = 2_000_000_000;

/// How late an iteration may begin on a node without a free CPU.
const ALLOWANCE_NS: u64 = 2_000_000_000;

/// By when the next iteration of the control loop begins, in nanoseconds of `CLOCK_MONOTONIC`. Only the loop writes it.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Creates the heartbeat of a loop that is about to start.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(mono_ns().saturating_add(MAX_ITERATION_NS))))
    }

    /// Notes that an iteration begins.
    pub(crate) fn begin_iteration(&self, now_ns: u64) {
        self.0.store(now_ns.saturating_add(MAX_ITERATION_NS), Ordering::Relaxed);
    }

    /// Notes that an iteration has ended. The timer is set for the next one.
    pub(crate) fn end_iteration(&self, due_ns: u64) {
        self.0.store(due_ns, Ordering::Relaxed);
    }

    /// Returns from when on the loop is late if no iteration begins.
    pub(crate) fn late_from_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed).saturating_add(ALLOWANCE_NS)
    }

    /// Returns how late the loop is, if that is more than the allowance.
    pub(crate) fn late_by_ns(&self, now_ns: u64) -> Option<u64> {
        let late_ns = now_ns.saturating_sub(self.0.load(Ordering::Relaxed));
        (late_ns > ALLOWANCE_NS).then_some(late_ns)
    }
}

/// The state that `/healthz` and `/readyz` report.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) heartbeat: Heartbeat,
    pub(crate) pods_known: AtomicBool,
}

impl Health {
    /// Checks that the control loop runs.
    ///
    /// # Errors
    /// The reason, as the text of the response.
    pub(crate) fn healthy(&self) -> Result<(), String> {
        match self.heartbeat.late_by_ns(mono_ns()) {
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
    pub(crate) fn ready(&self) -> Result<(), String> {
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

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_loop_is_late_only_after_the_allowance() {
        let heartbeat = Heartbeat::new();
        let late_by = |now| heartbeat.late_by_ns(now);
        heartbeat.end_iteration(110 * SECOND_NS);
        assert_eq!(late_by(0), None, "a clock that runs backwards");
        assert_eq!(late_by(112 * SECOND_NS), None);
        assert_eq!(late_by(113 * SECOND_NS), Some(3 * SECOND_NS));
        heartbeat.begin_iteration(113 * SECOND_NS);
        assert_eq!(late_by(117 * SECOND_NS), None, "a long iteration");
        assert_eq!(late_by(118 * SECOND_NS), Some(3 * SECOND_NS));
        heartbeat.end_iteration(u64::MAX);
        assert_eq!(late_by(u64::MAX), None);
    }
}
