//! Lists the processes of a cgroup and sends signals to these processes only.
//!
//! A process id alone is not reliable: between reading it and using it, its process may end and another one
//! may get the id. So a batch of ids is first pinned by pidfds. Then the list of the cgroup is read *again*,
//! and only processes that are still listed are signalled through their pidfds. An id on the second list is
//! in the cgroup now. Its pidfd refers either to this process or to one that has ended, which no signal
//! reaches. This works in any cgroup or mount namespace, where the paths in /proc/PID/cgroup would have to be
//! translated first. The remaining race is a process that is moved out in the microseconds between the second
//! list and its signal.
#![forbid(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, RawDir, fstat};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::cgroup::{file_contains, open_file, open_group, write_file};
use eviction_core::progress::Signalled;

/// The number of processes that are pinned at the same time. The list is read again for each batch.
const BATCH: usize = 256;

/// The maximum number of cgroups of a pod. Further ones are counted but not read.
const GROUPS: usize = 65_536;

/// The cgroup name prefix of CRI-O's container monitor. SIGTERM would make the monitor kill the container at
/// once.
const MONITOR: &[u8] = b"crio-conmon-";

/// The processes of a pod's cgroup and of all cgroups below it. A scan reuses the buffers of the last one, and
/// allocates only the paths of cgroups.
#[derive(Debug)]
pub(super) struct CgroupProcesses {
    /// The processes that the last scan found, sorted within each cgroup.
    pub(super) pids: Vec<u32>,
    /// The cgroups that the last scan found: the path below the pod's directory, which is empty for that directory
    /// itself, and the indexes of its processes.
    groups: Vec<(Vec<u8>, Range<usize>)>,
    /// Processes outside this PID namespace.
    pub(super) unreachable: u32,
    /// Cgroups that could not be read.
    pub(super) unreadable_groups: u32,
    text: Vec<u8>,
    entries: Vec<MaybeUninit<u8>>,
    pinned: Vec<(u32, OwnedFd)>,
}

impl CgroupProcesses {
    /// Allocates buffers that are large enough for a usual pod.
    pub(super) fn new() -> Self {
        Self {
            pids: Vec::with_capacity(1024),
            groups: Vec::with_capacity(64),
            unreachable: 0,
            unreadable_groups: 0,
            text: vec![0; 16 << 10],
            entries: vec![MaybeUninit::uninit(); 8 << 10],
            pinned: Vec::with_capacity(BATCH),
        }
    }

    /// Returns the cgroups that the last scan found, each after its parent, as paths below the pod's
    /// directory.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.groups.iter().map(|(path, _)| path.as_slice())
    }

    /// Whether the last scan found no process, and nothing that could hide one.
    pub(super) fn is_empty(&self) -> bool {
        self.pids.is_empty() && self.unreachable == 0 && self.unreadable_groups == 0
    }

    /// Lists the processes of the cgroup and of all cgroups below it.
    pub(super) fn scan(&mut self, dir: BorrowedFd<'_>) {
        self.pids.clear();
        self.groups.clear();
        self.unreachable = 0;
        self.unreadable_groups = 0;
        self.groups.push((Vec::new(), 0..0));
        let mut next = 0;
        while let Some((path, _)) = self.groups.get(next).cloned() {
            match self.scan_one(dir, &path) {
                Ok(pids) => self.groups[next] = (path, pids),
                // The cgroup was removed in the meantime, so it has no processes.
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(_) => self.unreadable_groups += 1,
            }
            next += 1;
        }
    }

    /// Reads the process list of the cgroup at `path` and appends its child cgroups.
    fn scan_one(&mut self, dir: BorrowedFd<'_>, path: &[u8]) -> Result<Range<usize>, Errno> {
        let group = open_group(dir, path)?;
        let from = self.pids.len();
        let listed = list(&group, &mut self.text, &mut self.pids);
        let subfolders = fstat(&group)?.st_nlink.saturating_sub(2);
        if subfolders > 0 {
            let mut entries = RawDir::new(&group, &mut self.entries);
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if entry.file_type() != FileType::Directory || matches!(name, b"." | b"..") {
                    continue;
                }
                if self.groups.len() >= GROUPS {
                    self.unreadable_groups += 1;
                    continue;
                }
                let path = if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') };
                self.groups.push((path, 0..0));
            }
        }
        match listed {
            Ok(unreachable) => self.unreachable += unreachable,
            // A threaded cgroup: its processes are on the list of the domain cgroup above it.
            Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
        self.pids[from..].sort_unstable();
        Ok(from..self.pids.len())
    }

    /// Returns a process that must never be signalled, if there is one: the agent itself or process 1.
    pub(super) fn protected(&self) -> Option<u32> {
        self.pids.iter().copied().find(|pid| is_protected(*pid))
    }

    /// Sends the signals, in this order, to every process of the last scan that is not in `except` (sorted).
    /// Adds the results, and what the scan could not read, to `sum`, and appends the signalled processes to
    /// `reached`.
    pub(super) fn signal(
        &mut self,
        dir: BorrowedFd<'_>,
        signals: &[Signal],
        except: &[u32],
        sum: &mut Signalled,
        reached: &mut Vec<u32>,
    ) {
        sum.unreachable += self.unreachable;
        sum.unreadable_groups += self.unreadable_groups;
        let sends_sigterm = signals.first() == Some(&Signal::TERM);
        for index in 0..self.groups.len() {
            let (path, pids) = self.groups[index].clone();
            let base = path.rsplit(|byte| *byte == b'/').next();
            if sends_sigterm && base.is_some_and(|base| base.starts_with(MONITOR)) {
                continue;
            }
            let mut next = pids.start;
            while next < pids.end {
                next = self.pin(next..pids.end, except, sum);
                let listed = self.list_again(dir, &path);
                while let Some((pid, pidfd)) = self.pinned.pop() {
                    if listed.binary_search(&pid).is_err() {
                        let count = match has_ended(&pidfd) {
                            true => &mut sum.ended,
                            false => &mut sum.moved,
                        };
                        *count += 1;
                        continue;
                    }
                    match send(&pidfd, signals) {
                        Ok(()) => {
                            sum.sent += 1;
                            reached.push(pid);
                        }
                        Err(Errno::SRCH) => sum.ended += 1,
                        Err(_) => sum.denied += 1,
                    }
                }
            }
        }
    }

    /// Opens pidfds for a batch of the range. Returns the start of the next batch.
    fn pin(&mut self, range: Range<usize>, except: &[u32], sum: &mut Signalled) -> usize {
        for index in range.clone() {
            let pid = self.pids[index];
            if is_protected(pid) || except.binary_search(&pid).is_ok() {
                continue;
            }
            match pidfd(pid) {
                Ok(pidfd) => self.pinned.push((pid, pidfd)),
                Err(Errno::SRCH | Errno::INVAL) => sum.ended += 1,
                // No file descriptor is free: first signal those pinned so far, then retry this one.
                Err(_) if !self.pinned.is_empty() => return index,
                Err(_) => sum.denied += 1,
            }
            if self.pinned.len() >= BATCH {
                return index + 1;
            }
        }
        range.end
    }

    /// Reads the process list of the cgroup at `path` again, sorted. Returns none if it cannot be read.
    fn list_again(&mut self, dir: BorrowedFd<'_>, path: &[u8]) -> Vec<u32> {
        let mut pids = Vec::new();
        match open_group(dir, path).and_then(|group| list(&group, &mut self.text, &mut pids)) {
            Ok(_) => pids.sort_unstable(),
            Err(_) => pids.clear(),
        }
        pids
    }

    /// cgroup v1: thaws each frozen cgroup of the last scan.
    pub(super) fn thaw(&self, dir: BorrowedFd<'_>) {
        for (path, _) in &self.groups {
            let Ok(group) = open_group(dir, path) else {
                continue;
            };
            if file_contains(&group, c"freezer.self_freezing", b"1") {
                // Processes that cannot be thawed are reported as remaining and frozen.
                let _ = write_file(&group, c"freezer.state", b"THAWED");
            }
        }
    }

    /// Opens pidfds of up to `most` processes of the last scan, to wait for their end.
    pub(super) fn watch(&self, most: usize) -> Vec<OwnedFd> {
        let pids = self.pids.iter().take(most);
        pids.filter_map(|pid| pidfd(*pid).ok()).filter(|pidfd| !has_ended(pidfd)).collect()
    }
}

pub(super) fn pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

fn send(pidfd: &OwnedFd, signals: &[Signal]) -> Result<(), Errno> {
    signals.iter().try_for_each(|signal| pidfd_send_signal(pidfd, *signal))
}

pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec::default();
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether the process must never be signalled: process 1 and the agent itself.
fn is_protected(pid: u32) -> bool {
    pid == 1 || i32::try_from(pid) == Ok(getpid().as_raw_pid())
}

/// Appends the process ids of the cgroup's `cgroup.procs`. Returns the number of its processes that are not
/// visible in this PID namespace. The file is opened each time, because cgroup v1 creates the list when it is
/// opened, and keeps it.
fn list(group: &OwnedFd, text: &mut Vec<u8>, pids: &mut Vec<u32>) -> Result<u32, Errno> {
    let file = open_file(group, c"cgroup.procs")?;
    let mut digits: Option<u32> = None;
    let mut unreachable = 0;
    loop {
        let count = match read(&file, text.as_mut_slice()) {
            Ok(0) => return Ok(unreachable),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        for byte in &text[..count] {
            if byte.is_ascii_digit() {
                let before = digits.unwrap_or(0).saturating_mul(10);
                digits = Some(before.saturating_add(u32::from(byte - b'0')));
                continue;
            }
            match digits.take() {
                Some(0) => unreachable += 1,
                Some(pid) => pids.push(pid),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsFd as _;

    fn fake_cgroups(lists: &[(&str, &str)]) -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        for (group, text) in lists {
            let group = folder.path().join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join("cgroup.procs"), text).unwrap();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap();
        (folder, dir)
    }

    #[test]
    fn scan_lists_the_processes_of_all_cgroups_below() {
        let (_folder, dir) = fake_cgroups(&[
            ("", "30\n10\n"),
            ("a", "20\n0\n0\n"),
            ("a/b/c", "5\n"),
            ("a/b", ""),
            ("pod1", "99999999999999999999\n7\n"),
        ]);
        let mut processes = CgroupProcesses::new();
        processes.scan(dir.as_fd());
        let mut pids = processes.pids.to_vec();
        pids.sort_unstable();
        assert_eq!(pids, [5, 7, 10, 20, 30, u32::MAX]);
        assert_eq!(processes.unreachable, 2);
        assert_eq!(processes.unreadable_groups, 0);
        assert_eq!(processes.protected(), None);
        // A cgroup without a list is removed. One with a directory in place of the list cannot be read.
        let (folder, dir) = fake_cgroups(&[("a", "")]);
        std::fs::create_dir_all(folder.path().join("b/cgroup.procs")).unwrap();
        processes.scan(dir.as_fd());
        assert_eq!(processes.pids, [0_u32; 0]);
        assert_eq!(processes.unreadable_groups, 1);
        assert!(!processes.is_empty());
    }

    #[test]
    fn the_agent_and_the_first_process_are_protected() {
        let own = std::process::id();
        let (_folder, dir) = fake_cgroups(&[("", &format!("1\n{own}\n"))]);
        let mut processes = CgroupProcesses::new();
        processes.scan(dir.as_fd());
        assert!(processes.protected().is_some());
        let mut sum = Signalled::default();
        let mut reached = Vec::new();
        // A signal would end this test.
        processes.signal(dir.as_fd(), &[Signal::KILL], &[], &mut sum, &mut reached);
        assert_eq!((sum, reached), (Signalled::default(), Vec::new()));
    }

    #[test]
    fn processes_that_left_the_cgroup_are_not_signalled() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = sleeper.id();
        let (folder, dir) = fake_cgroups(&[("a", &format!("{pid}\n"))]);
        let mut processes = CgroupProcesses::new();
        processes.scan(dir.as_fd());
        assert_eq!(processes.pids, [pid]);
        // The process is moved between the scan and the signal.
        std::fs::write(folder.path().join("a/cgroup.procs"), "").unwrap();
        let mut sum = Signalled::default();
        let mut reached = Vec::new();
        processes.signal(dir.as_fd(), &[Signal::KILL], &[], &mut sum, &mut reached);
        assert_eq!((sum.sent, sum.moved, reached.len()), (0, 1, 0));
        assert!(sleeper.try_wait().unwrap().is_none());
        // The process is back, but was already signalled.
        std::fs::write(folder.path().join("a/cgroup.procs"), format!("{pid}\n")).unwrap();
        processes.signal(dir.as_fd(), &[Signal::KILL], &[pid], &mut sum, &mut reached);
        assert_eq!(sum.sent, 0);
        processes.signal(dir.as_fd(), &[Signal::KILL], &[], &mut sum, &mut reached);
        assert_eq!((sum.sent, reached), (1, vec![pid]));
        use std::os::unix::process::ExitStatusExt as _;
        assert_eq!(sleeper.wait().unwrap().signal(), Some(9));
        // The process has ended, and its id is still on the list.
        processes.signal(dir.as_fd(), &[Signal::KILL], &[], &mut sum, &mut Vec::new());
        assert_eq!((sum.sent, sum.ended), (1, 1));
    }
}
