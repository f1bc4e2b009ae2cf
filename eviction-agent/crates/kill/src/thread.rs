//! The clock and the priority of the threads that complete kills.
#![forbid(unsafe_code)]

use std::time::Duration;

use eviction_core::time::nanos;
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};

/// The highest nice priority: before all ordinary threads, after real-time threads. Releasing much memory
/// takes long, and the node continues to run meanwhile.
const NICE: i32 = -20;

/// Returns the time of CLOCK_MONOTONIC in nanoseconds, the clock of kernel timestamps.
pub(super) fn now_ns() -> u64 {
    // The clock starts near zero at boot and is never negative.
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default())
}

/// Raises the priority of the calling thread above ordinary threads, if CAP_SYS_NICE allows it. The thread
/// frees memory, and at the same time other processes that react to the eviction need the CPU.
pub(super) fn raise_priority() {
    // On Linux this sets the priority of one thread, while POSIX specifies the process.
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "the priority of a thread that finishes kills cannot be raised");
    }
}
