//! Whether anybody is left in a group.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::file::{KeptFile, read_once, retry};
use eviction_core::reading::UnknownReason;

/// Runtimes nest no deeper below a pod.
const DEEPEST: usize = 8;

/// A list of all processes that there can be.
const LONGEST: usize = 64 << 20;

/// Whether the group, or one below it, has a process. One that cannot be read has none.
pub fn is_populated(group: &Path) -> bool {
    // From 7.2 on the list ends before the memory is back; the events of version 2 do not.
    let events = read_once(&group.join("cgroup.events"), LONGEST).unwrap_or_default();
    say_populated(&events) || is_populated_within(group, DEEPEST)
}

fn say_populated(events: &[u8]) -> bool {
    events.split(|byte| *byte == b'\n').any(|line| line == b"populated 1")
}

/// The folders in a folder; none in one that cannot be read.
fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn is_populated_within(group: &Path, deeper: usize) -> bool {
    if read_once(&group.join("cgroup.procs"), LONGEST).is_ok_and(|text| !text.is_empty()) {
        return true;
    }
    let Some(deeper) = deeper.checked_sub(1) else { return false };
    folders_in(group).any(|group| is_populated_within(&group, deeper))
}

/// So many groups are kept open.
const MOST: usize = 64;

/// Groups that are asked again and again whether anybody is in them: without a look-up of their paths,
/// and without the allocator.
///
/// Their folders are kept open, and not the lists of processes: whoever reads one of version 1 through
/// the same descriptor, and more often than once a second, is shown the same list for ever
/// (`cgroup_pidlist_start` in kernel/cgroup/cgroup-v1.c).
#[derive(Debug, Default)]
pub struct PopulatedWatch {
    tops: Vec<OwnedFd>,
    inside: Vec<OwnedFd>,
}

impl PopulatedWatch {
    /// Watches this group, and those that are below it now, as far as there is room for them.
    pub fn add(&mut self, group: &Path) {
        if let Some(folder) = self.open(group) {
            self.tops.push(folder);
            self.add_inside(group, DEEPEST);
        }
    }

    fn add_inside(&mut self, group: &Path, deeper: usize) {
        let Some(deeper) = deeper.checked_sub(1) else { return };
        for path in folders_in(group) {
            let Some(folder) = self.open(&path) else { continue };
            self.inside.push(folder);
            self.add_inside(&path, deeper);
        }
    }

    fn open(&self, group: &Path) -> Option<OwnedFd> {
        const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let has_room = self.tops.len() + self.inside.len() < MOST;
        has_room.then(|| retry(|| rustix::fs::open(group, FOLDER, Mode::empty())).ok()).flatten()
    }

    /// Whether somebody is known to be in one of them. If not, [`is_populated`] knows it for certain.
    pub fn are_populated(&self) -> bool {
        self.tops.iter().any(is_said_to_be_populated)
            || self.tops.iter().chain(&self.inside).any(has_processes)
    }
}

fn is_said_to_be_populated(group: &OwnedFd) -> bool {
    let mut buffer = [0; 256];
    let events = KeptFile::open_at(group.as_fd(), c"cgroup.events");
    // Version 1 has none: then the lists of processes say it.
    events.is_ok_and(|events| events.read(&mut buffer).is_ok_and(say_populated))
}

fn has_processes(group: &OwnedFd) -> bool {
    let Ok(list) = KeptFile::open_at(group.as_fd(), c"cgroup.procs") else { return false };
    match list.read(&mut [0; 32]) {
        Ok(text) => !text.is_empty(),
        // A part of it is enough.
        Err(why) => why == UnknownReason::Unparsable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_anywhere_below_counts() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join("pod");
        // Asked in both ways.
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
    fn no_more_are_watched_than_there_is_room_for() {
        let folder = tempfile::tempdir().unwrap();
        for nth in 0..2 * MOST {
            fs::create_dir(folder.path().join(nth.to_string())).unwrap();
        }
        let mut watched = PopulatedWatch::default();
        watched.add(folder.path());
        assert_eq!((watched.tops.len(), watched.inside.len()), (1, MOST - 1));
        fs::write(folder.path().join("cgroup.procs"), "1\n").unwrap();
        assert!(watched.are_populated());
    }
}
