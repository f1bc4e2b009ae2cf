//! The processes of one pod: who got which signal, and what keeps them from getting more.
#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use procfs::process::{Process, StatFlags};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::process::Signal;

use super::cgroup_procs::{CgroupProcesses, file_says, is_populated, short};
use super::cgroup_scope::PinnedCgroup;
use super::scoped_write::{ScopedWrite, ScopedWriteError, UndoLog};
use super::thread::now_ns;
use eviction_core::progress::{KillProgress, Signalled, UnkillableProcess, UnkillableReason};

/// How long tasks may take to freeze before they are signalled as they are.
const FREEZE: Duration = Duration::from_millis(50);

/// A pod's groups, and what was done to those in them.
#[derive(Debug)]
pub(super) struct PodProcesses {
    groups: Vec<PinnedCgroup>,
    log: Arc<UndoLog>,
    holds: Vec<ScopedWrite>,
    /// Forking could not be stopped in every group.
    can_fork: bool,
    /// Sorted.
    termed: Vec<u32>,
    /// Sorted.
    killed: Vec<u32>,
    /// Those of the killed whose memory is not released yet.
    fresh: Vec<u32>,
    /// What happened since the last call of [`PodProcesses::take_updates`], and when.
    updates: Vec<(u64, KillProgress)>,
}

impl PodProcesses {
    pub(super) fn new(groups: Vec<PinnedCgroup>, log: Arc<UndoLog>) -> Self {
        Self {
            groups,
            log,
            holds: Vec::new(),
            can_fork: false,
            termed: Vec::new(),
            killed: Vec::new(),
            fresh: Vec::new(),
            updates: Vec::new(),
        }
    }

    pub(super) fn groups(&self) -> &[PinnedCgroup] {
        &self.groups
    }

    /// To how many SIGKILL was sent.
    pub(super) fn killed(&self) -> u32 {
        u32::try_from(self.killed.len()).unwrap_or(u32::MAX)
    }

    /// Those to whom SIGKILL was sent since the last call.
    pub(super) fn take_fresh(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.fresh)
    }

    /// Reports what happened.
    pub(super) fn report(&mut self, progress: KillProgress) {
        self.updates.push((now_ns(), progress));
    }

    /// What happened since the last call, and when.
    pub(super) fn take_updates(&mut self) -> Vec<(u64, KillProgress)> {
        std::mem::take(&mut self.updates)
    }

    /// Everybody who is there, sorted, and how many this PID namespace does not show.
    pub(super) fn everybody(&self, processes: &mut CgroupProcesses) -> (Vec<u32>, u32) {
        let mut pids = Vec::new();
        let mut unreachable = 0;
        for group in &self.groups {
            processes.scan(group.deciding.as_fd());
            pids.extend_from_slice(processes.pids());
            unreachable += processes.unreachable;
        }
        pids.sort_unstable();
        (pids, unreachable)
    }

    /// SIGTERM to everybody, exactly once. While nobody can fork or run, nobody is missed; after
    /// that, what a handler of SIGTERM forks is let be. SIGCONT after it, so that stopped processes
    /// can handle it too.
    pub(super) fn terminate(&mut self, stops_forks: bool, processes: &mut CgroupProcesses) -> Signalled {
        let mut frozen = Vec::new();
        if stops_forks {
            self.stop_forks();
        } else {
            frozen = self.freeze();
        }
        let mut sum = Signalled::default();
        // The second pass meets those whose fork was under way.
        for _ in 0..2 {
            let before = self.termed.len();
            for group in &self.groups {
                processes.scan(group.deciding.as_fd());
                let signals = [Signal::TERM, Signal::CONT];
                let dir = group.deciding.as_fd();
                let mut reached = Vec::new();
                processes.signal(dir, &signals, &self.termed, &mut sum, &mut reached);
                add(&mut self.termed, &reached);
                sum.unreachable = sum.unreachable.max(processes.unreachable);
                sum.unreadable_groups = sum.unreadable_groups.max(processes.unreadable_groups);
            }
            if self.termed.len() == before {
                break;
            }
        }
        drop(frozen);
        sum
    }

    /// SIGKILL to everybody, for the first time.
    pub(super) fn kill(&mut self, processes: &mut CgroupProcesses) -> Signalled {
        self.stop_forks();
        self.kill_round(processes)
    }

    /// SIGKILL to those who are still there. Version 1 keeps frozen tasks from dying, so they are
    /// thawed; and who may still fork does not get to it while the signals are sent.
    pub(super) fn kill_again(&mut self, processes: &mut CgroupProcesses) {
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
            let dir = group.deciding.as_fd();
            let mut at_once = Vec::new();
            if group.is_unified {
                // Who is on the way out is on no list any more (from 7.2), and has its memory still.
                processes.scan(dir);
                match kill_group(group) {
                    Ok(()) => {
                        sum.whole_group = true;
                        add(&mut at_once, processes.pids());
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
            self.fresh.extend(reached.iter().filter(|pid| killed.binary_search(pid).is_err()));
            add(&mut self.killed, &reached);
            sum.unreachable += processes.unreachable;
            sum.unreadable_groups += processes.unreadable_groups;
        }
        sum
    }

    /// Whether nobody is left, and with them their memory.
    pub(super) fn is_gone(&self, processes: &mut CgroupProcesses) -> bool {
        self.groups.iter().all(|group| {
            processes.scan(group.deciding.as_fd());
            processes.is_empty() && !group.is_ending()
        })
    }

    /// Tasks that ended but were not waited for, where the pids controller tells.
    pub(super) fn unreaped(&self) -> Option<u64> {
        self.groups.iter().filter_map(pids_current).reduce(|a, b| a + b)
    }

    /// Who is left, as [`KillProgress::ProcessesRemaining`] has it.
    pub(super) fn left(&self, processes: &mut CgroupProcesses) -> KillProgress {
        let mut left: Vec<UnkillableProcess> = Vec::new();
        let mut unreachable = 0;
        let mut unreadable_groups = 0;
        for group in &self.groups {
            processes.scan(group.deciding.as_fd());
            let killed = &self.killed;
            left.extend(processes.pids().iter().map(|pid| {
                let is_denied = killed.binary_search(pid).is_err();
                unkillable_process(*pid, is_denied, group)
            }));
            unreachable += processes.unreachable;
            // Listed no more, and not gone.
            unreachable += u32::from(processes.is_empty() && group.is_ending());
            unreadable_groups += processes.unreadable_groups;
        }
        left.sort_unstable_by_key(|process| process.pid);
        KillProgress::ProcessesRemaining { processes: left, unreachable, unreadable_groups }
    }

    /// Nothing in the pod forks from now on, as far as that can be had.
    pub(super) fn stop_forks(&mut self) {
        if !self.holds.is_empty() {
            return;
        }
        self.can_fork = false;
        for group in &self.groups {
            let Some((dir, path)) = &group.pids else {
                self.can_fork = true;
                continue;
            };
            match ScopedWrite::forks(dir, path, &self.log) {
                Ok(hold) => self.holds.extend(hold),
                Err(error) => {
                    self.can_fork = true;
                    if !error.is_gone() {
                        self.updates.push((now_ns(), trouble(&error)));
                    }
                }
            }
        }
    }

    /// What was stopped goes on.
    pub(super) fn let_go(&mut self) {
        self.holds.clear();
    }

    /// Frozen until the holds are dropped.
    fn freeze(&mut self) -> Vec<ScopedWrite> {
        let mut frozen = Vec::new();
        for group in &self.groups {
            let Some((dir, path)) = &group.freezer else {
                continue;
            };
            match ScopedWrite::freeze(dir, path, &self.log) {
                Ok(hold) => frozen.extend(hold.map(|hold| (hold, dir))),
                Err(error) if error.is_gone() => {}
                Err(error) => self.updates.push((now_ns(), trouble(&error))),
            }
        }
        let pause = Duration::from_millis(1);
        for _ in 0..FREEZE.as_millis() {
            if frozen.iter().all(|(hold, dir)| hold.is_frozen(dir)) {
                break;
            }
            std::thread::sleep(pause);
        }
        frozen.into_iter().map(|(hold, _)| hold).collect()
    }
}

impl PinnedCgroup {
    /// Whether somebody is there, once the list of processes is empty. Version 1 lists everybody until
    /// the end.
    fn is_ending(&self) -> bool {
        self.is_unified && is_populated(self.deciding.as_fd())
    }
}

/// Why a process outlives SIGKILL. `is_denied`: no signal could be sent to it.
fn unkillable_process(pid: u32, is_denied: bool, group: &PinnedCgroup) -> UnkillableProcess {
    let id = i32::try_from(pid).unwrap_or(i32::MAX);
    let stat = Process::new(id).and_then(|process| process.stat());
    let why = match stat {
        Ok(stat) if stat.flags & StatFlags::PF_KTHREAD.bits() != 0 => UnkillableReason::KernelThread,
        Ok(_) if is_denied => UnkillableReason::Denied,
        Ok(stat) if stat.state == 'Z' => UnkillableReason::Zombie,
        Ok(_) if is_frozen_above(group) => UnkillableReason::Frozen,
        Ok(stat) if stat.state == 'D' => UnkillableReason::Uninterruptible,
        Ok(_) | Err(_) => UnkillableReason::Running,
    };
    UnkillableProcess { pid, why }
}

/// Version 1: whether the pod's cgroup is frozen because one above it is.
fn is_frozen_above(group: &PinnedCgroup) -> bool {
    group.freezer.as_ref().is_some_and(|(dir, _)| file_says(dir, c"freezer.parent_freezing", b"1"))
}

fn trouble(error: &ScopedWriteError) -> KillProgress {
    KillProgress::Error { what: eviction_core::error::chain(error) }
}

/// Adds to a sorted list without repeating.
fn add(sorted: &mut Vec<u32>, more: &[u32]) {
    if !more.is_empty() {
        sorted.extend_from_slice(more);
        sorted.sort_unstable();
        sorted.dedup();
    }
}

/// The kernel kills everybody in the group and below it, forks under way included (from 5.14).
fn kill_group(group: &PinnedCgroup) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&group.deciding, c"cgroup.kill", flags, Mode::empty())?;
    write(&file, b"1").map(|_| ())
}

fn pids_current(group: &PinnedCgroup) -> Option<u64> {
    let (dir, _) = group.pids.as_ref()?;
    str::from_utf8(short(dir, c"pids.current", &mut [0; 32]).trim_ascii()).ok()?.parse().ok()
}
