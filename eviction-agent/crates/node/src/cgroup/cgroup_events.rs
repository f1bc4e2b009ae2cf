//! Determines whether a cgroup has processes.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::file::{OpenFile, open_path, read_once};
use eviction_core::reading::UnknownReason;

/// The maximum depth of cgroups below a pod; runtimes do not nest deeper.
const MAX_DEPTH: usize = 8;

/// The longest file that is read, in bytes: a list of all possible processes.
const MAX_FILE_BYTES: usize = 64 << 20;

/// Returns whether the cgroup, or one below it, has a process. A cgroup that cannot be read counts as empty.
pub fn is_populated(group: &Path) -> bool {
    // From 7.2 on the list of processes is empty before the memory is returned; the events of v2 are not.
    let events = read_once(&group.join("cgroup.events"), MAX_FILE_BYTES).unwrap_or_default();
    has_populated_event(&events) || is_populated_within(group, MAX_DEPTH)
}

fn has_populated_event(events: &[u8]) -> bool {
    events.split(|byte| *byte == b'\n').any(|line| line == b"populated 1")
}

/// Returns the folders in a folder; none if it cannot be read.
fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn is_populated_within(group: &Path, depth_left: usize) -> bool {
    if read_once(&group.join("cgroup.procs"), MAX_FILE_BYTES).is_ok_and(|text| !text.is_empty()) {
        return true;
    }
    let Some(depth_left) = depth_left.checked_sub(1) else { return false };
    folders_in(group).any(|group| is_populated_within(&group, depth_left))
}

/// The most cgroups that are kept open.
const MAX_WATCHED: usize = 64;

/// Checks repeatedly whether cgroups have processes, without path lookups and without the allocator.
///
/// It keeps the folders open, not the lists of processes: a v1 list that is read through the same descriptor
/// more often than once a second always shows the same content (`cgroup_pidlist_start` in
/// kernel/cgroup/cgroup-v1.c).
#[derive(Debug, Default)]
pub struct PopulatedWatch {
    roots: Vec<OwnedFd>,
    nested: Vec<OwnedFd>,
}

impl PopulatedWatch {
    /// Watches this cgroup and those that are below it now, up to `MAX_WATCHED` in total.
    pub fn add(&mut self, group: &Path) {
        if let Some(folder) = self.open(group) {
            self.roots.push(folder);
            self.add_nested(group, MAX_DEPTH);
        }
    }

    fn add_nested(&mut self, group: &Path, depth_left: usize) {
        let Some(depth_left) = depth_left.checked_sub(1) else { return };
        for path in folders_in(group) {
            let Some(folder) = self.open(&path) else { continue };
            self.nested.push(folder);
            self.add_nested(&path, depth_left);
        }
    }

    fn open(&self, group: &Path) -> Option<OwnedFd> {
        let has_room = self.roots.len() + self.nested.len() < MAX_WATCHED;
        has_room.then(|| open_path(group, OFlags::PATH | OFlags::DIRECTORY).ok()).flatten()
    }

    /// Returns whether one of the cgroups is known to have processes. If not, [`is_populated`] gives the
    /// certain result.
    pub fn are_populated(&self) -> bool {
        self.roots.iter().any(reports_populated) || self.roots.iter().chain(&self.nested).any(has_processes)
    }
}

fn reports_populated(group: &OwnedFd) -> bool {
    let mut buffer = [0; 256];
    let events = OpenFile::open_at(group.as_fd(), c"cgroup.events");
    // v1 has no such file; then the lists of processes are read.
    events.is_ok_and(|events| events.read(&mut buffer).is_ok_and(has_populated_event))
}

fn has_processes(group: &OwnedFd) -> bool {
    let Ok(list) = OpenFile::open_at(group.as_fd(), c"cgroup.procs") else { return false };
    match list.read(&mut [0; 32]) {
        Ok(text) => !text.is_empty(),
        // The beginning of the list is enough.
        Err(why) => why == UnknownReason::Unparsable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_in_any_nested_cgroup_makes_the_pod_populated() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join("pod");
        // Checks with both methods.
        let is_populated = |pod: &Path, watched: &PopulatedWatch| {
            let is_populated = is_populated(pod);
            assert_eq!(watched.are_populated(), is_populated);
            is_populated
        };
        let mut watched = PopulatedWatch::default();
        watched.add(&pod);
        assert!(!is_populated(&pod, &watched), "there is none");
        fs::create_dir_all(pod.join("main/inner")).unwrap();
        watched.add(&pod);
        for group in ["", "main", "main/inner"] {
            fs::write(pod.join(group).join("cgroup.procs"), "").unwrap();
        }
        assert!(!is_populated(&pod, &watched));
        fs::write(pod.join("main/inner/cgroup.procs"), "17\n".repeat(100)).unwrap();
        assert!(is_populated(&pod, &watched));
        fs::write(pod.join("cgroup.procs"), "0\n").unwrap();
        assert!(is_populated(&pod, &watched), "also of another PID namespace");
        fs::remove_dir_all(pod.join("main")).unwrap();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        for (events, populated) in [("populated 0\nfrozen 0\n", false), ("populated 1\nfrozen 0\n", true)] {
            fs::write(pod.join("cgroup.events"), events).unwrap();
            assert_eq!(is_populated(&pod, &watched), populated);
        }
    }

    #[test]
    fn number_of_watched_cgroups_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        for nth in 0..2 * MAX_WATCHED {
            fs::create_dir(folder.path().join(nth.to_string())).unwrap();
        }
        let mut watched = PopulatedWatch::default();
        watched.add(folder.path());
        assert_eq!((watched.roots.len(), watched.nested.len()), (1, MAX_WATCHED - 1));
        fs::write(folder.path().join("cgroup.procs"), "1\n").unwrap();
        assert!(watched.are_populated());
    }
}
