//! Ends all descendants with the process that started the workload. The parent-death signal would end them only
//! with their own parents.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A pidfd of a process, inherited by children.
pub(crate) struct Lifeline(OwnedFd);

impl Lifeline {
    pub(crate) fn to(pid: Pid) -> Result<Self> {
        let fd = pidfd_open(pid, PidfdFlags::empty());
        Ok(Self(fd.context("open a pidfd of the parent")?))
    }

    /// Sleeps, also through signals. Exits as soon as the process of the pidfd has ended.
    pub(crate) fn sleep(&self, time: Duration) {
        let start = Instant::now();
        while let Some(rest) = time.checked_sub(start.elapsed()) {
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
                exit_now();
            }
        }
    }
}

/// Exits a forked child without running what the parent has registered.
pub(crate) fn exit_now() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}
