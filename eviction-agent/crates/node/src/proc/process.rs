//! Single processes: their parents, and whether they still exist.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;

use procfs::FromRead as _;
use procfs::process::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::file::read_once;
use crate::kv_file::{complete_lines, parse_number};
use eviction_core::reading::UnknownReason;

/// The longest stat file in bytes: `/proc/PID/stat` has 52 numbers and a name of up to 64 bytes.
const STAT_LIMIT: usize = 4096;

/// The longest list of processes in bytes: seven digits and a line feed for each process that a machine can
/// have.
const PROCS_LIMIT: usize = 32 << 20;

/// The bits of a wait status that hold the signal that ended a process (wait(2)).
const SIGNAL_BITS: i32 = 0x7f;

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// The process id of the parent, or of the process that adopted it.
    pub parent: u32,
    /// The start time in clock ticks since boot. Together with the process id it identifies the process.
    pub started: u64,
    /// The wait status of a process that has ended and was not reaped yet; 0 where the kernel does not show it.
    pub ended: Option<i32>,
}

impl Process {
    /// Reads the process `pid` from the folder `proc`.
    ///
    /// # Errors
    /// [`UnknownReason::Unreadable`] with `ENOENT` or `ESRCH` if there is no such process.
    pub fn read(proc: &Path, pid: u32) -> Result<Self, UnknownReason> {
        let text = read_once(&proc.join(pid.to_string()).join("stat"), STAT_LIMIT)?;
        let stat = Stat::from_read(text.as_slice()).map_err(|_| UnknownReason::Unparsable)?;
        let ended = matches!(stat.state, 'Z' | 'X' | 'x').then_some(stat.exit_code.unwrap_or(0));
        let parent = u32::try_from(stat.ppid).map_err(|_| UnknownReason::Implausible)?;
        Ok(Self { pid, parent, started: stat.starttime, ended })
    }

    /// Returns the exit code or the signal in the wait status of a process that has ended. A status of 0 gives
    /// neither, since the kernel may have hidden it.
    pub fn exit(&self) -> (Option<i32>, Option<i32>) {
        match self.ended {
            None | Some(0) => (None, None),
            Some(status) if status & SIGNAL_BITS != 0 => (None, Some(status & SIGNAL_BITS)),
            Some(status) => (Some(status >> 8 & 0xff), None),
        }
    }
}

/// Returns whether the reason means that the process does not exist any more.
pub fn is_missing(why: UnknownReason) -> bool {
    const ENOENT: i32 = 2;
    const ESRCH: i32 = 3;
    matches!(why, UnknownReason::Unreadable(ENOENT | ESRCH))
}

/// Reads the processes of a cgroup, given its folder. 0 stands for each process of another PID namespace.
///
/// # Errors
/// If `cgroup.procs` cannot be read or parsed.
pub fn read_processes(group: &Path) -> Result<Vec<u32>, UnknownReason> {
    parse_procs(&read_once(&group.join("cgroup.procs"), PROCS_LIMIT)?)
}

/// Parses `cgroup.procs`: process ids, 0 for each process outside the reader's PID namespace.
pub fn parse_procs(text: &[u8]) -> Result<Vec<u32>, UnknownReason> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    complete_lines(text)?
        .map(|line| u32::try_from(parse_number(line)?).map_err(|_| UnknownReason::Implausible))
        .collect()
}

/// Returns whether process ids are those of the kernel's own records: this process is in the initial PID
/// namespace (`PROC_PID_INIT_INO` in linux/proc_ns.h).
pub fn sees_global_pids(proc: &Path) -> bool {
    const INITIAL_NAMESPACE: &str = "pid:[4026531836]";
    rustix::fs::readlink(proc.join("self/ns/pid"), Vec::new())
        .is_ok_and(|it| it.to_bytes() == INITIAL_NAMESPACE.as_bytes())
}

/// A process descriptor. It never refers to another process (pidfd_open(2), 5.3).
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Opens the process that has this id now, in the PID namespace of the caller. Returns `None` if there is
    /// no such process, or no free descriptor.
    pub fn open(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Returns whether the process has not ended. This takes a third of a microsecond; reading `/proc/PID/stat`
    /// takes ten.
    pub fn is_running(&self) -> bool {
        const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&NO_WAIT)), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(pid: u32, stat: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join(pid.to_string())).unwrap();
        std::fs::write(proc.path().join(pid.to_string()).join("stat"), stat).unwrap();
        proc
    }

    fn stat(name: &str, state: char, exit_code: i32) -> String {
        let numbers: Vec<String> = (23..52).map(|_| "0".to_owned()).collect();
        format!(
            "7 ({name}) {state} 5 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 {} {exit_code}\n",
            numbers.join(" ")
        )
    }

    #[test]
    fn process_stat_and_wait_status_are_parsed() {
        for (state, status, ended, exit) in [
            ('S', 0, None, (None, None)),
            ('Z', 9, Some(9), (None, Some(9))),
            ('Z', 3 << 8, Some(3 << 8), (Some(3), None)),
            ('X', 0, Some(0), (None, None)),
        ] {
            let proc = folder(7, &stat("a) b (", state, status));
            let process = Process::read(proc.path(), 7).unwrap();
            assert_eq!(process, Process { pid: 7, parent: 5, started: 4711, ended });
            assert_eq!(process.exit(), exit);
        }
    }

    #[test]
    fn missing_process_is_distinguished_from_an_unreadable_one() {
        let proc = folder(7, "7 (x");
        assert_eq!(Process::read(proc.path(), 7), Err(UnknownReason::Unparsable));
        assert!(is_missing(Process::read(proc.path(), 8).unwrap_err()));
        assert!(!is_missing(UnknownReason::Unparsable) && !is_missing(UnknownReason::Unreadable(13)));
    }

    #[test]
    fn processes_of_a_cgroup_are_read() {
        let group = tempfile::tempdir().unwrap();
        assert!(read_processes(group.path()).is_err());
        std::fs::write(group.path().join("cgroup.procs"), "12\n0\n4194304\n").unwrap();
        assert_eq!(read_processes(group.path()), Ok(vec![12, 0, 4_194_304]));
    }

    #[test]
    fn cgroup_procs_is_parsed() {
        assert_eq!(parse_procs(b""), Ok(vec![]));
        assert_eq!(parse_procs(b"12\n0\n4194304\n0\n"), Ok(vec![12, 0, 4_194_304, 0]));
        for (text, why) in [
            (&b"5\n12"[..], UnknownReason::Unparsable),
            (b"5\nx\n", UnknownReason::Unparsable),
            (b"5\n\n", UnknownReason::Unparsable),
            (b"5\n-3\n", UnknownReason::Implausible),
            (b"5\n4294967296\n", UnknownReason::Implausible),
        ] {
            assert_eq!(parse_procs(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn stat_of_this_process_is_read() {
        let own = Process::read(Path::new("/proc"), std::process::id()).unwrap();
        assert_eq!(own.ended, None);
        assert!(own.started > 0);
    }

    #[test]
    fn process_handle_detects_the_exit_before_and_after_reaping() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let handle = ProcessHandle::open(child.id()).unwrap();
        assert!(handle.is_running());
        drop(child.stdin.take());
        while handle.is_running() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!handle.is_running());
        assert!(ProcessHandle::open(0).is_none() && ProcessHandle::open(u32::MAX).is_none());
    }
}
