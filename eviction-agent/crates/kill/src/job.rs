//! Terminates the processes of one pod: SIGTERM, the grace period, SIGKILL, and checks until no process is
//! left.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::cgroup::{CgroupDirs, PinnedCgroup};
use super::cgroup_procs::CgroupProcesses;
use super::growth::Growth;
use super::pod_processes::{PodProcesses, now_ns};
use super::scoped_write::UndoLog;
use eviction_core::pod::PodName;
use eviction_core::progress::{KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_core::time::nanos;

/// The pause between two checks while no process ends. It starts at `FIRST_PAUSE_NS` and is doubled each
/// time, up to the limit of the phase.
const FIRST_PAUSE_NS: u64 = 1_000_000;
const KILL_PAUSE_NS: u64 = 20_000_000;
const GRACE_PAUSE_NS: u64 = 250_000_000;

/// The maximum number of processes that are watched. When one of them ends, the others are checked again.
const WATCHED: usize = 16;

/// A pod whose processes are to be terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillTarget {
    /// The number of the decision; results contain it.
    pub decision: u64,
    /// The time of the decision: CLOCK_MONOTONIC in nanoseconds.
    pub at_ns: u64,
    /// The pod.
    pub pod: Arc<PodName>,
    /// The pod's cgroup, and cgroups of its containers that a runtime has created elsewhere.
    pub groups: Vec<CgroupDirs>,
    /// The time between SIGTERM and SIGKILL. With zero, no SIGTERM is sent.
    pub grace: Duration,
    /// The resource that the node is short of.
    pub resource: Resource,
    /// Whether the threshold is a hard one. Then forks are stopped at once, and the first signals are sent on
    /// the caller's thread if possible.
    pub hard: bool,
    /// The maximum growth of the pod in its grace period, in bytes, if it is limited. Applies to hard memory
    /// thresholds only.
    pub kill_on_growth: Option<u64>,
}

impl KillTarget {
    /// Returns the maximum growth of the pod between SIGTERM and SIGKILL, in bytes, if it is limited.
    pub(super) fn growth_limit(&self) -> Option<u64> {
        self.kill_on_growth.filter(|_| self.hard && self.resource == Resource::Memory)
    }
}

/// The termination of a pod's processes and its progress.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) decision: u64,
    pub(super) pod: Arc<PodName>,
    pub(super) victim: PodProcesses,
    phase: Phase,
    /// Whether forks are stopped with the first signal. The disadvantage is that handlers of SIGTERM cannot
    /// fork.
    stops_forks: bool,
    /// The maximum growth of the pod in its grace period, in bytes, if it is limited.
    growth_limit: Option<u64>,
    /// Measured in the grace period if growth is limited.
    growth: Option<Growth>,
    kill_wait_ns: u64,
    pause_ns: u64,
    due_ns: u64,
    /// The processes whose end triggers a check.
    pub(super) watched: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A dry run: lists the processes that would be signalled.
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
    /// Creates a job. Start it with [`Job::send_first_signals`] or, later, with [`Job::step`].
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
            stops_forks: target.hard || target.resource == Resource::Pids,
            growth_limit: target.growth_limit(),
            growth: None,
            kill_wait_ns: nanos(kill_wait),
            pause_ns: FIRST_PAUSE_NS,
            due_ns: 0,
            watched: Vec::new(),
        }
    }

    /// Returns the updates since the last call.
    pub(super) fn take_updates(&mut self) -> impl Iterator<Item = KillUpdate> + use<> {
        let decision = self.decision;
        let updates = std::mem::take(&mut self.victim.updates).into_iter();
        updates.map(move |(at_ns, progress)| KillUpdate { decision, at_ns, progress })
    }

    /// Returns the time of the next check, even if no watched process ends.
    pub(super) fn due_ns(&self) -> u64 {
        self.growth.as_ref().map_or(self.due_ns, |growth| growth.due_ns.min(self.due_ns))
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Schedules a check because a watched process has ended. A short delay limits the number of checks while
    /// many processes end.
    pub(super) fn wake(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.min(now_ns.saturating_add(FIRST_PAUSE_NS / 2));
        self.pause_ns = FIRST_PAUSE_NS;
        self.watched.clear();
    }

    /// Sends the first signals at once, on the calling thread.
    pub(super) fn send_first_signals(&mut self, processes: &mut CgroupProcesses) {
        match self.phase {
            Phase::Term { grace_ns: 0 } => self.kill(None, processes),
            Phase::Term { grace_ns } => self.terminate(grace_ns, processes),
            Phase::List | Phase::Grace { .. } | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = now_ns();
    }

    /// Checks the pod and sends the next signals if they are due.
    pub(super) fn step(&mut self, processes: &mut CgroupProcesses) {
        let now_ns = now_ns();
        match self.exceeded_growth(processes) {
            Some(grown) => self.kill(Some(grown), processes),
            None if now_ns < self.due_ns => return,
            None if self.is_finished(processes) => return,
            None => {}
        }
        let (latest_ns, max_pause_ns) = match self.phase {
            Phase::Grace { kill_at_ns } => (kill_at_ns, GRACE_PAUSE_NS),
            _ => (u64::MAX, KILL_PAUSE_NS),
        };
        self.due_ns = now_ns.saturating_add(self.pause_ns).min(latest_ns);
        self.pause_ns = self.pause_ns.saturating_mul(2).min(max_pause_ns);
        self.watched = processes.watch(WATCHED);
    }

    /// Performs the action that is due in this phase. Returns whether the job is over.
    fn is_finished(&mut self, processes: &mut CgroupProcesses) -> bool {
        let now_ns = now_ns();
        if matches!(self.phase, Phase::Grace { .. } | Phase::Kill { .. })
            && self.victim.is_terminated(processes)
        {
            let (killed, unreaped) = (self.victim.killed(), self.victim.unreaped());
            self.end(KillProgress::Terminated { killed, unreaped });
            return true;
        }
        match self.phase {
            Phase::List => {
                let (pids, unreachable) = self.victim.list_all(processes);
                self.end(KillProgress::WouldSignal { pids, unreachable });
            }
            Phase::Term { .. } => self.send_first_signals(processes),
            Phase::Grace { kill_at_ns } if now_ns >= kill_at_ns => self.kill(None, processes),
            Phase::Kill { until_ns } if now_ns >= until_ns => {
                let remaining = self.victim.remaining(processes);
                self.end(remaining);
            }
            Phase::Kill { .. } => self.victim.kill_remaining(processes),
            Phase::Grace { .. } | Phase::Over => {}
        }
        self.is_over()
    }

    /// Stops forks and shortens the grace period, because pressure on the node has increased.
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

    /// Ends the job and leaves the processes as they are.
    pub(super) fn abandon(&mut self) {
        if self.phase != Phase::Over {
            self.end(KillProgress::Abandoned);
        }
    }

    fn end(&mut self, progress: KillProgress) {
        self.phase = Phase::Over;
        self.growth = None;
        self.watched.clear();
        self.victim.allow_forks();
        self.victim.report(progress);
    }

    fn terminate(&mut self, grace_ns: u64, processes: &mut CgroupProcesses) {
        let sum = self.victim.terminate(self.stops_forks, processes);
        self.phase = Phase::Grace { kill_at_ns: now_ns().saturating_add(grace_ns) };
        self.victim.report(KillProgress::TermSent(sum));
        self.watch_growth(processes);
    }

    /// Starts to measure the pod's growth, if it is limited.
    fn watch_growth(&mut self, processes: &mut CgroupProcesses) {
        let Some(limit) = self.growth_limit else { return };
        match Growth::start(&self.victim.groups, limit, processes) {
            Ok(growth) => self.growth = Some(growth),
            Err(what) => self.victim.report(KillProgress::Error { what }),
        }
    }

    /// Returns the growth of the pod in bytes if it exceeds the limit. If it cannot be read, the error is
    /// reported and the measurement ends.
    fn exceeded_growth(&mut self, processes: &mut CgroupProcesses) -> Option<u64> {
        let growth = self.growth.as_mut().filter(|growth| growth.due_ns <= now_ns())?;
        growth.exceeded(processes, now_ns).unwrap_or_else(|what| {
            self.growth = None;
            self.victim.report(KillProgress::Error { what });
            None
        })
    }

    /// Sends SIGKILL. `grown` is the growth in bytes if that is the reason.
    fn kill(&mut self, grown: Option<u64>, processes: &mut CgroupProcesses) {
        self.growth = None;
        self.phase = Phase::Kill { until_ns: now_ns().saturating_add(self.kill_wait_ns) };
        self.pause_ns = FIRST_PAUSE_NS;
        let signalled = self.victim.kill(processes);
        self.victim.report(KillProgress::KillSent { signalled, grown });
    }
}
