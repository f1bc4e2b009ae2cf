//! The hand that the loop moves.
#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;

use super::cgroup_procs::CgroupProcesses;
use super::cgroup_scope::{CgroupScope, OpenError, OutOfScope, PinnedCgroup};
use super::clock::now_ns;
use super::job::Job;
use super::kill_context::KillContext;
use super::kill_worker::{Command, KillWorker};
use super::mrelease::{MreleaseResult, MreleaseWorker};
use super::node_lock::{LockError, NodeLock};
use super::rate_limit::{Admission, CountedKill, RateLimit, RateLimitPolicy, TerminatingPod};
use super::scoped_write::UndoLog;
use super::target::{CgroupDirs, KillTarget};
use eviction_core::progress::{KillRejection, KillUpdate};

/// What an executor may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// Says what it would do.
    DryRun,
    /// Ends processes.
    Kill,
}

/// How an executor is set up.
#[derive(Clone, Debug)]
pub struct KillerConfig {
    /// What it may do.
    pub hand: KillMode,
    /// The node's root cgroup in each hierarchy: nothing outside it is ever touched.
    pub roots: CgroupDirs,
    /// How fast pods may be killed.
    pub pacing: RateLimitPolicy,
    /// How long processes may take to end after SIGKILL before they are reported as left. After
    /// that the next victim need not wait for them.
    pub kill_wait: Duration,
    /// A folder for what the next agent must know if this one is killed. It should outlive the
    /// agent's container; where it cannot be written, a warning is logged.
    pub run_dir: PathBuf,
}

impl KillerConfig {
    /// The usual settings.
    pub fn new(hand: KillMode, roots: CgroupDirs) -> Self {
        Self {
            hand,
            roots,
            pacing: RateLimitPolicy::default(),
            kill_wait: Duration::from_secs(30),
            run_dir: "/run/eviction-agent".into(),
        }
    }
}

/// Why there is no executor.
#[derive(Debug, Error)]
pub enum StartError {
    /// The node's root has no directory.
    #[error("the node has no cgroup")]
    NoRoot,
    /// A directory of the node's root cannot be opened.
    #[error(transparent)]
    Root(#[from] OpenError),
    /// Another agent acts on this node, or that cannot be found out.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// No thread.
    #[error("start the thread that finishes kills")]
    Thread(#[source] std::io::Error),
}

impl StartError {
    /// What can be done about it.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Lock(error) => error.help(),
            Self::NoRoot | Self::Root(_) | Self::Thread(_) => None,
        }
    }
}

/// What became of a decision at once. The rest comes as [`KillUpdate`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillStarted {
    /// The pod is on its way out.
    Started,
    /// It was before, for a soft threshold; now it goes faster. Outcomes keep that decision's
    /// number.
    Hurried {
        /// The decision that it goes by.
        decision: u64,
    },
}

/// The first signals to more processes than this are sent by the thread that does the rest as well:
/// each takes some microseconds, and whoever decides has other things to look at.
const AT_ONCE: usize = 256;

/// Carries out decisions. Belongs to one thread; its work on that thread is short.
#[derive(Debug)]
pub struct Killer {
    hand: KillMode,
    kill_wait: Duration,
    boundary: CgroupScope,
    pacing: RateLimit,
    log: Arc<UndoLog>,
    members: CgroupProcesses,
    worker: KillWorker,
    _lock: Option<NodeLock>,
}

impl Killer {
    /// Sets up the hand. [`KillMode::Kill`] takes the node's lock and lets go on what an agent that
    /// was killed has stopped. Outcomes go to `outcomes`, in order for each decision; a dropped
    /// receiver stops nothing.
    ///
    /// `reaped` is told, on threads of the hand, what came of the memory of each process that was
    /// killed.
    pub fn new(
        config: KillerConfig,
        outcomes: mpsc::Sender<KillUpdate>,
        reaped: impl Fn(MreleaseResult) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let KillerConfig { hand, roots, pacing, kill_wait, run_dir } = config;
        let root = roots.deciding().ok_or(StartError::NoRoot)?;
        let boundary = CgroupScope::open(&roots)?;
        let (lock, log) = match hand {
            KillMode::DryRun => (None, UndoLog::default()),
            KillMode::Kill => {
                let lock = NodeLock::acquire(root)?;
                let log = run_dir.join(format!("holds-{}", lock.id()));
                (Some(lock), open_log(&log))
            }
        };
        let reaper = MreleaseWorker::start(Arc::new(reaped)).map_err(StartError::Thread)?;
        Ok(Self {
            hand,
            kill_wait,
            boundary,
            pacing: RateLimit::new(pacing),
            log: Arc::new(log),
            members: CgroupProcesses::new(),
            worker: KillWorker::start(outcomes, reaper).map_err(StartError::Thread)?,
            _lock: lock,
        })
    }

    /// Begins to carry out a decision, or refuses to. For a hard threshold the first signals have
    /// been sent on return, unless they are many; everything else happens on a thread of its own.
    pub fn begin(&mut self, target: &KillTarget) -> Result<KillStarted, KillRejection> {
        let now_ns = now_ns();
        self.note_ended();
        match self.pacing.admit(target, now_ns)? {
            Admission::Begin => {}
            Admission::Hurry { decision } => {
                let (grace, growth_limit) = (target.grace, target.growth_limit());
                if !self.worker.send(Command::Hurry { decision, grace, growth_limit }) {
                    return Err(broken());
                }
                self.pacing.hurried(decision, now_ns);
                return Ok(KillStarted::Hurried { decision });
            }
        }
        let groups = self.pin(target)?;
        let is_dry = self.hand == KillMode::DryRun;
        let log = Arc::clone(&self.log);
        let mut job = Job::new(target, groups, self.kill_wait, is_dry, log);
        let processes = self.check(job.groups())?;
        let mut outcomes = Vec::new();
        if target.hard && !is_dry && processes <= AT_ONCE {
            let mut told = Vec::new();
            job.strike(&mut KillContext {
                members: &mut self.members,
                report: &mut |progress| told.push((super::clock::now_ns(), progress)),
                now_ns,
            });
            outcomes.extend(told.into_iter().map(|(at_ns, progress)| KillUpdate {
                decision: target.decision,
                pod: Arc::clone(&target.pod),
                at_ns,
                progress,
            }));
        }
        if !self.worker.send(Command::Take(Box::new(job), outcomes)) {
            return Err(broken());
        }
        self.pacing.begun(target, now_ns);
        Ok(KillStarted::Started)
    }

    /// Whether a decision would be begun now, if it were made; nothing is done.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn would_begin(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        self.note_ended();
        if let Admission::Hurry { decision } = self.pacing.admit(target, now_ns())? {
            return Err(KillRejection::AlreadyTerminating { decision });
        }
        let groups = self.pin(target)?;
        self.check(&groups).map(drop)
    }

    /// Pods on their way out.
    pub fn in_flight(&mut self) -> &[TerminatingPod] {
        self.note_ended();
        self.pacing.in_flight()
    }

    /// The kills that count against the limits of the pace.
    pub fn kills(&mut self) -> impl Iterator<Item = &CountedKill> {
        self.note_ended();
        self.pacing.kills()
    }

    /// Follows another policy of the pace from now on.
    pub fn follow(&mut self, pacing: RateLimitPolicy) {
        self.pacing.follow(pacing);
    }

    /// Goes on with the pace of an agent before this one. Before all else.
    pub fn recall(&mut self, kills: Vec<CountedKill>) {
        self.pacing.recall(kills);
    }

    fn note_ended(&mut self) {
        while let Some((decision, at_ns)) = self.worker.next_ended() {
            self.pacing.ended(decision, at_ns);
        }
        if self.pacing.in_flight().is_empty() {
            self.log.clear();
        }
    }

    /// Opens the pod's groups; those that are gone are left out.
    fn pin(&self, target: &KillTarget) -> Result<Vec<PinnedCgroup>, KillRejection> {
        let mut groups = Vec::with_capacity(target.groups.len());
        for dirs in &target.groups {
            match self.boundary.pin(dirs) {
                Ok(group) => groups.push(group),
                Err(OutOfScope::Gone) => {}
                Err(error) => {
                    return Err(KillRejection::NotAPod { what: eviction_core::error::chain(&error) });
                }
            }
        }
        match groups.is_empty() {
            true => Err(KillRejection::Empty),
            false => Ok(groups),
        }
    }

    /// Looks at who is in the groups before anything is done to them.
    /// Whether somebody is there who may be killed, and how many are.
    fn check(&mut self, groups: &[PinnedCgroup]) -> Result<usize, KillRejection> {
        let mut processes = 0;
        let mut unreachable = 0;
        let mut can_kill_unseen = false;
        for group in groups {
            self.members.scan(group.deciding.as_fd());
            if let Some(pid) = self.members.protected() {
                let path = group.path.display();
                let what = match pid {
                    1 => format!("cgroup {path} holds process 1"),
                    pid => format!("cgroup {path} holds the agent itself, pid {pid}"),
                };
                return Err(KillRejection::NotAPod { what });
            }
            processes += self.members.pids().len();
            unreachable += self.members.unreachable;
            can_kill_unseen |= group.is_unified;
        }
        match (processes, unreachable) {
            (0, 0) => Err(KillRejection::Empty),
            (0, processes) if !can_kill_unseen => Err(KillRejection::Unreachable { processes }),
            _ => Ok(processes),
        }
    }
}

fn broken() -> KillRejection {
    KillRejection::Broken { what: "the thread that finishes kills has ended".to_owned() }
}

fn open_log(path: &std::path::Path) -> UndoLog {
    match UndoLog::open(path) {
        Ok((log, recovered)) => {
            if recovered.released > 0 {
                let groups = recovered.released;
                tracing::info!(groups, "let go on what a killed agent had stopped");
            }
            log
        }
        Err(error) => {
            let file = path.display();
            tracing::warn!(%file, %error, "cannot note what is held; killed at a bad moment, the agent would leave pods stopped");
            UndoLog::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use eviction_core::pod::PodName;
    use eviction_core::signal::Resource;

    /// A plain folder passes for a node; what its lists say is as true as the test wants it.
    fn begin(
        lists: &[(&str, &str)],
        groups: &[&str],
    ) -> (Result<KillStarted, KillRejection>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("node");
        for (group, text) in lists {
            std::fs::create_dir_all(root.join(group)).unwrap();
            std::fs::write(root.join(group).join("cgroup.procs"), text).unwrap();
        }
        let dirs = |path: &Path| CgroupDirs { memory: Some(path.to_owned()), ..CgroupDirs::default() };
        let mut config = KillerConfig::new(KillMode::Kill, dirs(&root));
        config.run_dir = folder.path().join("run");
        let (sender, _outcomes) = mpsc::channel(8);
        let mut executor = Killer::new(config, sender, |_| {}).unwrap();
        let pod = PodName { uid: "uid".into(), namespace: "default".into(), name: "pod".into() };
        let target = KillTarget {
            decision: 1,
            at_ns: now_ns(),
            pod: Arc::new(pod),
            groups: groups.iter().map(|group| dirs(&root.join(group))).collect(),
            grace: Duration::ZERO,
            resource: Resource::Memory,
            hard: true,
            kill_on_growth: None,
        };
        (executor.begin(&target), folder)
    }

    #[test]
    fn never_a_group_that_holds_the_agent_or_the_first_process() {
        let own = format!("{}\n", std::process::id());
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let innocent = format!("{}\n", sleeper.id());
        for (listed, said) in [(own.as_str(), "holds the agent itself, pid "), ("1\n", "holds process 1")] {
            // In the pod's group, below it, and in a second group of the pod.
            for (lists, groups) in [
                (vec![("pod", listed)], vec!["pod"]),
                (vec![("pod", innocent.as_str()), ("pod/a/b", listed)], vec!["pod"]),
                (vec![("pod", innocent.as_str()), ("other", listed)], vec!["pod", "other"]),
            ] {
                let (result, _folder) = begin(&lists, &groups);
                let refused = result.unwrap_err();
                assert!(matches!(refused, KillRejection::NotAPod { .. }), "{refused:?}");
                assert!(refused.to_string().contains(said), "{refused}");
            }
        }
        // Nobody else in it was signalled either.
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn processes_of_another_pid_namespace_are_said_to_be_unreachable() {
        let (result, _folder) = begin(&[("pod", "0\n0\n"), ("pod/a", "0\n")], &["pod"]);
        let refused = result.unwrap_err();
        assert_eq!(refused, KillRejection::Unreachable { processes: 3 });
        assert!(refused.help().unwrap().contains("hostPID"));
    }

    #[test]
    fn groups_that_are_gone_are_left_out() {
        assert_eq!(begin(&[("pod", "")], &["pod", "gone"]).0, Err(KillRejection::Empty));
        assert_eq!(begin(&[("pod", "")], &["gone"]).0, Err(KillRejection::Empty));
        assert_eq!(begin(&[("pod", "")], &[]).0, Err(KillRejection::Empty));
    }
}
