//! One pod on its way out: SIGTERM, the grace period, SIGKILL, and looking until nobody is left.
#![forbid(unsafe_code)]

use std::error::Error;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::process::Signal;

use super::boundary::Pinned;
use super::hold::{Hold, Log};
use super::members::Members;
use super::outcome::{Progress, Signalled};
use super::survivors;
use super::target::{KillTarget, PodName};

/// How long tasks may take to freeze before they are signalled as they are.
const FREEZE: Duration = Duration::from_millis(50);

/// Between two looks, while nobody ends: from the first pause, doubled each time, to the last.
const FIRST_PAUSE_NS: u64 = 1_000_000;
const KILL_PAUSE_NS: u64 = 20_000_000;
const GRACE_PAUSE_NS: u64 = 250_000_000;

/// Processes whose end is waited for. When one ends, the others are looked at again.
const WATCHED: usize = 16;

/// A pod's processes and how far their end has come.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) decision: u64,
    pub(super) pod: Arc<PodName>,
    groups: Vec<Pinned>,
    phase: Phase,
    stops_forks: bool,
    kill_wait_ns: u64,
    log: Arc<Log>,
    holds: Vec<Hold>,
    /// Forking could not be stopped in every group.
    can_fork: bool,
    /// Sorted.
    termed: Vec<u32>,
    /// Sorted.
    killed: Vec<u32>,
    pause_ns: u64,
    due_ns: u64,
    watched: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A dry run: say who would be signalled.
    Look,
    /// SIGTERM is due.
    Term { grace_ns: u64 },
    /// SIGTERM was sent.
    Grace { kill_at_ns: u64 },
    /// SIGKILL was sent.
    Kill { until_ns: u64 },
    /// Nothing is left to do.
    Over,
}

/// What a job does its work with, kept from one to the next.
pub(super) struct Tools<'a> {
    pub(super) members: &'a mut Members,
    pub(super) report: &'a mut dyn FnMut(Progress),
    pub(super) now_ns: u64,
}

impl Job {
    /// A job that is to be begun with [`Job::strike`] or, later, with [`Job::step`].
    pub(super) fn new(
        target: &KillTarget,
        groups: Vec<Pinned>,
        kill_wait: Duration,
        is_dry: bool,
        log: Arc<Log>,
    ) -> Self {
        let grace_ns = nanos(target.grace);
        Self {
            decision: target.decision,
            pod: Arc::clone(&target.pod),
            groups,
            phase: match is_dry {
                true => Phase::Look,
                false => Phase::Term { grace_ns },
            },
            stops_forks: target.stops_forks(),
            kill_wait_ns: nanos(kill_wait),
            log,
            holds: Vec::new(),
            can_fork: false,
            termed: Vec::new(),
            killed: Vec::new(),
            pause_ns: FIRST_PAUSE_NS,
            due_ns: 0,
            watched: Vec::new(),
        }
    }

    pub(super) fn groups(&self) -> &[Pinned] {
        &self.groups
    }

    /// When to look again, even if no watched process ends.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Processes whose end makes a look worth while.
    pub(super) fn watched(&self) -> &[OwnedFd] {
        &self.watched
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// A watched process has ended: look again, but not in a frenzy while many end.
    pub(super) fn wake(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.min(now_ns.saturating_add(FIRST_PAUSE_NS / 2));
        self.pause_ns = FIRST_PAUSE_NS;
        self.watched.clear();
    }

    /// The first signals, at once: on the thread that asks for them.
    pub(super) fn strike(&mut self, tools: &mut Tools<'_>) {
        match self.phase {
            Phase::Term { grace_ns: 0 } => self.kill(tools),
            Phase::Term { grace_ns } => self.terminate(grace_ns, tools),
            Phase::Look | Phase::Grace { .. } | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = tools.now_ns;
    }

    /// Does what is due.
    pub(super) fn step(&mut self, tools: &mut Tools<'_>) {
        let now_ns = tools.now_ns;
        match self.phase {
            Phase::Look => return self.look(tools),
            Phase::Term { .. } => self.strike(tools),
            Phase::Grace { kill_at_ns } => {
                if self.is_gone(tools) {
                    return;
                }
                if now_ns >= kill_at_ns {
                    self.kill(tools);
                }
            }
            Phase::Kill { until_ns } => {
                if self.is_gone(tools) {
                    return;
                }
                if now_ns >= until_ns {
                    return self.give_up(tools);
                }
                self.kill_again(tools);
            }
            Phase::Over => return,
        }
        let last = match self.phase {
            Phase::Grace { kill_at_ns } => {
                self.due_ns = kill_at_ns;
                GRACE_PAUSE_NS
            }
            _ => {
                self.due_ns = u64::MAX;
                KILL_PAUSE_NS
            }
        };
        self.due_ns = self.due_ns.min(now_ns.saturating_add(self.pause_ns));
        self.pause_ns = self.pause_ns.saturating_mul(2).min(last);
        self.watched = tools.members.watch(WATCHED);
    }

    /// The node got worse: stop forking now, and wait no longer than this.
    pub(super) fn hurry(&mut self, grace: Duration, tools: &mut Tools<'_>) {
        let grace_ns = nanos(grace);
        self.stops_forks = true;
        match &mut self.phase {
            Phase::Term { grace_ns: granted } => *granted = grace_ns.min(*granted),
            Phase::Grace { kill_at_ns } => {
                *kill_at_ns = tools.now_ns.saturating_add(grace_ns).min(*kill_at_ns);
                self.stop_forks(tools);
            }
            Phase::Look | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = tools.now_ns;
    }

    /// Lets everything go on as it is.
    pub(super) fn abandon(&mut self, tools: &mut Tools<'_>) {
        if self.phase != Phase::Over {
            self.end(Progress::Abandoned, tools);
        }
    }

    fn end(&mut self, progress: Progress, tools: &mut Tools<'_>) {
        self.phase = Phase::Over;
        self.watched.clear();
        self.holds.clear();
        (tools.report)(progress);
    }

    fn look(&mut self, tools: &mut Tools<'_>) {
        let mut pids = Vec::new();
        let mut unreachable = 0;
        for group in &self.groups {
            tools.members.scan(group.deciding.as_fd());
            pids.extend_from_slice(tools.members.pids());
            unreachable += tools.members.unreachable;
        }
        pids.sort_unstable();
        self.end(Progress::WouldSignal { pids, unreachable }, tools);
    }

    /// SIGTERM to everybody, exactly once. While nobody can fork or run, nobody is missed; after
    /// that, what a handler of SIGTERM forks is let be. SIGCONT after it, so that stopped processes
    /// can handle it too.
    fn terminate(&mut self, grace_ns: u64, tools: &mut Tools<'_>) {
        let mut frozen = Vec::new();
        if self.stops_forks {
            self.stop_forks(tools);
        } else {
            frozen = self.freeze(tools);
        }
        let mut sum = Signalled::default();
        // The second pass meets those whose fork was under way.
        for _ in 0..2 {
            let before = self.termed.len();
            for group in &self.groups {
                let members = &mut *tools.members;
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
        self.phase = Phase::Grace { kill_at_ns: tools.now_ns.saturating_add(grace_ns) };
        (tools.report)(Progress::TermSent(sum));
    }

    /// SIGKILL to everybody, for the first time.
    fn kill(&mut self, tools: &mut Tools<'_>) {
        self.stops_forks = true;
        self.stop_forks(tools);
        self.phase = Phase::Kill { until_ns: tools.now_ns.saturating_add(self.kill_wait_ns) };
        self.pause_ns = FIRST_PAUSE_NS;
        let sum = self.kill_round(tools);
        (tools.report)(Progress::KillSent(sum));
    }

    /// SIGKILL to those who are still there. Version 1 keeps frozen tasks from dying, so they are
    /// thawed; and who may still fork does not get to it while the signals are sent.
    fn kill_again(&mut self, tools: &mut Tools<'_>) {
        for group in &self.groups {
            if let Some((dir, _)) = &group.freezer {
                tools.members.scan(dir.as_fd());
                tools.members.thaw(dir.as_fd());
            }
        }
        let frozen = if self.can_fork { self.freeze(tools) } else { Vec::new() };
        self.kill_round(tools);
        drop(frozen);
    }

    fn kill_round(&mut self, tools: &mut Tools<'_>) -> Signalled {
        let mut sum = Signalled::default();
        for group in &self.groups {
            let dir = group.deciding.as_fd();
            if group.is_unified {
                match kill_group(group) {
                    Ok(()) => sum.whole_group = true,
                    Err(Errno::NOENT | Errno::NODEV) => {}
                    Err(error) if self.killed.is_empty() => {
                        let path = group.path.display();
                        let what = format!("write {path}/cgroup.kill: {error}");
                        (tools.report)(Progress::Trouble { what });
                    }
                    Err(_) => {}
                }
            }
            let members = &mut *tools.members;
            members.scan(dir);
            let mut reached = Vec::new();
            members.signal(dir, &[Signal::KILL], &[], &mut sum, &mut reached);
            add(&mut self.killed, &reached);
            sum.unreachable += members.unreachable;
            sum.unreadable_groups += members.unreadable_groups;
        }
        sum
    }

    /// Whether nobody is left; if so, the job is over.
    fn is_gone(&mut self, tools: &mut Tools<'_>) -> bool {
        for group in &self.groups {
            tools.members.scan(group.deciding.as_fd());
            if !tools.members.is_empty() {
                return false;
            }
        }
        let unreaped = self.groups.iter().filter_map(pids_current).reduce(|a, b| a + b);
        let killed = u32::try_from(self.killed.len()).unwrap_or(u32::MAX);
        self.end(Progress::Gone { killed, unreaped }, tools);
        true
    }

    fn give_up(&mut self, tools: &mut Tools<'_>) {
        let mut processes = Vec::new();
        let mut unreachable = 0;
        let mut unreadable_groups = 0;
        for group in &self.groups {
            tools.members.scan(group.deciding.as_fd());
            let killed = &self.killed;
            let pids = tools.members.pids().iter();
            processes.extend(pids.map(|pid| {
                let is_denied = killed.binary_search(pid).is_err();
                survivors::look_at(*pid, is_denied, group)
            }));
            unreachable += tools.members.unreachable;
            unreadable_groups += tools.members.unreadable_groups;
        }
        processes.sort_unstable_by_key(|survivor| survivor.pid);
        let left = Progress::Left { processes, unreachable, unreadable_groups };
        self.end(left, tools);
    }

    fn stop_forks(&mut self, tools: &mut Tools<'_>) {
        if !self.holds.is_empty() {
            return;
        }
        self.can_fork = false;
        for group in &self.groups {
            let Some((dir, path)) = &group.pids else {
                self.can_fork = true;
                continue;
            };
            match Hold::forks(dir, path, &self.log) {
                Ok(hold) => self.holds.extend(hold),
                Err(error) => {
                    self.can_fork = true;
                    if !error.is_gone() {
                        (tools.report)(Progress::Trouble { what: describe(&error) });
                    }
                }
            }
        }
    }

    /// Frozen until the holds are dropped.
    fn freeze(&self, tools: &mut Tools<'_>) -> Vec<Hold> {
        let mut frozen = Vec::new();
        for group in &self.groups {
            let Some((dir, path)) = &group.freezer else {
                continue;
            };
            match Hold::freeze(dir, path, &self.log) {
                Ok(hold) => frozen.extend(hold.map(|hold| (hold, dir))),
                Err(error) if error.is_gone() => {}
                Err(error) => (tools.report)(Progress::Trouble { what: describe(&error) }),
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

/// Adds to a sorted list without repeating.
fn add(sorted: &mut Vec<u32>, more: &[u32]) {
    if !more.is_empty() {
        sorted.extend_from_slice(more);
        sorted.sort_unstable();
        sorted.dedup();
    }
}

/// The kernel kills everybody in the group and below it, forks under way included (from 5.14).
fn kill_group(group: &Pinned) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&group.deciding, c"cgroup.kill", flags, Mode::empty())?;
    write(&file, b"1").map(|_| ())
}

fn pids_current(group: &Pinned) -> Option<u64> {
    let (dir, _) = group.pids.as_ref()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(dir, c"pids.current", flags, Mode::empty()).ok()?;
    let mut text = [0; 32];
    let count = read(&file, &mut text).ok()?;
    str::from_utf8(text[..count].trim_ascii()).ok()?.parse().ok()
}

/// The error and its causes in one line.
pub(super) fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
