//! A node with pods, and a killer on it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::{KillProgress, KillRejection, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kill::{CgroupDirs, CgroupScope, KillTarget, Killer, LockError, MreleaseResult, NodeLock};
use tempfile::TempDir;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::mounts::Hierarchy;
use tests::node::MIB;
use tests::process::{HANG, wait_until};
use tests::workload::Workload;
use tokio::sync::mpsc;

/// Long enough not to end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) struct Fixture {
    pub(crate) subtree: Subtree,
    pub(crate) run_dir: TempDir,
}

impl Fixture {
    /// Creates a node with limits for tasks and memory.
    pub(crate) fn new(label: &str) -> Self {
        let subtree = Subtree::new(&format!("kill-{label}")).unwrap();
        subtree.root().limit_memory(512 * MIB).unwrap();
        subtree.root().limit_pids(600).unwrap();
        Self { subtree, run_dir: tempfile::tempdir().unwrap() }
    }

    /// Creates a pod's cgroup and that of its only container.
    pub(crate) fn pod(&self, n: u64) -> (Group, Group) {
        let pod = self.subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(n)).unwrap();
        let container = pod.group(container_id(n)).unwrap();
        (pod, container)
    }

    /// Drops what still uses the node, such as a killer, and then removes the node.
    pub(crate) fn end<T>(self, users: T) {
        drop(users);
        self.subtree.remove().unwrap();
    }

    /// Takes the node's lock.
    pub(crate) fn lock(&self) -> Result<NodeLock, LockError> {
        NodeLock::acquire(&dirs_of(self.subtree.root()).memory)
    }

    /// Starts a killer that acts. Waits for the node's lock: a child that another test has just forked holds the lock
    /// that was taken here before, until it executes its program.
    pub(crate) fn killer(&self) -> TestKiller {
        self.killer_in(dirs_of(self.subtree.root()))
    }

    /// Starts a killer that acts on a node with these root directories.
    pub(crate) fn killer_in(&self, roots: CgroupDirs) -> TestKiller {
        let mut lock = None;
        wait_until("the lock of the node", || match NodeLock::acquire(&roots.memory) {
            Err(LockError::Held { .. }) => false,
            result => {
                lock = Some(result.unwrap());
                true
            }
        })
        .unwrap();
        self.start(&roots, lock)
    }

    /// Starts a killer that only reports what it would do.
    pub(crate) fn dry_killer(&self) -> TestKiller {
        self.start(&dirs_of(self.subtree.root()), None)
    }

    /// Freezes the cgroup of the pods' QoS class, and starts a killer that waits only briefly for the end of processes.
    pub(crate) fn frozen_class_and_killer(&self) -> (Group, TestKiller) {
        let class = self.subtree.group("kubepods/burstable").unwrap();
        class.freeze(true).unwrap();
        let mut killer = self.killer();
        killer.executor.kill_wait = Duration::from_millis(300);
        (class, killer)
    }

    fn start(&self, roots: &CgroupDirs, lock: Option<NodeLock>) -> TestKiller {
        let (sender, updates) = mpsc::channel(64);
        let (reported, mrelease_results) = channel();
        let scope = CgroupScope::open(roots).unwrap();
        let executor = Killer::new(scope, lock, self.run_dir.path(), sender, move |result| {
            let _ = reported.send(result);
        })
        .unwrap();
        TestKiller { executor, updates, mrelease_results, decisions: 0 }
    }
}

/// Returns the directories of a cgroup, as the agent finds them.
pub(crate) fn dirs_of(group: &Group) -> CgroupDirs {
    let unified = group.dir(Hierarchy::Unified);
    let or_unified = |hierarchy| group.dir(hierarchy).or_else(|| unified.clone());
    CgroupDirs {
        id: None,
        memory: or_unified(Hierarchy::Memory).unwrap(),
        pids: or_unified(Hierarchy::Pids),
        freezer: or_unified(Hierarchy::Freezer),
        unified: unified.clone(),
    }
}

/// Returns whether the kernel can kill whole cgroups in the hierarchy where this node's processes are counted: cgroup
/// v2, from kernel 5.14 on.
pub(crate) fn has_cgroup_kill(fixture: &Fixture) -> bool {
    let dirs = dirs_of(fixture.subtree.root());
    dirs.unified.as_ref() == Some(&dirs.memory) && dirs.memory.join("cgroup.kill").exists()
}

/// Returns the cgroup for a process of the group itself. On cgroup v2 only leaf cgroups have processes once
/// controllers are enabled for the children: then the process goes into a child of its own.
pub(crate) fn process_cgroup(group: &Group) -> Group {
    let control = group.dir(Hierarchy::Unified).map(|dir| dir.join("cgroup.subtree_control"));
    let hands_down = control.is_some_and(|file| !std::fs::read_to_string(file).unwrap().trim().is_empty());
    if hands_down { group.group("itself").unwrap() } else { group.clone() }
}

/// Returns a target for a hard memory threshold without a grace period.
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

/// Returns a target for a soft threshold.
pub(crate) fn soft(pod: &Group, grace: Duration) -> KillTarget {
    KillTarget { grace, hard: false, ..target(pod) }
}

/// A killer and its updates.
pub(crate) struct TestKiller {
    pub(crate) executor: Killer,
    updates: mpsc::Receiver<KillUpdate>,
    /// The results of process_mrelease.
    pub(crate) mrelease_results: Receiver<MreleaseResult>,
    decisions: u64,
}

impl TestKiller {
    /// Begins a kill for a decision made now.
    pub(crate) fn begin(&mut self, target: KillTarget) -> Result<(), KillRejection> {
        self.decisions += 1;
        let at_ns = tests::clock::now();
        self.executor.begin(&KillTarget { decision: self.decisions, at_ns, ..target })
    }

    /// Begins a kill, waits until SIGTERM was sent, and returns that update.
    pub(crate) fn begin_with_sigterm(&mut self, target: KillTarget) -> KillUpdate {
        assert_eq!(self.begin(target), Ok(()));
        let term = self.next();
        assert!(matches!(term.progress, KillProgress::TermSent(_)), "{term:?}");
        term
    }

    /// Shortens the grace period of a decision.
    pub(crate) fn shorten(&mut self, decision: u64, target: KillTarget) {
        self.executor.shorten(&KillTarget { decision, ..target }).unwrap();
    }

    /// Begins a kill and waits for its last update.
    pub(crate) fn kill(&mut self, target: KillTarget) -> Vec<KillUpdate> {
        assert_eq!(self.begin(target), Ok(()));
        self.wait_last()
    }

    /// Returns the next update.
    pub(crate) fn next(&mut self) -> KillUpdate {
        let mut next = None;
        wait_until("an update", || {
            next = self.updates.try_recv().ok();
            next.is_some()
        })
        .unwrap();
        next.unwrap()
    }

    /// Returns the updates up to the last one of a decision.
    pub(crate) fn wait_last(&mut self) -> Vec<KillUpdate> {
        let mut updates = Vec::new();
        loop {
            updates.push(self.next());
            if updates.last().unwrap().progress.is_last() {
                return updates;
            }
        }
    }

    /// Stops the killer and returns the progress of its remaining updates.
    pub(crate) fn stop(self) -> Vec<KillProgress> {
        let Self { executor, mut updates, mrelease_results: _, decisions: _ } = self;
        drop(executor);
        std::iter::from_fn(|| updates.try_recv().ok()).map(|update| update.progress).collect()
    }
}

/// Returns the names of the steps of a kill.
pub(crate) fn steps(updates: &[KillUpdate]) -> Vec<&'static str> {
    let name = |update: &KillUpdate| match update.progress {
        KillProgress::WouldSignal { .. } => "would signal",
        KillProgress::TermSent(_) => "term",
        KillProgress::KillSent { .. } => "kill",
        KillProgress::Error { .. } => "error",
        KillProgress::Terminated { .. } => "terminated",
        KillProgress::ProcessesRemaining { .. } => "processes_remaining",
        KillProgress::Answered { .. } => "answered",
        KillProgress::Abandoned => "abandoned",
    };
    updates.iter().map(name).collect()
}

/// Starts a workload in its cgroup, and waits until it runs.
pub(crate) fn run(group: &Group, arguments: &str) -> Workload {
    let mut workload = Workload::run(group, arguments.split(' ')).unwrap();
    workload.wait_event("go").unwrap();
    workload
}

/// Starts a process that ends on SIGTERM.
pub(crate) fn hold_until_sigterm(group: &Group) -> Workload {
    run(group, "hold --size 1M")
}

/// Starts a process that ignores SIGTERM.
pub(crate) fn hold_ignoring_sigterm(group: &Group) -> Workload {
    run(group, "--on-term ignore hold --size 1M")
}

/// Waits for a workload to end, and returns the signal that ended it.
pub(crate) fn ended_by(workload: &mut Workload) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    workload.process().wait().unwrap().signal()
}

/// Asserts that SIGKILL ends each of these workloads.
pub(crate) fn assert_killed(victims: &mut [Workload]) {
    for victim in victims {
        assert_eq!(ended_by(victim), Some(9));
    }
}

/// Returns the path of a file that a workload stamps, in a temporary folder.
pub(crate) fn stamps() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stamps");
    (folder, path)
}

const _: () = assert!(HANG.as_secs() < LONG.as_secs());
