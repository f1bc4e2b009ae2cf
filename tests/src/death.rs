//! When the last process of a group died, by a look from outside.

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
use crate::process::run_first;

/// Waits in a thread of its own, asleep until the first process ends; so it costs the machine
/// nothing while the reaction is measured. It runs before every ordinary thread where that is
/// allowed, so that it does not tell of a death late because the machine has other things to do.
#[derive(Debug)]
pub struct Death {
    thread: Option<JoinHandle<Result<u64>>>,
    given_up: Arc<AtomicBool>,
}

/// Between two looks at a group whose first process has ended.
const LOOK: Duration = Duration::from_micros(500);

impl Death {
    /// Waits for the end of `first`, and then for that of all others in `group`.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of(group: &Group, first: u32) -> Result<Self> {
        let pid = i32::try_from(first).ok().and_then(Pid::from_raw).context("a process id")?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("open a pidfd of {first}"))?;
        let given_up = Arc::new(AtomicBool::new(false));
        let (group, flag) = (group.clone(), Arc::clone(&given_up));
        let thread = std::thread::spawn(move || wait(&fd, &group, &flag));
        Ok(Self { thread: Some(thread), given_up })
    }

    /// When the last one died, nanoseconds of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// If they live on for so long that they never will die, or the wait is broken off.
    pub fn at(mut self, interrupt: &Interrupt, guard: Duration) -> Result<u64> {
        interrupt.until("the last process of the victim dies", guard, || {
            Ok(self.thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(()))
        })?;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(at)) => at,
            _ => bail!("the thread that waits for a death has panicked"),
        }
    }
}

impl Drop for Death {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

fn wait(first: &OwnedFd, group: &Group, given_up: &AtomicBool) -> Result<u64> {
    // Without the right to it, it is as late as others let it be.
    let _ = run_first();
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
        std::thread::sleep(LOOK);
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
