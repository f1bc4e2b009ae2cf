//! Forks, within limits that all descendants share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, WaitOptions, waitpid};
use tests::stamps::Writer;

use crate::cli::ForksArgs;
use crate::lifeline::{Lifeline, exit_now};
use crate::print_event;

/// Forks, and returns the child's process ID in the parent and `None` in the child.
pub(crate) fn fork() -> std::io::Result<Option<Pid>> {
    // SAFETY: the process has one thread, so the child finds every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Waits for the end of a child, and returns its exit code and its signal. The one that does not apply is 0.
pub(crate) fn wait(child: Pid) -> Result<(u64, u64)> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                let number = |value: Option<i32>| value.and_then(|value| value.try_into().ok());
                return Ok((
                    number(status.exit_status()).unwrap_or(0),
                    number(status.terminating_signal()).unwrap_or(0),
                ));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for a child"),
        }
    }
}

/// Counters in memory that all descendants share.
#[derive(Clone, Copy)]
struct Shared {
    forked: &'static AtomicU64,
    start: Instant,
}

impl Shared {
    fn new() -> Result<Self> {
        // SAFETY: a new mapping, zeroed, large enough and aligned for one atomic, never unmapped.
        let forked = unsafe {
            let base = mmap_anonymous(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
            .context("map shared memory")?;
            &*base.cast::<AtomicU64>()
        };
        Ok(Self { forked, start: Instant::now() })
    }

    /// Takes the permission for one fork, if the rate and the limit leave one.
    fn take(&self, forks: &ForksArgs) -> bool {
        let due = self.start.elapsed().as_secs_f64() * f64::from(forks.rate);
        let allowed = (due as u64).min(forks.max.into());
        let take = |forked: u64| (forked < allowed).then_some(forked + 1);
        let (order, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.forked.fetch_update(order, relaxed, take).is_ok()
    }
}

/// Forks as the arguments specify, until the end of the process.
pub(crate) fn run(forks: &ForksArgs, starter: Pid, stamps: Writer) -> Result<()> {
    // SAFETY: changes the disposition of a signal to one that reaps children automatically.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } == libc::SIG_ERR {
        bail!("ignore SIGCHLD: {}", std::io::Error::last_os_error());
    }
    let lifeline = Lifeline::to(starter)?;
    let shared = Shared::new()?;
    let mut pace = Duration::from_millis(1);
    let mut is_reported = false;
    loop {
        if !shared.take(forks) {
            if !is_reported && shared.forked.load(Ordering::Relaxed) == u64::from(forks.max) {
                is_reported = true;
                stamps.done();
                print_event("forked", &[("forks", forks.max.into())]);
            }
            lifeline.sleep(pace);
            continue;
        }
        match fork() {
            Ok(Some(_)) => stamps.stamp(shared.forked.load(Ordering::Relaxed)),
            Ok(None) if forks.bomb && forks.life.is_none() => {
                // Many processes that check often would use up the processor.
                pace = Duration::from_millis(10);
                is_reported = true;
            }
            Ok(None) => {
                lifeline.sleep(forks.life.unwrap_or(Duration::from_secs(86_400)));
                exit_now();
            }
            Err(_) => {
                shared.forked.fetch_sub(1, Ordering::AcqRel);
                lifeline.sleep(pace);
            }
        }
    }
}
