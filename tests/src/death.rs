//! The time at which the last process of a cgroup died, as seen from outside.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cgroup::Group;
use crate::clock;
use crate::interrupt::Interrupt;
use crate::process::set_fifo_priority;

/// Waits in its own thread, which sleeps until the first process ends, so that it costs the machine nothing
/// while the reaction is measured. The thread runs before every ordinary thread where that is allowed, so that
/// other load on the machine does not delay it.
#[derive(Debug)]
pub struct DeathWatcher {
    thread: Option<JoinHandle<Result<u64>>>,
    given_up: Arc<AtomicBool>,
}

/// The interval between two reads of a cgroup after its first process has ended.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

impl DeathWatcher {
    /// Starts a thread that waits for the end of `first`, and then for that of all others in `group`.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn start(group: &Group, first: u32) -> Result<Self> {
        let pid = i32::try_from(first).ok().and_then(Pid::from_raw).context("a process id")?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("open a pidfd of {first}"))?;
        let given_up = Arc::new(AtomicBool::new(false));
        let (group, flag) = (group.clone(), Arc::clone(&given_up));
        let thread = std::thread::spawn(move || wait_for_deaths(&fd, &group, &flag));
        Ok(Self { thread: Some(thread), given_up })
    }

    /// Waits for the last death, and returns its time in nanoseconds of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// If a process is still alive after `guard`, or the wait is interrupted.
    pub fn wait(mut self, interrupt: &Interrupt, guard: Duration) -> Result<u64> {
        interrupt.until("the last process of the victim dies", guard, || {
            Ok(self.thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(()))
        })?;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(died_ns)) => died_ns,
            _ => bail!("the thread that waits for a death has panicked"),
        }
    }
}

impl Drop for DeathWatcher {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

fn wait_for_deaths(first: &OwnedFd, group: &Group, given_up: &AtomicBool) -> Result<u64> {
    // Without the right to this, other threads may delay this one.
    let _ = set_fifo_priority();
    let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut last = loop {
        let ended = poll(&mut [PollFd::new(first, PollFlags::IN)], Some(&timeout)).unwrap_or(0);
        let now = clock::now();
        if ended > 0 {
            break now;
        }
        check(given_up)?;
    };
    while !group.processes().is_empty() {
        check(given_up)?;
        std::thread::sleep(POLL_INTERVAL);
        last = clock::now();
    }
    Ok(last)
}

fn check(given_up: &AtomicBool) -> Result<()> {
    if given_up.load(Ordering::Relaxed) {
        bail!("given up");
    }
    Ok(())
}
