//! The clock and the priority of the threads that finish kills.
#![forbid(unsafe_code)]

use std::time::Duration;

use eviction_core::time::nanos;
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};

/// Ahead of every ordinary thread, behind those of real time: giving back much memory takes long, and
/// the node goes on meanwhile.
const NICE: i32 = -20;

/// Nanoseconds of CLOCK_MONOTONIC, which kernel stamps are in as well.
pub(super) fn now_ns() -> u64 {
    // It starts near zero at boot and never shows a negative time.
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default())
}

/// Has the calling thread run before ordinary ones, if CAP_SYS_NICE allows it: what it does gives memory back, and
/// who hears of an eviction wants the processor at the same moment.
pub(super) fn run_ahead() {
    // Linux sets the priority of one thread where POSIX means the process.
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "a thread that finishes kills stays an ordinary one");
    }
}
