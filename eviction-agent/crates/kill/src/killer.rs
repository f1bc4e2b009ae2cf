//! The interface of the control loop to terminate the processes of pods.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;
use tokio::sync::mpsc;

use super::cgroup::{CgroupDirs, CgroupScope, PinnedCgroup};
use super::cgroup_procs::CgroupProcesses;
use super::job::{Job, KillTarget};
use super::kill_worker::{KillCommand, KillWorker};
use super::mrelease::{MreleaseResult, MreleaseWorker};
use super::node_lock::NodeLock;
use super::scoped_write::{ScopedWrite, UndoLog};
use eviction_core::error::chain;
use eviction_core::progress::{KillRejection, KillUpdate};

/// The prefix of the undo log's file name. The id of the node's root cgroup follows.
pub const UNDO_LOG: &str = "holds-";

/// The initial value of [`Killer::kill_wait`].
const KILL_WAIT: Duration = Duration::from_secs(30);

/// The maximum number of processes to which the control loop sends the first signals itself. For more
/// processes, the worker thread sends them: each signal takes some microseconds.
const MAX_IMMEDIATE_SIGNALS: usize = 256;

/// A frozen pod. Its processes are thawed when this is dropped. If the agent is killed before, the next agent
/// thaws them.
#[derive(Debug)]
pub struct FrozenPod {
    _holds: Vec<ScopedWrite>,
}

/// Terminates the processes of pods. Belongs to one thread; its work on that thread is short.
#[derive(Debug)]
pub struct Killer {
    /// How long processes may take to end after SIGKILL before they are reported as remaining.
    pub kill_wait: Duration,
    scope: CgroupScope,
    log: Arc<UndoLog>,
    processes: CgroupProcesses,
    /// To the worker thread, which ends when this is closed; `None` once it was.
    commands: Option<Sender<KillCommand>>,
    /// Wakes the worker thread.
    eventfd: Arc<OwnedFd>,
    worker: Option<JoinHandle<()>>,
    /// Without it, this is a dry run. Held until the worker thread has ended: before that, no other agent may act.
    lock: Option<NodeLock>,
}

impl Killer {
    /// Creates a killer that changes nothing outside of `scope`. With `lock`, the lock of the node whose root cgroup
    /// this is, it kills, after it has undone the changes that a killed agent has left behind. Without, it only
    /// reports what it would do. Updates are sent to `updates`, in order for each decision. If the receiver is
    /// dropped, the kills continue.
    ///
    /// `run_dir` is the directory for the undo log, which the next agent needs if this one is killed. It should
    /// outlive the agent's container. If it is not writable, a warning is logged. `on_mrelease` is called, on threads
    /// of the killer, with the result of the memory release for each killed process.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(
        scope: CgroupScope,
        lock: Option<NodeLock>,
        run_dir: &Path,
        updates: mpsc::Sender<KillUpdate>,
        on_mrelease: impl Fn(MreleaseResult) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        debug_assert!(lock.as_ref().is_none_or(|lock| lock.id() == scope.id()), "the lock of another node");
        let log = match &lock {
            Some(lock) => open_log(&run_dir.join(format!("{UNDO_LOG}{}", lock.id()))),
            // A dry run makes no changes that would have to be undone.
            None => UndoLog::default(),
        };
        let mrelease = MreleaseWorker::start(Arc::new(on_mrelease))?;
        let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, incoming) = channel();
        let worker = KillWorker::new(incoming, Arc::clone(&eventfd), updates, mrelease);
        let thread = std::thread::Builder::new().name("killer".to_owned());
        Ok(Self {
            kill_wait: KILL_WAIT,
            scope,
            log: Arc::new(log),
            processes: CgroupProcesses::new(),
            commands: Some(commands),
            eventfd,
            worker: Some(thread.spawn(move || worker.run())?),
            lock,
        })
    }

    fn is_dry(&self) -> bool {
        self.lock.is_none()
    }

    /// Starts to terminate the processes of a pod. For a hard threshold the first signals have been sent on
    /// return, unless the pod has many processes. Everything else happens on a separate thread. The caller
    /// must start each pod only once.
    ///
    /// # Errors
    /// If the pod cannot be killed, with the reason.
    pub fn begin(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        // Each job holds a reference to the log. Without jobs nothing is stopped, and the log can be cleared.
        if Arc::strong_count(&self.log) == 1 {
            self.log.clear();
        }
        let groups = self.pin(&target.groups)?;
        let is_dry = self.is_dry();
        let mut job = Job::new(target, groups, self.kill_wait, is_dry, Arc::clone(&self.log));
        let processes = self.count(&job.victim.groups)?;
        if target.hard && !is_dry && processes <= MAX_IMMEDIATE_SIGNALS {
            job.send_first_signals(&mut self.processes);
        }
        self.send(KillCommand::Begin(Box::new(job)))
    }

    /// Shortens the grace period of the decision's pod, which was started before, for a hard threshold.
    ///
    /// # Errors
    /// If the worker thread has ended.
    pub fn shorten(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        let KillTarget { decision, grace, .. } = *target;
        self.send(KillCommand::Shorten { decision, grace, growth_limit: target.growth_limit() })
    }

    /// Checks whether a pod could be killed now, without an action.
    ///
    /// # Errors
    /// If it could not be killed, with the reason.
    pub fn check(&mut self, target: &KillTarget) -> Result<(), KillRejection> {
        let groups = self.pin(&target.groups)?;
        self.count(&groups).map(drop)
    }

    /// Freezes a pod's cgroups, and returns before all of their tasks have stopped. In a dry run it only
    /// checks whether they may be frozen, and returns `None`.
    ///
    /// # Errors
    /// If the pod cannot be frozen, with the reason. Then no part of it is frozen.
    pub fn freeze(&mut self, groups: &[CgroupDirs]) -> Result<Option<FrozenPod>, KillRejection> {
        let groups = self.pin(groups)?;
        match self.count(&groups) {
            // No signal is sent, so the PID namespace of the processes does not matter.
            Ok(_) | Err(KillRejection::Unreachable { .. }) => {}
            Err(rejection) => return Err(rejection),
        }
        let broken = |what: String| KillRejection::Broken { what };
        let mut holds = Vec::with_capacity(groups.len());
        for group in &groups {
            let (dir, path) =
                group.freezer.as_ref().ok_or_else(|| broken("the pod has no freezer".into()))?;
            if self.is_dry() {
                continue;
            }
            match ScopedWrite::freeze(dir.as_fd(), path, &self.log) {
                Ok(hold) => holds.extend(hold),
                Err(error) if error.is_removed() => {}
                Err(error) => return Err(broken(chain(&error))),
            }
        }
        Ok((!self.is_dry()).then_some(FrozenPod { _holds: holds }))
    }

    /// Ends the work on all pods and leaves their processes as they are. The last update of each pod is
    /// [`Abandoned`](eviction_core::progress::KillProgress::Abandoned). No other pod can be killed afterwards.
    pub fn stop(&mut self) {
        self.commands = None;
        self.wake_worker();
        if let Some(worker) = self.worker.take() {
            // A panic in it has been reported by the panic hook.
            let _ = worker.join();
        }
    }

    fn send(&self, command: KillCommand) -> Result<(), KillRejection> {
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok());
        self.wake_worker();
        match sent {
            true => Ok(()),
            false => {
                Err(KillRejection::Broken { what: "the thread that finishes kills has ended".to_owned() })
            }
        }
    }

    fn wake_worker(&self) {
        // The write fails only if the counter is full, and then the thread wakes up anyway.
        let _ = write(&self.eventfd, &1_u64.to_ne_bytes());
    }

    /// Opens the pod's cgroups, without those that are removed.
    fn pin(&self, dirs: &[CgroupDirs]) -> Result<Vec<PinnedCgroup>, KillRejection> {
        let mut groups = Vec::with_capacity(dirs.len());
        for dirs in dirs {
            let group = self.scope.pin(dirs).map_err(|what| KillRejection::NotAPod { what })?;
            groups.extend(group);
        }
        match groups.is_empty() {
            true => Err(KillRejection::Empty),
            false => Ok(groups),
        }
    }

    /// Returns the number of processes in the cgroups that may be killed.
    fn count(&mut self, groups: &[PinnedCgroup]) -> Result<usize, KillRejection> {
        let mut processes = 0;
        let mut unreachable = 0;
        let mut can_kill_unreachable = false;
        for group in groups {
            self.processes.scan(group.memory.as_fd());
            if let Some(pid) = self.processes.protected() {
                let path = group.path.display();
                let what = match pid {
                    1 => format!("cgroup {path} holds process 1"),
                    pid => format!("cgroup {path} holds the agent itself, pid {pid}"),
                };
                return Err(KillRejection::NotAPod { what });
            }
            processes += self.processes.pids.len();
            unreachable += self.processes.unreachable;
            can_kill_unreachable |= group.is_unified;
        }
        match (processes, unreachable) {
            (0, 0) => Err(KillRejection::Empty),
            (0, processes) if !can_kill_unreachable => Err(KillRejection::Unreachable { processes }),
            _ => Ok(processes),
        }
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Undoes the changes of a killed agent that the log at `path` lists. Returns the number of control files
/// that were restored. Only the holder of the node's lock may call it.
///
/// # Errors
/// If the log cannot be read, or something could not be undone. Then the log stays.
pub fn undo(path: &Path) -> std::io::Result<u32> {
    let (log, undone) = UndoLog::open(path)?;
    if log.has_pending() {
        return Err(std::io::Error::other("not every change in it can be undone"));
    }
    Ok(undone)
}

fn open_log(path: &Path) -> UndoLog {
    match UndoLog::open(path) {
        Ok((log, 0)) => log,
        Ok((log, groups)) => {
            tracing::info!(groups, "resumed what a killed agent had stopped");
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
    use std::io::Read as _;
    use std::path::Path;

    use super::*;
    use eviction_core::pod::PodName;
    use eviction_core::progress::KillProgress;
    use eviction_core::signal::Resource;

    /// Starts a kill on a plain directory that takes the place of a node. `lists` are the contents of its
    /// `cgroup.procs` files.
    fn begin(lists: &[(&str, &str)], groups: &[&str]) -> (Result<(), KillRejection>, tempfile::TempDir) {
        let (mut killer, target, _updates, folder) = killer(lists, groups);
        (killer.begin(&target), folder)
    }

    /// Returns a killer of such a node, a target with these cgroups, and the updates.
    fn killer(
        lists: &[(&str, &str)],
        groups: &[&str],
    ) -> (Killer, KillTarget, mpsc::Receiver<KillUpdate>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("node");
        for (group, text) in lists {
            std::fs::create_dir_all(root.join(group)).unwrap();
            std::fs::write(root.join(group).join("cgroup.procs"), text).unwrap();
        }
        let dirs = |path: &Path| CgroupDirs { memory: path.to_owned(), ..CgroupDirs::default() };
        let lock = NodeLock::acquire(&root).unwrap();
        let scope = CgroupScope::open(&dirs(&root)).unwrap();
        let (sender, updates) = mpsc::channel(8);
        let killer = Killer::new(scope, Some(lock), &folder.path().join("run"), sender, |_| {}).unwrap();
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
        (killer, target, updates, folder)
    }

    #[test]
    fn stop_abandons_the_pods_in_their_grace_period() {
        // SIGTERM stays ignored after exec.
        let mut sleeper = std::process::Command::new("sh")
            .args(["-c", "trap '' TERM; echo; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        sleeper.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let list = format!("{}\n", sleeper.id());
        let (mut killer, target, mut updates, _folder) = killer(&[("pod", list.as_str())], &["pod"]);
        let target = KillTarget { grace: Duration::from_secs(600), ..target };
        killer.begin(&target).unwrap();
        killer.stop();
        let mut last = None;
        while let Ok(update) = updates.try_recv() {
            last = Some(update.progress);
        }
        assert_eq!(last, Some(KillProgress::Abandoned));
        assert!(sleeper.try_wait().unwrap().is_none());
        assert!(matches!(killer.begin(&target), Err(KillRejection::Broken { .. })));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn the_lock_is_held_until_the_worker_thread_has_ended() {
        // The thread ends within microseconds: many attempts, so that one sees a lock that is released before.
        for _ in 0..50 {
            let (killer, _target, mut updates, folder) = killer(&[("pod", "")], &[]);
            let root = folder.path().join("node");
            assert!(NodeLock::acquire(&root).is_err());
            let dropper = std::thread::spawn(move || drop(killer));
            while NodeLock::acquire(&root).is_err() {
                std::hint::spin_loop();
            }
            assert_eq!(updates.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
            dropper.join().unwrap();
        }
    }

    #[test]
    fn cgroup_with_the_agent_or_process_1_is_never_killed() {
        let own = format!("{}\n", std::process::id());
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = format!("{}\n", sleeper.id());
        for (listed, expected) in [(own.as_str(), "holds the agent itself, pid "), ("1\n", "holds process 1")]
        {
            // In the pod's cgroup, below it, and in a second cgroup of the pod.
            for (lists, groups) in [
                (vec![("pod", listed)], vec!["pod"]),
                (vec![("pod", other.as_str()), ("pod/a/b", listed)], vec!["pod"]),
                (vec![("pod", other.as_str()), ("other", listed)], vec!["pod", "other"]),
            ] {
                let (result, _folder) = begin(&lists, &groups);
                let rejection = result.unwrap_err();
                assert!(matches!(rejection, KillRejection::NotAPod { .. }), "{rejection:?}");
                assert!(rejection.to_string().contains(expected), "{rejection}");
            }
        }
        // No other process in it was signalled either.
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn processes_of_another_pid_namespace_are_unreachable() {
        let (result, _folder) = begin(&[("pod", "0\n0\n"), ("pod/a", "0\n")], &["pod"]);
        let rejection = result.unwrap_err();
        assert_eq!(rejection, KillRejection::Unreachable { processes: 3 });
        assert!(rejection.help().unwrap().contains("hostPID"));
    }

    #[test]
    fn removed_cgroups_are_skipped() {
        assert_eq!(begin(&[("pod", "")], &["pod", "gone"]).0, Err(KillRejection::Empty));
        assert_eq!(begin(&[("pod", "")], &["gone"]).0, Err(KillRejection::Empty));
        assert_eq!(begin(&[("pod", "")], &[]).0, Err(KillRejection::Empty));
    }
}
