//! The clock that workloads, the kernel's `bpf_ktime_get_ns` and the agent share.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the processor time of all threads of a process, including those that have ended, as the scheduler
/// counts it, exact to the nanosecond.
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let pid = libc::pid_t::try_from(pid).context("a process id")?;
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: writes the number of a clock, which outlives the call.
    let found = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    ensure!(found == 0, "the clock of process {pid}: {}", std::io::Error::from_raw_os_error(found));
    // SAFETY: fills the structure, which outlives the call.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(read == 0, "the time of process {pid}: {}", std::io::Error::last_os_error());
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}
