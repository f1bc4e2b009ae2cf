//! Memory of killed processes, given back without waiting for their own exit.
//!
//! A killed process frees its memory when it comes to run: late on an overloaded node, and not
//! at all while it sleeps in the kernel. process_mrelease(2) (from 5.15) frees what only that
//! process has, on the caller's account. That takes as long as there is memory, so a thread of
//! its own does it, while others are signalled already.
//!
//! Processes are told by id, not by pidfd: the kernel refuses (EINVAL) whoever is not dying, so
//! that an id which another process has got since does no harm.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::cgroup_procs::pidfd;
use super::thread::run_ahead;

/// Killed processes that may wait for their turn. Beyond that their memory comes back with their
/// exit. The channel takes memory as it fills.
const WAITING: usize = 4096;

/// What came of giving back the memory of one killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MreleaseResult {
    /// It is free.
    Released,
    /// The process was gone before, and its memory with it.
    Ended,
    /// The kernel does not have the call, a seccomp profile forbids it, the memory is shared with
    /// a process that lives, or too many wait: the memory comes back with the exit.
    Refused,
}

/// Called with the result for each process, by any thread.
pub(super) type MreleaseCallback = Arc<dyn Fn(MreleaseResult) + Send + Sync>;

/// The thread as the worker sees it. It ends when this is dropped, but nobody waits for it.
pub(super) struct MreleaseWorker {
    pids: Sender<u32>,
    callback: MreleaseCallback,
}

impl MreleaseWorker {
    /// Starts the thread.
    pub(super) fn start(callback: MreleaseCallback) -> io::Result<Self> {
        let (pids, mut waiting) = channel(WAITING);
        let from_there = Arc::clone(&callback);
        let thread = std::thread::Builder::new().name("mrelease".to_owned());
        thread.spawn(move || {
            run_ahead();
            run(&mut waiting, &from_there);
        })?;
        Ok(Self { pids, callback })
    }

    /// Sees to the memory of processes that were killed.
    pub(super) fn release(&self, killed: &[u32]) {
        for pid in killed {
            if self.pids.try_send(*pid).is_err() {
                (self.callback)(MreleaseResult::Refused);
            }
        }
    }
}

fn run(waiting: &mut Receiver<u32>, callback: &MreleaseCallback) {
    let mut is_available = true;
    while let Some(pid) = waiting.blocking_recv() {
        let result = match is_available {
            true => release(pid),
            false => Err(Errno::NOSYS),
        };
        callback(match result {
            Ok(()) => MreleaseResult::Released,
            Err(Errno::SRCH) => MreleaseResult::Ended,
            Err(error) => {
                if is_available && matches!(error, Errno::NOSYS | Errno::PERM) {
                    is_available = false;
                    tracing::info!(
                        %error,
                        "memory of killed processes comes back with their exit only: no process_mrelease"
                    );
                }
                MreleaseResult::Refused
            }
        });
    }
}

fn release(pid: u32) -> Result<(), Errno> {
    let pidfd = pidfd(pid)?;
    // Interrupted by a signal, or by somebody who watches this memory: once more, not for ever.
    for _ in 0..8 {
        match process_mrelease(&pidfd) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn process_mrelease(pidfd: &OwnedFd) -> Result<(), Errno> {
    let no_flags: libc::c_uint = 0;
    // SAFETY: the call takes two numbers, and touches no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), no_flags) };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// A hang guard.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_lives_is_let_be() {
        let (sender, told) = channel();
        let reaper = MreleaseWorker::start(Arc::new(move |reaped| sender.send(reaped).unwrap())).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        reaper.release(&[std::process::id(), sleeper.id()]);
        assert_eq!(told.recv_timeout(LONG), Ok(MreleaseResult::Refused));
        assert_eq!(told.recv_timeout(LONG), Ok(MreleaseResult::Refused));
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // No process has such an id, and after its end one has none.
        reaper.release(&[u32::MAX, sleeper.id()]);
        assert_eq!(told.recv_timeout(LONG), Ok(MreleaseResult::Ended));
        assert_eq!(told.recv_timeout(LONG), Ok(MreleaseResult::Ended));
    }
}
