//! Whether a process is still there, without reading anything about it.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, by a descriptor that no other process can come to stand for (pidfd_open(2), 5.3).
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    /// Of the process that has this id now, in the namespace of the caller; none if there is no
    /// such process, or no descriptor to spare.
    pub fn open(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Whether it has not ended. A call of a third of a microsecond, where reading
    /// `/proc/PID/stat` takes ten.
    pub fn lives(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&NOW)), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended_reaped_or_not() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        assert!(handle.lives());
        drop(child.stdin.take());
        while handle.lives() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!handle.lives());
        assert!(Handle::open(0).is_none() && Handle::open(u32::MAX).is_none());
    }
}
