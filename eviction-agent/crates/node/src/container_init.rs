//! Tracks the init process of each container, and which containers have ended.
//!
//! A container ends when its init process ends. The init process is the process in the container's cgroup with
//! a parent outside of it (the runtime's shim); of several such processes (`kubectl exec` creates more) it is
//! the oldest. It is recorded while it runs, since a victim of an OOM kill may be reaped before it can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::cgroup::names::ContainerKind;
use crate::cgroup::sampler::Sampler;
use crate::proc::process::{Process, is_missing, is_running, open_pidfd, read_processes, sees_global_pids};
use eviction_core::oom::{ContainerEnded, OomVictimRole, TerminationSource};
use eviction_core::time::Timestamp;

use crate::pod_index::PodIndex;

/// The most containers whose init process is searched per update: on v1 the kernel takes about 200 µs to list
/// the processes of a cgroup. The others follow in the next updates.
const SEARCHES_PER_UPDATE: usize = 8;

/// The same limit at the start, when nothing waits: all containers of a usual node.
const SEARCHES_AT_START: usize = 512;

/// In a cgroup with more processes than this the init process is not searched, since each process is a file to
/// read.
const MAX_PROCESSES: usize = 1024;

/// The same limit while the report of a kill waits for the result.
const MAX_PROCESSES_AT_KILL: usize = 64;

/// The most init processes with an open descriptor. Others are read from `/proc` at each update.
const MAX_PIDFDS: usize = 512;

/// The containers of the node, with their init processes.
#[derive(Debug)]
pub struct ContainerInitTracker {
    proc: PathBuf,
    /// Whether ids in this PID namespace are those of the kernel's records.
    global_pids: bool,
    by_cgroup: BTreeMap<u64, TrackedContainer>,
    /// The cgroup id of the last container that was searched. The next search begins behind it, so that
    /// containers without any process do not block the others.
    last_searched: u64,
    /// The most containers that the next update searches.
    searches: usize,
}

/// A container that was found in the cgroup tree.
#[derive(Debug)]
struct TrackedContainer {
    pod: Box<str>,
    id: Box<str>,
    /// The container's name, if a pod status has contained it.
    name: Option<Box<str>>,
    /// Whether other containers of the pod have names. Then a container without one is the sandbox.
    siblings_named: bool,
    group: PathBuf,
    /// The init process as it was when it was found.
    init: Option<Process>,
    /// The descriptor of the init process.
    pidfd: Option<OwnedFd>,
    ended: bool,
}

impl ContainerInitTracker {
    /// Tracks no container yet; `proc` is the folder of the proc file system.
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            global_pids: sees_global_pids(proc),
            by_cgroup: BTreeMap::new(),
            last_searched: 0,
            searches: SEARCHES_AT_START,
        }
    }

    /// Updates the containers from the tree that was just read. Returns the containers that have ended since.
    pub fn update(&mut self, now: Timestamp, sampler: &Sampler, pod_index: &PodIndex) -> Vec<ContainerEnded> {
        let mut ends = Vec::new();
        let present = self.track_containers(sampler, pod_index);
        self.by_cgroup.retain(|cgroup, tracked| {
            let stays = present.contains(cgroup);
            if !stays && !tracked.ended {
                ends.extend(tracked.end(now, TerminationSource::Cgroup, None));
            }
            stays
        });
        // Ids of another PID namespace may belong to other processes here.
        let mut free_pidfds = if self.global_pids { MAX_PIDFDS } else { 0 };
        for tracked in self.by_cgroup.values_mut().filter(|tracked| !tracked.ended) {
            if let Some(last) = tracked.has_ended(&self.proc, free_pidfds > 0) {
                tracked.ended = true;
                ends.extend(tracked.end(now, TerminationSource::Process, last));
            }
            free_pidfds = free_pidfds.saturating_sub(usize::from(tracked.pidfd.is_some()));
        }
        self.find_missing_inits();
        ends
    }

    fn find_missing_inits(&mut self) {
        let searches = std::mem::replace(&mut self.searches, SEARCHES_PER_UPDATE);
        let (after, before) = (self.last_searched.saturating_add(1).., ..=self.last_searched);
        let in_order = self.by_cgroup.range(after).chain(self.by_cgroup.range(before));
        let without_init: Vec<u64> = in_order
            .filter(|(_, tracked)| tracked.init.is_none())
            .map(|(id, _)| *id)
            .take(searches)
            .collect();
        for id in without_init {
            if let Some(tracked) = self.by_cgroup.get_mut(&id) {
                tracked.init = find_init(&self.proc, &tracked.group, MAX_PROCESSES, None);
            }
            self.last_searched = id;
        }
    }

    /// Returns the role of an OOM victim in the container of its cgroup.
    pub fn victim(&mut self, container: u64, tgid: u32) -> OomVictimRole {
        let Some(tracked) = self.by_cgroup.get_mut(&container).filter(|_| self.global_pids) else {
            return OomVictimRole::Unknown;
        };
        if tracked.init.is_none() {
            // The init process may not be recorded yet. A victim that left the cgroup cannot be classified.
            tracked.init = find_init(&self.proc, &tracked.group, MAX_PROCESSES_AT_KILL, Some(tgid));
        }
        match tracked.init {
            Some(init) if init.pid == tgid => OomVictimRole::Init,
            Some(_) => OomVictimRole::Child,
            None => OomVictimRole::Unknown,
        }
    }

    fn track_containers(&mut self, sampler: &Sampler, pod_index: &PodIndex) -> BTreeSet<u64> {
        let mut present = BTreeSet::new();
        for pod in &sampler.pods().pods {
            let known = pod_index.pod_of(pod).map(|known| &known.pod);
            let named = |id: &str| pod_index.named(id).is_some();
            let siblings_named = pod.containers.iter().any(|container| named(&container.id));
            let containers = pod.containers.iter().filter(|it| it.kind == ContainerKind::Container);
            for container in containers {
                present.insert(container.cgroup_id);
                let tracked = self.by_cgroup.entry(container.cgroup_id).or_insert_with(|| TrackedContainer {
                    pod: Box::default(),
                    id: container.id.clone(),
                    name: None,
                    siblings_named,
                    group: sampler.root().memory.join(&container.path),
                    init: None,
                    pidfd: None,
                    ended: false,
                });
                tracked.siblings_named |= siblings_named;
                // This runs at each update, so it copies only names that are new.
                if let Some(name) = pod_index.named(&container.id)
                    && tracked.name.as_deref() != Some(name)
                {
                    tracked.name = Some(name.into());
                }
                match known {
                    Some(pod) if tracked.pod == pod.uid => {}
                    Some(pod) => tracked.pod = pod.uid.clone(),
                    None if tracked.pod.is_empty() => tracked.pod = pod.uid.as_str().into(),
                    None => {}
                }
            }
        }
        present
    }
}

impl TrackedContainer {
    /// Returns `Some` if the init process has ended, with what the kernel still shows of it. Keeps a descriptor
    /// of the process for the next time, if `may_keep`.
    fn has_ended(&mut self, proc: &Path, may_keep: bool) -> Option<Option<Process>> {
        let init = self.init?;
        if self.pidfd.as_ref().is_some_and(is_running) {
            return None;
        }
        // The descriptor is opened before the process is read, so that both are about the same process.
        let pidfd = may_keep.then(|| open_pidfd(init.pid)).flatten();
        let ended = has_ended(proc, init);
        self.pidfd = pidfd.filter(|_| ended.is_none());
        ended
    }

    /// Returns the container's end; `None` for a pod's sandbox, which is no container of the pod.
    fn end(&self, at: Timestamp, seen: TerminationSource, last: Option<Process>) -> Option<ContainerEnded> {
        let container = match &self.name {
            Some(name) => name.clone(),
            None if self.siblings_named => return None,
            None => crate::pod_index::short(&self.id).into(),
        };
        let (exit_code, signal) = last.map_or((None, None), |last| last.exit());
        Some(ContainerEnded {
            at: Some(at),
            pod_uid: self.pod.clone(),
            container,
            container_id: Some(self.id.clone()),
            seen,
            exit_code,
            signal,
            ..ContainerEnded::default()
        })
    }
}

/// Returns `Some` if the process has ended, with what the kernel still shows of it.
fn has_ended(proc: &Path, init: Process) -> Option<Option<Process>> {
    match Process::read(proc, init.pid) {
        Ok(process) if process.started != init.started => Some(None),
        Ok(process) => process.ended.map(|_| Some(process)),
        Err(why) => is_missing(why).then_some(None),
    }
}

/// Finds the init process of a cgroup with at most `most` processes, if everything that is needed can be read.
/// With `among`, only if that process is still in the cgroup.
fn find_init(proc: &Path, group: &Path, most: usize, among: Option<u32>) -> Option<Process> {
    let mut pids = read_processes(group).ok()?;
    pids.sort_unstable();
    let has = |pid: u32| pids.binary_search(&pid).is_ok();
    if pids.len() > most || has(0) || among.is_some_and(|pid| !has(pid)) {
        return None;
    }
    // A process that ended meanwhile may have been the init process.
    let processes: Vec<_> =
        pids.iter().map(|pid| Process::read(proc, *pid)).collect::<Result<_, _>>().ok()?;
    let inits = processes.into_iter().filter(|process| !has(process.parent));
    inits.min_by_key(|process| (process.started, process.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FakeProc {
        folder: tempfile::TempDir,
    }

    impl FakeProc {
        fn new(processes: &[(u32, u32, u64)]) -> Self {
            let fake = Self { folder: tempfile::tempdir().unwrap() };
            let pids: String = processes.iter().map(|(pid, ..)| format!("{pid}\n")).collect();
            std::fs::write(fake.path().join("cgroup.procs"), pids).unwrap();
            for (pid, parent, started) in processes {
                fake.write_process(*pid, *parent, 'S', *started);
            }
            fake
        }

        fn path(&self) -> &Path {
            self.folder.path()
        }

        fn write_process(&self, pid: u32, parent: u32, state: char, started: u64) {
            let folder = self.path().join(pid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            let zeros = vec!["0"; 29].join(" ");
            let text = format!(
                "{pid} (p) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} {zeros} 9\n"
            );
            std::fs::write(folder.join("stat"), text).unwrap();
        }
    }

    #[test]
    fn init_process_is_the_oldest_with_a_parent_outside_the_cgroup() {
        // An exec'd shell is younger, a child of the main process has a lower id.
        let fake = FakeProc::new(&[(5, 40, 110), (40, 3, 100), (60, 3, 105)]);
        let init = find_init(fake.path(), fake.path(), MAX_PROCESSES, None);
        assert_eq!(init, Some(Process { pid: 40, parent: 3, started: 100, ended: None }));
        assert_eq!(find_init(fake.path(), fake.path(), MAX_PROCESSES, Some(5)), init);
        let absent = find_init(fake.path(), fake.path(), MAX_PROCESSES, Some(7));
        assert_eq!(absent, None, "it left the group already");
        assert_eq!(find_init(fake.path(), fake.path(), 2, None), None, "more than there is time for");
    }

    #[test]
    fn init_process_of_an_empty_or_unreadable_cgroup_is_unknown() {
        let fake = FakeProc::new(&[]);
        assert_eq!(find_init(fake.path(), fake.path(), MAX_PROCESSES, None), None);
        for procs in ["0\n", "40\n"] {
            std::fs::write(fake.path().join("cgroup.procs"), procs).unwrap();
            assert_eq!(find_init(fake.path(), fake.path(), MAX_PROCESSES, None), None, "{procs:?}");
        }
    }

    #[test]
    fn missing_zombie_or_replaced_process_has_ended() {
        let fake = FakeProc::new(&[(40, 3, 100)]);
        let init = Process::read(fake.path(), 40).unwrap();
        assert_eq!(has_ended(fake.path(), init), None);
        fake.write_process(40, 3, 'Z', 100);
        assert_eq!(has_ended(fake.path(), init).unwrap().unwrap().exit(), (None, Some(9)));
        fake.write_process(40, 3, 'S', 900);
        assert_eq!(has_ended(fake.path(), init), Some(None), "the id is used again");
        std::fs::remove_dir_all(fake.path().join("40")).unwrap();
        assert_eq!(has_ended(fake.path(), init), Some(None));
    }
}
