//! The clock that workloads, the kernel's `bpf_ktime_get_ns` and the agent share.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
