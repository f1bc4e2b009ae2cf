//! The one clock of all sources.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: the clock that `bpf_ktime_get_ns` stamps records with, so
/// that kernel stamps and readings compare.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The monotonic clock starts near zero at boot and never shows a negative time.
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000)
        + u64::try_from(now.tv_nsec).unwrap_or(0)
}
