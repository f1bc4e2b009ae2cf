//! The end of one pod's processes: SIGTERM, the grace period, SIGKILL, and checks until none is left.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::cgroup_procs::CgroupProcesses;
use super::cgroup_scope::{CgroupDirs, PinnedCgroup};
use super::growth::Growth;
use super::pod_processes::PodProcesses;
use super::scoped_write::UndoLog;
use super::thread::now_ns;
use eviction_core::pod::PodName;
use eviction_core::progress::{KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_core::time::nanos;

/// Between two looks, while nobody ends: from the first pause, doubled each time, to the last.
const FIRST_PAUSE_NS: u64 = 1_000_000;
const KILL_PAUSE_NS: u64 = 20_000_000;
const GRACE_PAUSE_NS: u64 = 250_000_000;

/// Processes whose end is waited for. When one ends, the others are looked at again.
const WATCHED: usize = 16;

/// A pod whose processes are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillTarget {
    /// Number of the decision; outcomes carry it.
    pub decision: u64,
    /// When it was decided: CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// Which pod.
    pub pod: Arc<PodName>,
    /// The pod's cgroup, and groups of its containers that a runtime has put elsewhere.
    pub groups: Vec<CgroupDirs>,
    /// Between SIGTERM and SIGKILL. With zero there is no SIGTERM.
    pub grace: Duration,
    /// What the node is short of.
    pub resource: Resource,
    /// Whether the threshold is a hard one: then forking is stopped at once and what can be done
    /// on the caller's thread is done there.
    pub hard: bool,
    /// How many bytes the pod may grow by in its grace period, if there is a bound. Counts for hard memory
    /// thresholds only.
    pub kill_on_growth: Option<u64>,
}

impl KillTarget {
    /// How many bytes the pod may grow by between SIGTERM and SIGKILL, if there is a bound.
    pub(super) fn growth_limit(&self) -> Option<u64> {
        self.kill_on_growth.filter(|_| self.hard && self.resource == Resource::Memory)
    }

    /// Whether forking is stopped with the first signal already, at the price that handlers of
    /// SIGTERM cannot fork.
    pub fn stops_forks(&self) -> bool {
        self.hard || self.resource == Resource::Pids
    }
}

/// A pod's processes and how far their end has come.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) decision: u64,
    pod: Arc<PodName>,
    victim: PodProcesses,
    phase: Phase,
    stops_forks: bool,
    /// How many bytes the pod may grow by in its grace period, if there is a bound.
    growth_limit: Option<u64>,
    /// Watched in the grace period, where there is a bound.
    growth: Option<Growth>,
    kill_wait_ns: u64,
    pause_ns: u64,
    due_ns: u64,
    watched: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A dry run: say who would be signalled.
    List,
    /// SIGTERM is due.
    Term { grace_ns: u64 },
    /// SIGTERM was sent.
    Grace { kill_at_ns: u64 },
    /// SIGKILL was sent.
    Kill { until_ns: u64 },
    /// Nothing is left to do.
    Over,
}

impl Job {
    /// A job that is to be begun with [`Job::send_first_signals`] or, later, with [`Job::step`].
    pub(super) fn new(
        target: &KillTarget,
        groups: Vec<PinnedCgroup>,
        kill_wait: Duration,
        is_dry: bool,
        log: Arc<UndoLog>,
    ) -> Self {
        let grace_ns = nanos(target.grace);
        Self {
            decision: target.decision,
            pod: Arc::clone(&target.pod),
            victim: PodProcesses::new(groups, log),
            phase: match is_dry {
                true => Phase::List,
                false => Phase::Term { grace_ns },
            },
            stops_forks: target.stops_forks(),
            growth_limit: target.growth_limit(),
            growth: None,
            kill_wait_ns: nanos(kill_wait),
            pause_ns: FIRST_PAUSE_NS,
            due_ns: 0,
            watched: Vec::new(),
        }
    }

    pub(super) fn groups(&self) -> &[PinnedCgroup] {
        self.victim.groups()
    }

    /// What happened since the last call.
    pub(super) fn take_updates(&mut self) -> impl Iterator<Item = KillUpdate> + use<> {
        let (decision, pod) = (self.decision, Arc::clone(&self.pod));
        let updates = self.victim.take_updates().into_iter();
        updates.map(move |(at_ns, progress)| KillUpdate { decision, pod: Arc::clone(&pod), at_ns, progress })
    }

    /// Killed since the last call: their memory can be given back.
    pub(super) fn take_killed(&mut self) -> Vec<u32> {
        self.victim.take_fresh()
    }

    /// When to look again, even if no watched process ends.
    pub(super) fn due_ns(&self) -> u64 {
        self.growth.as_ref().map_or(self.due_ns, |growth| growth.due_ns().min(self.due_ns))
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
    pub(super) fn send_first_signals(&mut self, processes: &mut CgroupProcesses) {
        match self.phase {
            Phase::Term { grace_ns: 0 } => self.kill(None, processes),
            Phase::Term { grace_ns } => self.terminate(grace_ns, processes),
            Phase::List | Phase::Grace { .. } | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = now_ns();
    }

    /// Does what is due.
    pub(super) fn step(&mut self, processes: &mut CgroupProcesses) {
        let now_ns = now_ns();
        match self.exceeded_growth(processes) {
            Some(grown) => self.kill(Some(grown), processes),
            None if now_ns < self.due_ns => return,
            None if self.is_finished(processes) => return,
            None => {}
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
        self.watched = processes.watch(WATCHED);
    }

    /// Does what the phase asks for now; whether nothing is left to do after it.
    fn is_finished(&mut self, processes: &mut CgroupProcesses) -> bool {
        let now_ns = now_ns();
        if matches!(self.phase, Phase::Grace { .. } | Phase::Kill { .. }) && self.is_gone(processes) {
            return true;
        }
        match self.phase {
            Phase::List => self.list(processes),
            Phase::Term { .. } => self.send_first_signals(processes),
            Phase::Grace { kill_at_ns } if now_ns >= kill_at_ns => self.kill(None, processes),
            Phase::Kill { until_ns } if now_ns >= until_ns => self.give_up(processes),
            Phase::Kill { .. } => self.victim.kill_again(processes),
            Phase::Grace { .. } | Phase::Over => {}
        }
        self.is_over()
    }

    /// The node got worse: stop forking now, and wait no longer than this.
    pub(super) fn shorten(
        &mut self,
        grace: Duration,
        growth_limit: Option<u64>,
        processes: &mut CgroupProcesses,
    ) {
        let grace_ns = nanos(grace);
        self.stops_forks = true;
        self.growth_limit = growth_limit;
        match &mut self.phase {
            Phase::Term { grace_ns: granted } => *granted = grace_ns.min(*granted),
            Phase::Grace { kill_at_ns } => {
                *kill_at_ns = now_ns().saturating_add(grace_ns).min(*kill_at_ns);
                self.victim.stop_forks();
                self.watch_growth(processes);
            }
            Phase::List | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = now_ns();
    }

    /// Lets everything go on as it is.
    pub(super) fn abandon(&mut self) {
        if self.phase != Phase::Over {
            self.end(KillProgress::Abandoned);
        }
    }

    fn end(&mut self, progress: KillProgress) {
        self.phase = Phase::Over;
        self.growth = None;
        self.watched.clear();
        self.victim.let_go();
        self.victim.report(progress);
    }

    fn list(&mut self, processes: &mut CgroupProcesses) {
        let (pids, unreachable) = self.victim.everybody(processes);
        self.end(KillProgress::WouldSignal { pids, unreachable });
    }

    fn terminate(&mut self, grace_ns: u64, processes: &mut CgroupProcesses) {
        let sum = self.victim.terminate(self.stops_forks, processes);
        self.phase = Phase::Grace { kill_at_ns: now_ns().saturating_add(grace_ns) };
        self.victim.report(KillProgress::TermSent(sum));
        self.watch_growth(processes);
    }

    /// From now on the pod's growth is watched, if there is a bound.
    fn watch_growth(&mut self, processes: &mut CgroupProcesses) {
        let Some(limit) = self.growth_limit else { return };
        match Growth::since_now(self.victim.groups(), limit, processes) {
            Ok(growth) => self.growth = Some(growth),
            Err(unknown) => self.victim.report(KillProgress::Error { what: unknown.to_string() }),
        }
    }

    /// By how many bytes the pod has grown, if that is more than it may. What cannot be read is told, and
    /// watched no more.
    fn exceeded_growth(&mut self, processes: &mut CgroupProcesses) -> Option<u64> {
        let growth = self.growth.as_mut().filter(|growth| growth.due_ns() <= now_ns())?;
        growth.exceeded(processes, now_ns).unwrap_or_else(|unknown| {
            self.growth = None;
            self.victim.report(KillProgress::Error { what: unknown.to_string() });
            None
        })
    }

    /// SIGKILL, also because the pod has grown by so many bytes in its grace period.
    fn kill(&mut self, grown: Option<u64>, processes: &mut CgroupProcesses) {
        self.growth = None;
        self.stops_forks = true;
        self.phase = Phase::Kill { until_ns: now_ns().saturating_add(self.kill_wait_ns) };
        self.pause_ns = FIRST_PAUSE_NS;
        let signalled = self.victim.kill(processes);
        self.victim.report(KillProgress::KillSent { signalled, grown });
    }

    /// Whether nobody is left; if so, the job is over.
    fn is_gone(&mut self, processes: &mut CgroupProcesses) -> bool {
        let is_gone = self.victim.is_gone(processes);
        if is_gone {
            let (killed, unreaped) = (self.victim.killed(), self.victim.unreaped());
            self.end(KillProgress::Terminated { killed, unreaped });
        }
        is_gone
    }

    fn give_up(&mut self, processes: &mut CgroupProcesses) {
        let left = self.victim.left(processes);
        self.end(left);
    }
}
