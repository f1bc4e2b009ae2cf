//! Which process of a container is its first one, noted while it lives, and which containers
//! are there no more.
//!
//! A container ends when its main process does. Of the processes in its group that is the one
//! whose parent is outside (the runtime's shim), and of several such (`kubectl exec` makes more)
//! the oldest. After a kill it is too late to ask: a victim may be reaped before anybody looks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cgroup::names::ContainerKind;
use crate::cgroup::sampler::Sampler;
use crate::proc::process::{Process, ProcessHandle, is_gone, read_processes, sees_global_pids};
use eviction_core::oom::{ContainerEnded, EndSeen, OomVictimRole};
use eviction_core::time::Timestamp;

use crate::pod_index::PodIndex;

/// Containers whose main process is looked for in one go: on v1 a list of processes takes the
/// kernel some 200 µs. The others have their turn at the next look.
const AT_ONCE: usize = 8;

/// The same at the start, where nothing waits: all of a usual node.
const AT_START: usize = 512;

/// In a group with more processes than this the main one is not looked for: each is a file to read.
const MOST_PROCESSES: usize = 1024;

/// The same where a kill waits to be told of.
const MOST_IN_HASTE: usize = 64;

/// Main processes of which a descriptor is kept; more are read about at each look.
const MOST_HANDLES: usize = 512;

/// The containers of the node.
#[derive(Debug)]
pub struct ContainerInitTracker {
    proc: PathBuf,
    /// Ids in this process namespace are those of the kernel's records.
    global_pids: bool,
    by_cgroup: BTreeMap<u64, TrackedContainer>,
    /// Up to here it was looked for main processes last: containers without any process must not
    /// keep the others from their turn.
    turn: u64,
    /// How many the next look may look for.
    at_once: usize,
}

/// A container that was seen in the tree.
#[derive(Debug)]
struct TrackedContainer {
    pod: Box<str>,
    id: Box<str>,
    /// Its name, if the pods' statuses ever told it.
    name: Option<Box<str>>,
    /// Other containers of the pod have names, so one without is its sandbox.
    siblings_named: bool,
    group: PathBuf,
    main: Option<InitProcess>,
    /// Of the main process.
    handle: Option<ProcessHandle>,
    ended: bool,
}

/// A main process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InitProcess {
    pid: u32,
    started: u64,
}

impl ContainerInitTracker {
    /// Tracks no container yet; `proc` is the folder of the proc file system.
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            global_pids: sees_global_pids(proc),
            by_cgroup: BTreeMap::new(),
            turn: 0,
            at_once: AT_START,
        }
    }

    /// Takes in the tree as it was just read; the containers that have ended since.
    pub fn update(&mut self, now: Timestamp, sampler: &Sampler, pod_index: &PodIndex) -> Vec<ContainerEnded> {
        let mut ends = Vec::new();
        let present = self.adopt(sampler, pod_index);
        self.by_cgroup.retain(|cgroup, watched| {
            let stays = present.contains(cgroup);
            if !stays && !watched.ended {
                ends.extend(watched.end(now, EndSeen::Cgroup, None));
            }
            stays
        });
        // Ids of another process namespace may stand for somebody else here.
        let mut spare = if self.global_pids { MOST_HANDLES } else { 0 };
        for watched in self.by_cgroup.values_mut().filter(|watched| !watched.ended) {
            if let Some(last) = watched.has_ended(&self.proc, spare > 0) {
                watched.ended = true;
                ends.extend(watched.end(now, EndSeen::Process, last));
            }
            spare = spare.saturating_sub(usize::from(watched.handle.is_some()));
        }
        self.find_mains();
        ends
    }

    fn find_mains(&mut self) {
        let at_once = std::mem::replace(&mut self.at_once, AT_ONCE);
        let (behind, before) = (self.turn.saturating_add(1).., ..=self.turn);
        let turns = self.by_cgroup.range(behind).chain(self.by_cgroup.range(before));
        let wanting: Vec<u64> =
            turns.filter(|(_, watched)| watched.main.is_none()).map(|(id, _)| *id).take(at_once).collect();
        for id in wanting {
            if let Some(watched) = self.by_cgroup.get_mut(&id) {
                watched.main = find_main(&self.proc, &watched.group, MOST_PROCESSES, None);
            }
            self.turn = id;
        }
    }

    /// What a victim was to the container in whose group it was.
    pub fn victim(&mut self, container: u64, tgid: u32) -> OomVictimRole {
        let Some(watched) = self.by_cgroup.get_mut(&container).filter(|_| self.global_pids) else {
            return OomVictimRole::Unknown;
        };
        if watched.main.is_none() {
            // It may not have been noted yet; what is not in the list any more cannot be judged.
            watched.main = find_main(&self.proc, &watched.group, MOST_IN_HASTE, Some(tgid));
        }
        match watched.main {
            Some(main) if main.pid == tgid => OomVictimRole::Main,
            Some(_) => OomVictimRole::Child,
            None => OomVictimRole::Unknown,
        }
    }

    fn adopt(&mut self, sampler: &Sampler, pod_index: &PodIndex) -> BTreeSet<u64> {
        let mut present = BTreeSet::new();
        for pod in &sampler.pods().pods {
            let known = pod_index.pod_of(pod).map(|known| &known.pod);
            let named = |id: &str| pod_index.named(id).is_some();
            let siblings_named = pod.containers.iter().any(|container| named(&container.id));
            let containers = pod.containers.iter().filter(|it| it.kind == ContainerKind::Container);
            for container in containers {
                present.insert(container.cgroup_id);
                let watched = self.by_cgroup.entry(container.cgroup_id).or_insert_with(|| TrackedContainer {
                    pod: Box::default(),
                    id: container.id.clone(),
                    name: None,
                    siblings_named,
                    group: sampler.root().memory.join(&container.path),
                    main: None,
                    handle: None,
                    ended: false,
                });
                watched.siblings_named |= siblings_named;
                // Each look comes by here: what it knows already it does not write again.
                if let Some(name) = pod_index.named(&container.id)
                    && watched.name.as_deref() != Some(name)
                {
                    watched.name = Some(name.into());
                }
                match known {
                    Some(pod) if watched.pod == pod.uid => {}
                    Some(pod) => watched.pod = pod.uid.clone(),
                    None if watched.pod.is_empty() => watched.pod = pod.uid.as_str().into(),
                    None => {}
                }
            }
        }
        present
    }
}

impl TrackedContainer {
    /// Whether the main process is there no more, and what the kernel still knows of it. Keeps a
    /// descriptor of it for the next time, if it may.
    fn has_ended(&mut self, proc: &Path, may_keep: bool) -> Option<Option<Process>> {
        let main = self.main?;
        if self.handle.as_ref().is_some_and(ProcessHandle::lives) {
            return None;
        }
        // First the descriptor and then the look: so it is of the process that is looked at.
        let handle = may_keep.then(|| ProcessHandle::open(main.pid)).flatten();
        let ended = main.has_ended(proc);
        self.handle = handle.filter(|_| ended.is_none());
        ended
    }

    /// Its end; none for a pod's sandbox, which is no container of it.
    fn end(&self, at: Timestamp, seen: EndSeen, last: Option<Process>) -> Option<ContainerEnded> {
        let container = match &self.name {
            Some(name) => name.clone(),
            None if self.siblings_named => return None,
            None => crate::pod_index::short(&self.id).into(),
        };
        let (exit_code, signal) = last.map_or((None, None), |last| last.exit());
        Some(ContainerEnded {
            at: Some(at),
            pod: self.pod.clone(),
            container,
            instance: Some(self.id.clone()),
            seen,
            exit_code,
            signal,
            ..ContainerEnded::default()
        })
    }
}

impl InitProcess {
    /// Whether it is there no more, and what the kernel still knows of it.
    fn has_ended(self, proc: &Path) -> Option<Option<Process>> {
        match Process::read(proc, self.pid) {
            Ok(process) if process.started != self.started => Some(None),
            Ok(process) => process.ended.map(|_| Some(process)),
            Err(why) => is_gone(why).then_some(None),
        }
    }
}

/// The main process of a group of at most so many, if all that is needed to tell can be read. With
/// `among` only if that process is still there to be compared.
fn find_main(proc: &Path, group: &Path, most: usize, among: Option<u32>) -> Option<InitProcess> {
    let mut pids = read_processes(group).ok()?;
    pids.sort_unstable();
    let has = |pid: u32| pids.binary_search(&pid).is_ok();
    if pids.len() > most || has(0) || among.is_some_and(|pid| !has(pid)) {
        return None;
    }
    let mut oldest = None;
    for &pid in &pids {
        match Process::read(proc, pid) {
            Ok(process) if !has(process.parent) => {
                let main = InitProcess { pid, started: process.started };
                let is_older = |other: &InitProcess| (main.started, main.pid) < (other.started, other.pid);
                if oldest.as_ref().is_none_or(is_older) {
                    oldest = Some(main);
                }
            }
            Ok(_) => {}
            // A process that ended meanwhile may have been the one.
            Err(_) => return None,
        }
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        folder: tempfile::TempDir,
    }

    impl World {
        fn new(processes: &[(u32, u32, u64)]) -> Self {
            let world = Self { folder: tempfile::tempdir().unwrap() };
            let pids: String = processes.iter().map(|(pid, ..)| format!("{pid}\n")).collect();
            std::fs::write(world.path().join("cgroup.procs"), pids).unwrap();
            for (pid, parent, started) in processes {
                world.put(*pid, *parent, 'S', *started);
            }
            world
        }

        fn path(&self) -> &Path {
            self.folder.path()
        }

        fn put(&self, pid: u32, parent: u32, state: char, started: u64) {
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
    fn the_main_process_is_the_oldest_whose_parent_is_outside() {
        // An exec'd shell is younger, a child of the main process has a lower id.
        let world = World::new(&[(5, 40, 110), (40, 3, 100), (60, 3, 105)]);
        let main = find_main(world.path(), world.path(), MOST_PROCESSES, None);
        assert_eq!(main, Some(InitProcess { pid: 40, started: 100 }));
        assert_eq!(find_main(world.path(), world.path(), MOST_PROCESSES, Some(5)), main);
        let left = find_main(world.path(), world.path(), MOST_PROCESSES, Some(7));
        assert_eq!(left, None, "it left the group already");
        assert_eq!(find_main(world.path(), world.path(), 2, None), None, "more than there is time for");
    }

    #[test]
    fn what_cannot_be_told_is_unknown() {
        let world = World::new(&[]);
        assert_eq!(find_main(world.path(), world.path(), MOST_PROCESSES, None), None);
        for procs in ["0\n", "40\n"] {
            std::fs::write(world.path().join("cgroup.procs"), procs).unwrap();
            assert_eq!(find_main(world.path(), world.path(), MOST_PROCESSES, None), None, "{procs:?}");
        }
    }

    #[test]
    fn an_end_is_a_gone_a_dead_or_another_process() {
        let world = World::new(&[(40, 3, 100)]);
        let main = InitProcess { pid: 40, started: 100 };
        assert_eq!(main.has_ended(world.path()), None);
        world.put(40, 3, 'Z', 100);
        assert_eq!(main.has_ended(world.path()).unwrap().unwrap().exit(), (None, Some(9)));
        world.put(40, 3, 'S', 900);
        assert_eq!(main.has_ended(world.path()), Some(None), "the id is used again");
        std::fs::remove_dir_all(world.path().join("40")).unwrap();
        assert_eq!(main.has_ended(world.path()), Some(None));
    }
}
