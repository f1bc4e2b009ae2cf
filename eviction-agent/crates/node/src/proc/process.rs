//! Processes: single ones, and how many tasks the machine has and can have.
//!
//! As in the kubelet (pkg/kubelet/stats/pidlimit/pidlimit_linux.go), the capacity is the lesser of
//! kernel.pid_max and kernel.threads-max, or one of them if the other cannot be read. The count is the total in
//! /proc/loadavg, since sysinfo(2) cuts it to 16 bits.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;

use procfs::FromRead as _;
use procfs::process::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::file::{complete_lines, parse_number, parse_number_line, read_once, words};
use eviction_core::reading::{Reading, UnknownReason};

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

/// Opens a descriptor of the process that has this id now, in the PID namespace of the caller. It never refers to
/// another process (pidfd_open(2), 5.3). Returns `None` if there is no such process, or no free descriptor.
pub(crate) fn open_pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns whether the process of a descriptor has not ended. This takes a third of a microsecond; reading
/// `/proc/PID/stat` takes ten.
pub(crate) fn is_running(pidfd: &OwnedFd) -> bool {
    const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&NO_WAIT)), Ok(0))
}

/// Parses the number of tasks (threads of all processes) in the text of `/proc/loadavg`, for instance 3518 in
/// `1.36 3.49 4.53 2/3518 3715089`.
pub fn parse_task_count(text: &[u8]) -> Result<u64, UnknownReason> {
    let mut fields = words(text.strip_suffix(b"\n").ok_or(UnknownReason::Unparsable)?);
    let tasks = fields.nth(3).ok_or(UnknownReason::Unparsable)?;
    if fields.next().is_none() || fields.next().is_some() {
        return Err(UnknownReason::Unparsable);
    }
    let slash = tasks.iter().position(|byte| *byte == b'/').ok_or(UnknownReason::Unparsable)?;
    parse_number(&tasks[..slash])?;
    match parse_number(&tasks[slash + 1..])? {
        // The reader itself is a task.
        0 => Err(UnknownReason::Implausible),
        count => Ok(count),
    }
}

/// Reads the number of tasks of the machine from `loadavg` in the folder `proc`.
pub fn read_task_count(proc: &Path) -> Reading<u64> {
    read_once(&proc.join("loadavg"), 128).and_then(|text| parse_task_count(&text)).into()
}

/// Reads how many tasks the machine can have: the lesser of `kernel.pid_max` and `kernel.threads-max` in the
/// folder `proc`. From 6.14 on pid_max is that of the reader's PID namespace.
pub fn read_task_capacity(proc: &Path) -> Reading<u64> {
    let read = |name: &str| match read_once(&proc.join("sys/kernel").join(name), 64)
        .and_then(|text| parse_number_line(&text))
    {
        Ok(0) => Err(UnknownReason::Implausible),
        result => result,
    };
    match (read("pid_max"), read("threads-max")) {
        (Ok(pids), Ok(threads)) => Reading::Known(pids.min(threads)),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Reading::Known(one),
        (Err(why), Err(_)) => Reading::Unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn pidfd_shows_the_exit_before_and_after_reaping() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pidfd = open_pidfd(child.id()).unwrap();
        assert!(is_running(&pidfd));
        drop(child.stdin.take());
        while is_running(&pidfd) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!is_running(&pidfd));
        assert!(open_pidfd(0).is_none() && open_pidfd(u32::MAX).is_none());
    }

    #[test]
    fn task_count_is_parsed() {
        for (text, expected) in [
            ("1.36 3.49 4.53 2/3518 3715089\n", Ok(3518)),
            ("0.00 0.00 0.00 1/100000 1\n", Ok(100_000)),
            ("0.00 0.00 0.00 1/0 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/18446744073709551615 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/-5 1\n", Err(UnknownReason::Implausible)),
            ("0.00 0.00 0.00 1/12 1", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 1/12\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 1/12 1 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 12 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 0.00 x/12 1\n", Err(UnknownReason::Unparsable)),
            ("0.00 0.00 1/12 1\n", Err(UnknownReason::Unparsable)),
            ("", Err(UnknownReason::Unparsable)),
        ] {
            assert_eq!(parse_task_count(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn task_capacity_is_the_lower_limit_or_the_only_readable_one() {
        let proc = tempfile::tempdir().unwrap();
        let kernel = proc.path().join("sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Unknown(UnknownReason::Unreadable(2)));
        std::fs::write(kernel.join("threads-max"), "192731\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(192_731));
        std::fs::write(kernel.join("pid_max"), "32768\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(32_768));
        std::fs::write(kernel.join("threads-max"), "9999\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(9_999));
        std::fs::write(kernel.join("threads-max"), "0\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Known(32_768));
        std::fs::write(kernel.join("pid_max"), "many\n").unwrap();
        assert_eq!(read_task_capacity(proc.path()), Reading::Unknown(UnknownReason::Unparsable));
    }

    #[test]
    fn task_count_of_this_machine_is_within_its_capacity() {
        let proc = Path::new("/proc");
        let count = read_task_count(proc).known().unwrap();
        let capacity = read_task_capacity(proc).known().unwrap();
        assert!((1..=capacity).contains(&count), "{count} of {capacity}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            let _ = parse_task_count(&bytes);
        }
    }
}
