//! What the control loop uses to end the processes of pods.
#![forbid(unsafe_code)]

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;

use super::cgroup_procs::CgroupProcesses;
use super::cgroup_scope::{CgroupDirs, CgroupScope, OutOfScope, PinnedCgroup};
use super::job::{Job, KillTarget};
use super::kill_worker::{Command, KillWorker};
use super::mrelease::{MreleaseResult, MreleaseWorker};
use super::node_lock::{LockError, NodeLock};
use super::scoped_write::{ScopedWrite, UndoLog};
use eviction_core::error::chain;
use eviction_core::progress::{KillRejection, KillUpdate};

/// The name of a log of what is to undo, up to the id of the node's root cgroup.
pub const UNDO_LOG: &str = "holds-";

/// What a killer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// Reports what it would do.
    DryRun,
    /// Ends processes.
    Kill,
}

/// How a killer is set up.
#[derive(Clone, Debug)]
pub struct KillerConfig {
    /// What it may do.
    pub mode: KillMode,
    /// The node's root cgroup in each hierarchy: nothing outside it is ever touched.
    pub roots: CgroupDirs,
    /// How long processes may take to end after SIGKILL before they are reported as left.
    pub kill_wait: Duration,
    /// A folder for what the next agent must know if this one is killed. It should outlive the
    /// agent's container; where it cannot be written, a warning is logged.
    pub run_dir: PathBuf,
}

impl KillerConfig {
    /// The usual settings.
    pub fn new(mode: KillMode, roots: CgroupDirs) -> Self {
        Self { mode, roots, kill_wait: Duration::from_secs(30), run_dir: "/run/eviction-agent".into() }
    }
}

/// Why there is no killer.
#[derive(Debug, Error)]
pub enum StartError {
    /// The node's root has no directory.
    #[error("the node has no cgroup")]
    NoRoot,
    /// A directory of the node's root cannot be opened.
    #[error("{0}")]
    Root(String),
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

/// The first signals to more processes than this are sent by the thread that does the rest as well:
/// each takes some microseconds, and the control loop has other things to do.
const AT_ONCE: usize = 256;

/// A frozen pod. Its processes run again when this is dropped, and when an agent starts after one that was killed.
#[derive(Debug)]
pub struct FrozenPod {
    _holds: Vec<ScopedWrite>,
}

/// Ends the processes of pods. Belongs to one thread; its work on that thread is short.
#[derive(Debug)]
pub struct Killer {
    mode: KillMode,
    kill_wait: Duration,
    scope: CgroupScope,
    log: Arc<UndoLog>,
    processes: CgroupProcesses,
    worker: KillWorker,
    _lock: Option<NodeLock>,
}

impl Killer {
    /// Sets up a killer. [`KillMode::Kill`] takes the node's lock and undoes what an agent that was killed
    /// has left stopped. Updates go to `updates`, in order for each decision; a dropped receiver stops
    /// nothing.
    ///
    /// `on_mrelease` is called, on threads of the killer, with what came of the memory of each process that
    /// was killed.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(
        config: KillerConfig,
        updates: mpsc::Sender<KillUpdate>,
        on_mrelease: impl Fn(MreleaseResult) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let KillerConfig { mode, roots, kill_wait, run_dir } = config;
        let root = roots.deciding().ok_or(StartError::NoRoot)?;
        let scope = CgroupScope::open(&roots).map_err(|error| StartError::Root(chain(&error)))?;
        let (lock, log) = match mode {
            KillMode::DryRun => (None, UndoLog::default()),
            KillMode::Kill => {
                let lock = NodeLock::acquire(root)?;
                let log = run_dir.join(format!("{UNDO_LOG}{}", lock.id()));
                (Some(lock), open_log(&log))
            }
        };
        let mrelease = MreleaseWorker::start(Arc::new(on_mrelease)).map_err(StartError::Thread)?;
        Ok(Self {
            mode,
            kill_wait,
            scope,
            log: Arc::new(log),
            processes: CgroupProcesses::new(),
            worker: KillWorker::start(updates, mrelease).map_err(StartError::Thread)?,
            _lock: lock,
        })
    }

    /// Begins to end the processes of a pod. For a hard threshold the first signals have been sent on
    /// return, unless they are many; everything else happens on a thread of its own. The caller sees to it
    /// that a pod is begun once.
    ///
    /// # Errors
    /// Why the pod cannot be killed.
    pub fn begin(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        // Each job has the log: nothing is stopped while there is none.
        if Arc::strong_count(&self.log) == 1 {
            self.log.clear();
        }
        let groups = self.pin(&target.groups)?;
        let is_dry = self.mode == KillMode::DryRun;
        let mut job = Job::new(target, groups, self.kill_wait, is_dry, Arc::clone(&self.log));
        let processes = self.count(job.groups())?;
        if target.hard && !is_dry && processes <= AT_ONCE {
            job.send_first_signals(&mut self.processes);
        }
        self.send(Command::Begin(Box::new(job)))
    }

    /// Shortens the grace period of the decision's pod, which was begun before, for a hard threshold.
    ///
    /// # Errors
    /// If the thread that finishes kills has ended.
    pub fn shorten(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        let KillTarget { decision, grace, .. } = *target;
        self.send(Command::Shorten { decision, grace, growth_limit: target.growth_limit() })
    }

    /// Whether a pod could be killed now; nothing is done.
    ///
    /// # Errors
    /// Why it could not.
    pub fn check(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        let groups = self.pin(&target.groups)?;
        self.count(&groups).map(drop)
    }

    /// Freezes a pod's groups, and returns before all of their tasks have stopped. Nothing for a dry run, in which it
    /// is only checked whether they may be frozen.
    ///
    /// # Errors
    /// Why the pod cannot be frozen; no part of it is frozen then.
    pub fn freeze(&mut self, groups: &[CgroupDirs]) -> Result<Option<FrozenPod>, KillRejection> {
        let groups = self.pin(groups)?;
        match self.count(&groups) {
            // No signal is sent, so that it does not matter in which PID namespace the processes are.
            Ok(_) | Err(KillRejection::Unreachable { .. }) => {}
            Err(rejection) => return Err(rejection),
        }
        let broken = |what: String| KillRejection::Broken { what };
        let mut holds = Vec::with_capacity(groups.len());
        for group in &groups {
            let (dir, path) =
                group.freezer.as_ref().ok_or_else(|| broken("the pod has no freezer".into()))?;
            if self.mode == KillMode::DryRun {
                continue;
            }
            match ScopedWrite::freeze(dir.as_fd(), path, &self.log) {
                Ok(hold) => holds.extend(hold),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(broken(chain(&error))),
            }
        }
        Ok((self.mode == KillMode::Kill).then_some(FrozenPod { _holds: holds }))
    }

    fn send(&self, command: Command) -> Result<(), KillRejection> {
        let what = || "the thread that finishes kills has ended".to_owned();
        self.worker.send(command).then_some(()).ok_or_else(|| KillRejection::Broken { what: what() })
    }

    /// Opens the pod's groups; those that are gone are left out.
    fn pin(&self, dirs: &[CgroupDirs]) -> Result<Vec<PinnedCgroup>, KillRejection> {
        let mut groups = Vec::with_capacity(dirs.len());
        for dirs in dirs {
            match self.scope.pin(dirs) {
                Ok(group) => groups.push(group),
                Err(OutOfScope::Gone) => {}
                Err(error) => return Err(KillRejection::NotAPod { what: chain(&error) }),
            }
        }
        match groups.is_empty() {
            true => Err(KillRejection::Empty),
            false => Ok(groups),
        }
    }

    /// How many processes of the groups may be killed.
    fn count(&mut self, groups: &[PinnedCgroup]) -> Result<usize, KillRejection> {
        let mut processes = 0;
        let mut unreachable = 0;
        let mut can_kill_unseen = false;
        for group in groups {
            self.processes.scan(group.deciding.as_fd());
            if let Some(pid) = self.processes.protected() {
                let path = group.path.display();
                let what = match pid {
                    1 => format!("cgroup {path} holds process 1"),
                    pid => format!("cgroup {path} holds the agent itself, pid {pid}"),
                };
                return Err(KillRejection::NotAPod { what });
            }
            processes += self.processes.pids().len();
            unreachable += self.processes.unreachable;
            can_kill_unseen |= group.is_unified;
        }
        match (processes, unreachable) {
            (0, 0) => Err(KillRejection::Empty),
            (0, processes) if !can_kill_unseen => Err(KillRejection::Unreachable { processes }),
            _ => Ok(processes),
        }
    }
}

/// Undoes what the log at `path` says that a killed agent has left stopped. Returns the number of control files that were
/// written back. Only for whoever has the node's lock.
///
/// # Errors
/// If the log cannot be read, or something is left to undo: then the log stays.
pub fn undo(path: &std::path::Path) -> std::io::Result<u32> {
    let (log, released) = UndoLog::open(path)?;
    if log.keeps() {
        return Err(std::io::Error::other("what it lists cannot all be undone"));
    }
    Ok(released)
}

fn open_log(path: &std::path::Path) -> UndoLog {
    match UndoLog::open(path) {
        Ok((log, 0)) => log,
        Ok((log, groups)) => {
            tracing::info!(groups, "undone what a killed agent had stopped");
            log
        }
        Err(error) => {
            let file = path.display();
            tracing::warn!(%file, %error, "cannot write down what is stopped; killed at a bad moment, the agent would leave pods stopped");
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
    fn begin(lists: &[(&str, &str)], groups: &[&str]) -> (Result<(), KillRejection>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("node");
        for (group, text) in lists {
            std::fs::create_dir_all(root.join(group)).unwrap();
            std::fs::write(root.join(group).join("cgroup.procs"), text).unwrap();
        }
        let dirs = |path: &Path| CgroupDirs { memory: Some(path.to_owned()), ..CgroupDirs::default() };
        let mut config = KillerConfig::new(KillMode::Kill, dirs(&root));
        config.run_dir = folder.path().join("run");
        let (sender, _updates) = mpsc::channel(8);
        let mut executor = Killer::new(config, sender, |_| {}).unwrap();
        let pod = PodName { uid: "uid".into(), namespace: "default".into(), name: "pod".into() };
        let target = KillTarget {
            decision: 1,
            at_ns: 0,
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
