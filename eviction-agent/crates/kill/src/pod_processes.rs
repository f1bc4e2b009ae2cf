//! The processes of one pod: who got which signal, and what keeps them from getting more.
#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::process::Signal;

use super::cgroup_scope::PinnedCgroup;
use super::group::{is_populated, short};
use super::kill_context::KillContext;
use super::scoped_write::{ScopedWrite, UndoLog};
use super::unkillable;
use eviction_core::progress::{KillProgress, Signalled, UnkillableProcess};

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
    /// Those of the killed whose memory nobody sees to yet.
    fresh: Vec<u32>,
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

    /// Everybody who is there, sorted, and how many this PID namespace does not show.
    pub(super) fn everybody(&self, context: &mut KillContext<'_>) -> (Vec<u32>, u32) {
        let mut pids = Vec::new();
        let mut unreachable = 0;
        for group in &self.groups {
            context.members.scan(group.deciding.as_fd());
            pids.extend_from_slice(context.members.pids());
            unreachable += context.members.unreachable;
        }
        pids.sort_unstable();
        (pids, unreachable)
    }

    /// SIGTERM to everybody, exactly once. While nobody can fork or run, nobody is missed; after
    /// that, what a handler of SIGTERM forks is let be. SIGCONT after it, so that stopped processes
    /// can handle it too.
    pub(super) fn terminate(&mut self, stops_forks: bool, context: &mut KillContext<'_>) -> Signalled {
        let mut frozen = Vec::new();
        if stops_forks {
            self.stop_forks(context);
        } else {
            frozen = self.freeze(context);
        }
        let mut sum = Signalled::default();
        // The second pass meets those whose fork was under way.
        for _ in 0..2 {
            let before = self.termed.len();
            for group in &self.groups {
                let members = &mut *context.members;
                members.scan(group.deciding.as_fd());
                let signals = [Signal::TERM, Signal::CONT];
                let dir = group.deciding.as_fd();
                let mut reached = Vec::new();
                members.signal(dir, &signals, &self.termed, &mut sum, &mut reached);
                add(&mut self.termed, &reached);
                sum.unreachable = sum.unreachable.max(members.unreachable);
                sum.unreadable_groups = sum.unreadable_groups.max(members.unreadable_groups);
            }
            if self.termed.len() == before {
                break;
            }
        }
        drop(frozen);
        sum
    }

    /// SIGKILL to everybody, for the first time.
    pub(super) fn kill(&mut self, context: &mut KillContext<'_>) -> Signalled {
        self.stop_forks(context);
        self.kill_round(context)
    }

    /// SIGKILL to those who are still there. Version 1 keeps frozen tasks from dying, so they are
    /// thawed; and who may still fork does not get to it while the signals are sent.
    pub(super) fn kill_again(&mut self, context: &mut KillContext<'_>) {
        for group in &self.groups {
            if let Some((dir, _)) = &group.freezer {
                context.members.scan(dir.as_fd());
                context.members.thaw(dir.as_fd());
            }
        }
        let frozen = if self.can_fork { self.freeze(context) } else { Vec::new() };
        self.kill_round(context);
        drop(frozen);
    }

    fn kill_round(&mut self, context: &mut KillContext<'_>) -> Signalled {
        let mut sum = Signalled::default();
        for group in &self.groups {
            let dir = group.deciding.as_fd();
            let mut at_once = Vec::new();
            if group.is_unified {
                // Who is on the way out is on no list any more (from 7.2), and has its memory still.
                context.members.scan(dir);
                match kill_group(group) {
                    Ok(()) => {
                        sum.whole_group = true;
                        add(&mut at_once, context.members.pids());
                    }
                    Err(Errno::NOENT | Errno::NODEV) => {}
                    Err(error) if self.killed.is_empty() => {
                        let path = group.path.display();
                        let what = format!("write {path}/cgroup.kill: {error}");
                        (context.report)(KillProgress::Trouble { what });
                    }
                    Err(_) => {}
                }
            }
            let members = &mut *context.members;
            members.scan(dir);
            let mut reached = Vec::new();
            members.signal(dir, &[Signal::KILL], &at_once, &mut sum, &mut reached);
            sum.sent += u32::try_from(at_once.len()).unwrap_or(u32::MAX);
            reached.append(&mut at_once);
            let killed = &self.killed;
            self.fresh.extend(reached.iter().filter(|pid| killed.binary_search(pid).is_err()));
            add(&mut self.killed, &reached);
            sum.unreachable += members.unreachable;
            sum.unreadable_groups += members.unreadable_groups;
        }
        sum
    }

    /// Whether nobody is left, and with them their memory.
    pub(super) fn is_gone(&self, context: &mut KillContext<'_>) -> bool {
        self.groups.iter().all(|group| {
            context.members.scan(group.deciding.as_fd());
            context.members.is_empty() && !group.is_ending()
        })
    }

    /// Tasks that ended but were not waited for, where the pids controller tells.
    pub(super) fn unreaped(&self) -> Option<u64> {
        self.groups.iter().filter_map(pids_current).reduce(|a, b| a + b)
    }

    /// Who is left, as [`KillProgress::Left`] has it.
    pub(super) fn left(&self, context: &mut KillContext<'_>) -> KillProgress {
        let mut processes: Vec<UnkillableProcess> = Vec::new();
        let mut unreachable = 0;
        let mut unreadable_groups = 0;
        for group in &self.groups {
            context.members.scan(group.deciding.as_fd());
            let killed = &self.killed;
            let pids = context.members.pids().iter();
            processes.extend(pids.map(|pid| {
                let is_denied = killed.binary_search(pid).is_err();
                unkillable::look_at(*pid, is_denied, group)
            }));
            unreachable += context.members.unreachable;
            // Listed no more, and not gone.
            unreachable += u32::from(context.members.is_empty() && group.is_ending());
            unreadable_groups += context.members.unreadable_groups;
        }
        processes.sort_unstable_by_key(|survivor| survivor.pid);
        KillProgress::Left { processes, unreachable, unreadable_groups }
    }

    /// Nothing in the pod forks from now on, as far as that can be had.
    pub(super) fn stop_forks(&mut self, context: &mut KillContext<'_>) {
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
                        (context.report)(KillProgress::Trouble { what: eviction_core::error::chain(&error) });
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
    fn freeze(&self, context: &mut KillContext<'_>) -> Vec<ScopedWrite> {
        let mut frozen = Vec::new();
        for group in &self.groups {
            let Some((dir, path)) = &group.freezer else {
                continue;
            };
            match ScopedWrite::freeze(dir, path, &self.log) {
                Ok(hold) => frozen.extend(hold.map(|hold| (hold, dir))),
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    (context.report)(KillProgress::Trouble { what: eviction_core::error::chain(&error) })
                }
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
