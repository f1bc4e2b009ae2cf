//! The processes of one pod: which signals they got, and the temporary changes to their cgroups.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use procfs::process::{Process, StatFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::cgroup::{PinnedCgroup, file_contains, has_event, read_short_file, write_file};
use super::cgroup_procs::CgroupProcesses;
use super::scoped_write::{ScopedWrite, ScopedWriteError, UndoLog};
use eviction_core::progress::{KillProgress, Signalled, UnkillableReason};
use eviction_core::time::nanos;

/// How long tasks may take to freeze. After that they are signalled even if not frozen.
const FREEZE_TIMEOUT: Duration = Duration::from_millis(50);

/// The cgroups of a pod, and the actions taken on their processes.
#[derive(Debug)]
pub(super) struct PodProcesses {
    pub(super) groups: Vec<PinnedCgroup>,
    log: Arc<UndoLog>,
    fork_stops: Vec<ScopedWrite>,
    /// Whether forks could not be stopped in every cgroup.
    can_fork: bool,
    /// Processes that got SIGTERM, sorted.
    sigterm_sent: Vec<u32>,
    /// Processes that got SIGKILL, sorted.
    killed: Vec<u32>,
    /// Processes that got SIGKILL and that the mrelease worker has not received yet.
    pub(super) newly_killed: Vec<u32>,
    /// Updates that `Job::take_updates` has not returned yet, with their time.
    pub(super) updates: Vec<(u64, KillProgress)>,
}

impl PodProcesses {
    pub(super) fn new(groups: Vec<PinnedCgroup>, log: Arc<UndoLog>) -> Self {
        Self {
            groups,
            log,
            fork_stops: Vec::new(),
            can_fork: false,
            sigterm_sent: Vec::new(),
            killed: Vec::new(),
            newly_killed: Vec::new(),
            updates: Vec::new(),
        }
    }

    /// Returns the number of processes to which SIGKILL was sent.
    pub(super) fn killed(&self) -> u32 {
        u32::try_from(self.killed.len()).unwrap_or(u32::MAX)
    }

    /// Adds an update with the current time.
    pub(super) fn report(&mut self, progress: KillProgress) {
        self.updates.push((now_ns(), progress));
    }

    /// Returns all processes of the pod, sorted, and the number of those that are not visible in this PID
    /// namespace.
    pub(super) fn list_all(&self, processes: &mut CgroupProcesses) -> (Vec<u32>, u32) {
        let mut pids = Vec::new();
        let mut unreachable = 0;
        for group in &self.groups {
            processes.scan(group.memory.as_fd());
            pids.extend_from_slice(&processes.pids);
            unreachable += processes.unreachable;
        }
        pids.sort_unstable();
        (pids, unreachable)
    }

    /// Sends SIGTERM to each process, exactly once. While no process can fork or run, none is missed.
    /// Processes that a SIGTERM handler forks later get no signal. SIGCONT follows, so that stopped processes
    /// can handle SIGTERM too.
    pub(super) fn terminate(&mut self, stops_forks: bool, processes: &mut CgroupProcesses) -> Signalled {
        let mut frozen = Vec::new();
        if stops_forks {
            self.stop_forks();
        } else {
            frozen = self.freeze();
        }
        let mut sum = Signalled::default();
        // The second pass reaches processes whose fork was in progress.
        for _ in 0..2 {
            let before = self.sigterm_sent.len();
            // The second pass finds these processes again.
            (sum.denied, sum.unreachable, sum.unreadable_groups) = (0, 0, 0);
            for group in &self.groups {
                processes.scan(group.memory.as_fd());
                let signals = [Signal::TERM, Signal::CONT];
                let dir = group.memory.as_fd();
                let mut reached = Vec::new();
                processes.signal(dir, &signals, &self.sigterm_sent, &mut sum, &mut reached);
                insert_sorted(&mut self.sigterm_sent, &reached);
            }
            if self.sigterm_sent.len() == before {
                break;
            }
        }
        drop(frozen);
        sum
    }

    /// Sends SIGKILL to all processes, for the first time.
    pub(super) fn kill(&mut self, processes: &mut CgroupProcesses) -> Signalled {
        self.stop_forks();
        self.kill_round(processes)
    }

    /// Sends SIGKILL to the remaining processes. In cgroup v1 frozen tasks do not exit, so they are thawed
    /// first. If forks could not be stopped, the pod is frozen while the signals are sent.
    pub(super) fn kill_remaining(&mut self, processes: &mut CgroupProcesses) {
        for group in &self.groups {
            if let Some((dir, _)) = &group.freezer {
                processes.scan(dir.as_fd());
                processes.thaw(dir.as_fd());
            }
        }
        let frozen = if self.can_fork { self.freeze() } else { Vec::new() };
        self.kill_round(processes);
        drop(frozen);
    }

    fn kill_round(&mut self, processes: &mut CgroupProcesses) -> Signalled {
        let mut sum = Signalled::default();
        for group in &self.groups {
            let dir = group.memory.as_fd();
            let mut at_once = Vec::new();
            if group.is_unified {
                // Processes that are exiting are not listed any more (since 7.2), but still have their
                // memory.
                processes.scan(dir);
                // Also kills the processes of forks in progress (since 5.14).
                match write_file(dir, c"cgroup.kill", b"1") {
                    Ok(()) => {
                        sum.whole_group = true;
                        insert_sorted(&mut at_once, &processes.pids);
                    }
                    Err(Errno::NOENT | Errno::NODEV) => {}
                    Err(error) if self.killed.is_empty() => {
                        let path = group.path.display();
                        let what = format!("write {path}/cgroup.kill: {error}");
                        self.updates.push((now_ns(), KillProgress::Error { what }));
                    }
                    Err(_) => {}
                }
            }
            processes.scan(dir);
            let mut reached = Vec::new();
            processes.signal(dir, &[Signal::KILL], &at_once, &mut sum, &mut reached);
            sum.sent += u32::try_from(at_once.len()).unwrap_or(u32::MAX);
            reached.append(&mut at_once);
            let killed = &self.killed;
            self.newly_killed.extend(reached.iter().filter(|pid| killed.binary_search(pid).is_err()));
            insert_sorted(&mut self.killed, &reached);
        }
        sum
    }

    /// Whether no process is left, and the memory of all of them is freed.
    pub(super) fn is_terminated(&self, processes: &mut CgroupProcesses) -> bool {
        self.groups.iter().all(|group| {
            processes.scan(group.memory.as_fd());
            processes.is_empty() && !group.is_exiting()
        })
    }

    /// Returns the number of ended tasks that were not waited for, if the pids controller reports it.
    pub(super) fn unreaped(&self) -> Option<u64> {
        self.groups.iter().filter_map(pids_current).reduce(|a, b| a + b)
    }

    /// Returns the remaining processes as [`KillProgress::ProcessesRemaining`].
    pub(super) fn remaining(&self, processes: &mut CgroupProcesses) -> KillProgress {
        let mut remaining = BTreeMap::new();
        let mut unreachable = 0;
        let mut unreadable_groups = 0;
        for group in &self.groups {
            processes.scan(group.memory.as_fd());
            let killed = &self.killed;
            remaining.extend(processes.pids.iter().map(|pid| {
                let is_denied = killed.binary_search(pid).is_err();
                (*pid, unkillable_reason(*pid, is_denied, group))
            }));
            unreachable += processes.unreachable;
            // Not listed any more, but not ended.
            unreachable += u32::from(processes.is_empty() && group.is_exiting());
            unreadable_groups += processes.unreadable_groups;
        }
        KillProgress::ProcessesRemaining { processes: remaining, unreachable, unreadable_groups }
    }

    /// Stops all forks in the pod, as far as possible.
    pub(super) fn stop_forks(&mut self) {
        if !self.fork_stops.is_empty() {
            return;
        }
        self.can_fork = false;
        for group in &self.groups {
            let Some((dir, path)) = &group.pids else {
                self.can_fork = true;
                continue;
            };
            match ScopedWrite::stop_forks(dir, path, &self.log) {
                Ok(hold) => self.fork_stops.extend(hold),
                Err(error) => {
                    self.can_fork = true;
                    if !error.is_removed() {
                        self.updates.push((now_ns(), error_progress(&error)));
                    }
                }
            }
        }
    }

    /// Undoes the stop of forks.
    pub(super) fn allow_forks(&mut self) {
        self.fork_stops.clear();
    }

    /// Freezes the pod's cgroups until the result is dropped.
    fn freeze(&mut self) -> Vec<ScopedWrite> {
        let mut frozen = Vec::new();
        for group in &self.groups {
            let Some((dir, path)) = &group.freezer else {
                continue;
            };
            match ScopedWrite::freeze(dir, path, &self.log) {
                Ok(hold) => frozen.extend(hold.map(|hold| (hold, dir))),
                Err(error) if error.is_removed() => {}
                Err(error) => self.updates.push((now_ns(), error_progress(&error))),
            }
        }
        let pause = Duration::from_millis(1);
        for _ in 0..FREEZE_TIMEOUT.as_millis() {
            if frozen.iter().all(|(hold, dir)| hold.is_frozen(dir)) {
                break;
            }
            std::thread::sleep(pause);
        }
        frozen.into_iter().map(|(hold, _)| hold).collect()
    }
}

impl PinnedCgroup {
    /// Returns whether this cgroup or one below it still has tasks although the process lists are empty, as on
    /// 7.2: processes whose exit has begun hold their memory until it is complete. cgroup v1 lists all
    /// processes until their end.
    fn is_exiting(&self) -> bool {
        self.is_unified && has_event(&self.memory, b"populated 1")
    }
}

/// Returns why a process remains after SIGKILL. `is_denied`: no signal could be sent to it.
fn unkillable_reason(pid: u32, is_denied: bool, group: &PinnedCgroup) -> UnkillableReason {
    let id = i32::try_from(pid).unwrap_or(i32::MAX);
    let stat = Process::new(id).and_then(|process| process.stat());
    match stat {
        Ok(stat) if stat.flags & StatFlags::PF_KTHREAD.bits() != 0 => UnkillableReason::KernelThread,
        Ok(_) if is_denied => UnkillableReason::Denied,
        Ok(stat) if stat.state == 'Z' => UnkillableReason::Zombie,
        Ok(_) if is_frozen_above(group) => UnkillableReason::Frozen,
        Ok(stat) if stat.state == 'D' => UnkillableReason::Uninterruptible,
        Ok(_) | Err(_) => UnkillableReason::Running,
    }
}

/// cgroup v1: whether the pod's cgroup is frozen because an ancestor is.
fn is_frozen_above(group: &PinnedCgroup) -> bool {
    group.freezer.as_ref().is_some_and(|(dir, _)| file_contains(dir, c"freezer.parent_freezing", b"1"))
}

fn error_progress(error: &ScopedWriteError) -> KillProgress {
    KillProgress::Error { what: eviction_core::error::chain(error) }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds, the clock of kernel timestamps.
pub(super) fn now_ns() -> u64 {
    // The clock starts near zero at boot and is never negative.
    nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default())
}

/// Adds to a sorted list without duplicates.
fn insert_sorted(sorted: &mut Vec<u32>, more: &[u32]) {
    if !more.is_empty() {
        sorted.extend_from_slice(more);
        sorted.sort_unstable();
        sorted.dedup();
    }
}

fn pids_current(group: &PinnedCgroup) -> Option<u64> {
    let (dir, _) = group.pids.as_ref()?;
    str::from_utf8(read_short_file(dir, c"pids.current", &mut [0; 32]).trim_ascii()).ok()?.parse().ok()
}
