//! One pod on its way out: SIGTERM, the grace period, SIGKILL, and looking until nobody is left.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::cgroup_scope::PinnedCgroup;
use super::clock::now_ns;
use super::growth::Growth;
use super::kill_context::KillContext;
use super::pod_processes::PodProcesses;
use super::scoped_write::UndoLog;
use super::target::KillTarget;
use eviction_core::pod::PodName;
use eviction_core::progress::KillProgress;
use eviction_core::time::nanos;

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

impl Job {
    /// A job that is to be begun with [`Job::strike`] or, later, with [`Job::step`].
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
                true => Phase::Look,
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
    pub(super) fn strike(&mut self, context: &mut KillContext<'_>) {
        match self.phase {
            Phase::Term { grace_ns: 0 } => self.kill(None, context),
            Phase::Term { grace_ns } => self.terminate(grace_ns, context),
            Phase::Look | Phase::Grace { .. } | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = context.now_ns;
    }

    /// Does what is due.
    pub(super) fn step(&mut self, context: &mut KillContext<'_>) {
        let now_ns = context.now_ns;
        match self.exceeded_growth(context) {
            Some(grown) => self.kill(Some(grown), context),
            None if now_ns < self.due_ns => return,
            None if self.is_finished(context) => return,
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
        self.watched = context.members.watch(WATCHED);
    }

    /// Does what the phase asks for now; whether nothing is left to do after it.
    fn is_finished(&mut self, context: &mut KillContext<'_>) -> bool {
        let now_ns = context.now_ns;
        if matches!(self.phase, Phase::Grace { .. } | Phase::Kill { .. }) && self.is_gone(context) {
            return true;
        }
        match self.phase {
            Phase::Look => self.look(context),
            Phase::Term { .. } => self.strike(context),
            Phase::Grace { kill_at_ns } if now_ns >= kill_at_ns => self.kill(None, context),
            Phase::Kill { until_ns } if now_ns >= until_ns => self.give_up(context),
            Phase::Kill { .. } => self.victim.kill_again(context),
            Phase::Grace { .. } | Phase::Over => {}
        }
        self.is_over()
    }

    /// The node got worse: stop forking now, and wait no longer than this.
    pub(super) fn hurry(
        &mut self,
        grace: Duration,
        growth_limit: Option<u64>,
        context: &mut KillContext<'_>,
    ) {
        let grace_ns = nanos(grace);
        self.stops_forks = true;
        self.growth_limit = growth_limit;
        match &mut self.phase {
            Phase::Term { grace_ns: granted } => *granted = grace_ns.min(*granted),
            Phase::Grace { kill_at_ns } => {
                *kill_at_ns = context.now_ns.saturating_add(grace_ns).min(*kill_at_ns);
                self.victim.stop_forks(context);
                self.watch_growth(context);
            }
            Phase::Look | Phase::Kill { .. } | Phase::Over => {}
        }
        self.due_ns = context.now_ns;
    }

    /// Lets everything go on as it is.
    pub(super) fn abandon(&mut self, context: &mut KillContext<'_>) {
        if self.phase != Phase::Over {
            self.end(KillProgress::Abandoned, context);
        }
    }

    fn end(&mut self, progress: KillProgress, context: &mut KillContext<'_>) {
        self.phase = Phase::Over;
        self.growth = None;
        self.watched.clear();
        self.victim.let_go();
        (context.report)(progress);
    }

    fn look(&mut self, context: &mut KillContext<'_>) {
        let (pids, unreachable) = self.victim.everybody(context);
        self.end(KillProgress::WouldSignal { pids, unreachable }, context);
    }

    fn terminate(&mut self, grace_ns: u64, context: &mut KillContext<'_>) {
        let sum = self.victim.terminate(self.stops_forks, context);
        self.phase = Phase::Grace { kill_at_ns: context.now_ns.saturating_add(grace_ns) };
        (context.report)(KillProgress::TermSent(sum));
        self.watch_growth(context);
    }

    /// From now on the pod's growth is watched, if there is a bound.
    fn watch_growth(&mut self, context: &mut KillContext<'_>) {
        let Some(limit) = self.growth_limit else { return };
        match Growth::since_now(self.victim.groups(), limit, context.members) {
            Ok(growth) => self.growth = Some(growth),
            Err(unknown) => (context.report)(KillProgress::Trouble { what: unknown.to_string() }),
        }
    }

    /// By how many bytes the pod has grown, if that is more than it may. What cannot be read is told, and
    /// watched no more.
    fn exceeded_growth(&mut self, context: &mut KillContext<'_>) -> Option<u64> {
        let growth = self.growth.as_mut().filter(|growth| growth.due_ns() <= context.now_ns)?;
        growth.exceeded(context.members, now_ns).unwrap_or_else(|unknown| {
            self.growth = None;
            (context.report)(KillProgress::Trouble { what: unknown.to_string() });
            None
        })
    }

    /// SIGKILL, also because the pod has grown by so many bytes in its grace period.
    fn kill(&mut self, grown: Option<u64>, context: &mut KillContext<'_>) {
        self.growth = None;
        self.stops_forks = true;
        self.phase = Phase::Kill { until_ns: context.now_ns.saturating_add(self.kill_wait_ns) };
        self.pause_ns = FIRST_PAUSE_NS;
        let signalled = self.victim.kill(context);
        (context.report)(KillProgress::KillSent { signalled, grown });
    }

    /// Whether nobody is left; if so, the job is over.
    fn is_gone(&mut self, context: &mut KillContext<'_>) -> bool {
        let is_gone = self.victim.is_gone(context);
        if is_gone {
            let (killed, unreaped) = (self.victim.killed(), self.victim.unreaped());
            self.end(KillProgress::Gone { killed, unreaped }, context);
        }
        is_gone
    }

    fn give_up(&mut self, context: &mut KillContext<'_>) {
        let left = self.victim.left(context);
        self.end(left, context);
    }
}
