//! Releases the memory of killed processes without waiting for their exit.
//!
//! A killed process frees its memory when it is scheduled: late on an overloaded node, and not at all while
//! it sleeps in the kernel. process_mrelease(2) (since 5.15) frees the memory that only this process has, on
//! behalf of the caller. The duration depends on the amount of memory, so a separate thread does it while
//! other processes are already being signalled.
//!
//! Processes are identified by id, not by pidfd. The kernel rejects (EINVAL) a process that is not exiting,
//! so an id that another process has got in the meantime does no harm.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::setpriority_process;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::cgroup_procs::pidfd;

/// The maximum number of killed processes in the queue. The memory of further ones is freed at their exit.
/// The channel allocates memory as it fills.
const QUEUE_LENGTH: usize = 4096;

/// The nice priority of the threads that complete kills, the highest: before all ordinary threads, after
/// real-time threads. Releasing much memory takes long, and the node continues to run meanwhile.
const NICE: i32 = -20;

/// The result of releasing the memory of one killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MreleaseResult {
    /// The memory is free.
    Released,
    /// The process had ended before, and its memory was free.
    Ended,
    /// The kernel does not have the call, a seccomp profile forbids it, the memory is shared with a running
    /// process, or the queue is full. The memory is freed at the exit.
    Refused,
}

/// The callback for the result of each process. Any thread may call it.
pub(super) type MreleaseCallback = Arc<dyn Fn(MreleaseResult) + Send + Sync>;

/// The handle of the thread. The thread ends when this is dropped; dropping does not wait for it.
pub(super) struct MreleaseWorker {
    pids: Sender<u32>,
    callback: MreleaseCallback,
}

impl MreleaseWorker {
    /// Starts the thread.
    pub(super) fn start(callback: MreleaseCallback) -> io::Result<Self> {
        let (pids, mut waiting) = channel(QUEUE_LENGTH);
        let thread_callback = Arc::clone(&callback);
        let thread = std::thread::Builder::new().name("mrelease".to_owned());
        thread.spawn(move || {
            raise_priority();
            run(&mut waiting, &thread_callback);
        })?;
        Ok(Self { pids, callback })
    }

    /// Queues killed processes for the release of their memory.
    pub(super) fn release(&self, killed: Vec<u32>) {
        for pid in killed {
            if self.pids.try_send(pid).is_err() {
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
                        "process_mrelease is not available: the memory of killed processes is freed when they exit"
                    );
                }
                MreleaseResult::Refused
            }
        });
    }
}

/// Raises the priority of the calling thread above ordinary threads, if CAP_SYS_NICE allows it. The thread
/// frees memory, and at the same time other processes that react to the eviction need the CPU.
pub(super) fn raise_priority() {
    // On Linux this sets the priority of one thread, while POSIX specifies the process.
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "the priority of a thread that finishes kills cannot be raised");
    }
}

fn release(pid: u32) -> Result<(), Errno> {
    let pidfd = pidfd(pid)?;
    // Interrupted by a signal, or by a concurrent reader of this memory: retry a few times.
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

    /// A timeout that only a hang reaches.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn memory_of_running_processes_is_not_released() {
        let (sender, results) = channel();
        let worker = MreleaseWorker::start(Arc::new(move |result| sender.send(result).unwrap())).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        worker.release(vec![std::process::id(), sleeper.id()]);
        assert_eq!(results.recv_timeout(LONG), Ok(MreleaseResult::Refused));
        assert_eq!(results.recv_timeout(LONG), Ok(MreleaseResult::Refused));
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // No process can have the first id, and the second process has ended.
        worker.release(vec![u32::MAX, sleeper.id()]);
        assert_eq!(results.recv_timeout(LONG), Ok(MreleaseResult::Ended));
        assert_eq!(results.recv_timeout(LONG), Ok(MreleaseResult::Ended));
    }
}
