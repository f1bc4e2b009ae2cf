//! A node with pods, and an executor on it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kill::{
    CgroupDirs, KillMode, KillTarget, Killer, KillerConfig, LockError, MreleaseResult, StartError,
};
use tempfile::TempDir;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::mounts::Hierarchy;
use tests::process::{HANG, wait_until};
use tests::workload::Workload;
use tokio::sync::mpsc;

const MIB: u64 = 1 << 20;

/// Long enough never to end in a test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) struct Fixture {
    pub(crate) subtree: Subtree,
    pub(crate) run_dir: TempDir,
}

impl Fixture {
    /// A node whose tasks and memory are bounded.
    pub(crate) fn new(label: &str) -> Self {
        let subtree = Subtree::new(&format!("kill-{label}")).unwrap();
        subtree.root().limit_memory(512 * MIB).unwrap();
        subtree.root().limit_pids(600).unwrap();
        Self { subtree, run_dir: tempfile::tempdir().unwrap() }
    }

    /// A pod's group, and that of its only container.
    pub(crate) fn pod(&self, n: u64) -> (Group, Group) {
        let pod = self.subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(n)).unwrap();
        let container = pod.group(container_id(n)).unwrap();
        (pod, container)
    }

    pub(crate) fn config(&self, mode: KillMode) -> KillerConfig {
        let mut config = KillerConfig::new(mode, dirs_of(self.subtree.root()));
        config.run_dir = self.run_dir.path().to_owned();
        config
    }

    /// One that acts. It waits for the node's lock: a child that another test has just forked holds what was locked
    /// here before, until it runs its program.
    pub(crate) fn killer(&self) -> Acting {
        let mut killer = None;
        wait_until("the lock of the node", || match self.try_killer(self.config(KillMode::Kill)) {
            Err(StartError::Lock(LockError::Held { .. })) => false,
            result => {
                killer = Some(result.unwrap());
                true
            }
        })
        .unwrap();
        killer.unwrap()
    }

    pub(crate) fn try_killer(&self, config: KillerConfig) -> Result<Acting, StartError> {
        let (sender, outcomes) = mpsc::channel(64);
        let (reported, reaped) = channel();
        let executor = Killer::new(config, sender, move |reaped| {
            let _ = reported.send(reaped);
        })?;
        Ok(Acting { executor, outcomes, reaped, decisions: 0 })
    }
}

/// The directories of a group, as the agent finds them.
pub(crate) fn dirs_of(group: &Group) -> CgroupDirs {
    let unified = group.dir(Hierarchy::Unified);
    let or_unified = |hierarchy| group.dir(hierarchy).or_else(|| unified.clone());
    CgroupDirs {
        id: None,
        memory: or_unified(Hierarchy::Memory),
        pids: or_unified(Hierarchy::Pids),
        freezer: or_unified(Hierarchy::Freezer),
        unified: unified.clone(),
    }
}

/// Whether the kernel kills whole groups where this node's processes are counted: version 2, from 5.14 on.
pub(crate) fn has_group_kill(fixture: &Fixture) -> bool {
    let dirs = dirs_of(fixture.subtree.root());
    dirs.memory == dirs.unified && dirs.memory.is_some_and(|dir| dir.join("cgroup.kill").exists())
}

/// Where a process of the group itself goes. Version 2 has processes in leaves only, once controllers are
/// handed down: then a leaf beside the groups below it stands for the group.
pub(crate) fn seat(group: &Group) -> Group {
    let control = group.dir(Hierarchy::Unified).map(|dir| dir.join("cgroup.subtree_control"));
    let hands_down = control.is_some_and(|file| !std::fs::read_to_string(file).unwrap().trim().is_empty());
    if hands_down { group.group("itself").unwrap() } else { group.clone() }
}

/// A target for a hard memory threshold without a grace period.
pub(crate) fn target(pod: &Group) -> KillTarget {
    let name = pod.path().file_name().and_then(OsStr::to_str).unwrap();
    KillTarget {
        decision: 0,
        at_ns: tests::clock::now(),
        pod: Arc::new(PodName { uid: name.into(), namespace: "default".into(), name: name.into() }),
        groups: vec![dirs_of(pod)],
        grace: Duration::ZERO,
        resource: Resource::Memory,
        hard: true,
        kill_on_growth: None,
    }
}

/// The same for a soft threshold.
pub(crate) fn soft(pod: &Group, grace: Duration) -> KillTarget {
    KillTarget { grace, hard: false, ..target(pod) }
}

/// An executor and what it tells.
pub(crate) struct Acting {
    pub(crate) executor: Killer,
    outcomes: mpsc::Receiver<KillUpdate>,
    /// What came of the memory of processes.
    pub(crate) reaped: Receiver<MreleaseResult>,
    decisions: u64,
}

impl Acting {
    /// Begins, as a decision made now.
    pub(crate) fn begin(&mut self, target: KillTarget) -> Result<(), KillRejection> {
        self.decisions += 1;
        let at_ns = tests::clock::now();
        self.executor.begin(&KillTarget { decision: self.decisions, at_ns, ..target })
    }

    /// Shortens the grace period of a decision.
    pub(crate) fn shorten(&mut self, decision: u64, target: KillTarget) {
        self.executor.shorten(&KillTarget { decision, ..target }).unwrap();
    }

    /// Begins and waits for the end.
    pub(crate) fn kill(&mut self, target: KillTarget) -> Vec<KillUpdate> {
        assert_eq!(self.begin(target), Ok(()));
        self.wait_last()
    }

    /// The next outcome.
    pub(crate) fn next(&mut self) -> KillUpdate {
        let mut next = None;
        wait_until("an outcome", || {
            next = self.outcomes.try_recv().ok();
            next.is_some()
        })
        .unwrap();
        next.unwrap()
    }

    /// Outcomes up to the last one of a decision.
    pub(crate) fn wait_last(&mut self) -> Vec<KillUpdate> {
        let mut outcomes = Vec::new();
        loop {
            outcomes.push(self.next());
            if outcomes.last().unwrap().progress.is_last() {
                return outcomes;
            }
        }
    }

    /// Ends the executor and gives what it said last.
    pub(crate) fn stop(self) -> Vec<KillProgress> {
        let Self { executor, mut outcomes, reaped: _, decisions: _ } = self;
        drop(executor);
        std::iter::from_fn(|| outcomes.try_recv().ok()).map(|outcome| outcome.progress).collect()
    }
}

/// How far it came, step by step.
pub(crate) fn steps(outcomes: &[KillUpdate]) -> Vec<&'static str> {
    let name = |outcome: &KillUpdate| match outcome.progress {
        KillProgress::WouldSignal { .. } => "would signal",
        KillProgress::TermSent(_) => "term",
        KillProgress::KillSent { .. } => "kill",
        KillProgress::Error { .. } => "error",
        KillProgress::Terminated { .. } => "terminated",
        KillProgress::ProcessesRemaining { .. } => "processes_remaining",
        KillProgress::Answered { .. } => "answered",
        KillProgress::Abandoned => "abandoned",
    };
    outcomes.iter().map(name).collect()
}

pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| tests::workload::binary().unwrap())
}

/// A workload in its group, running.
pub(crate) fn run(group: &Group, arguments: &str) -> Workload {
    let mut workload = Workload::run(binary(), group, arguments.split(' ')).unwrap();
    workload.wait_event("go").unwrap();
    workload
}

/// A process that ends on SIGTERM.
pub(crate) fn tame(group: &Group) -> Workload {
    run(group, "hold --size 1M")
}

/// A process that ignores SIGTERM.
pub(crate) fn stubborn(group: &Group) -> Workload {
    run(group, "--on-term ignore hold --size 1M")
}

/// The signal that has ended a workload.
pub(crate) fn ended_by(workload: &mut Workload) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    workload.process().wait().unwrap().signal()
}

/// A file that the workload stamps, in a folder that is removed.
pub(crate) fn stamps() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stamps");
    (folder, path)
}

const _: () = assert!(HANG.as_secs() < LONG.as_secs());
