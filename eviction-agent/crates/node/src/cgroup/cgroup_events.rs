//! Determines whether a cgroup has processes.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use crate::file::{OpenFile, read_once};
use eviction_core::reading::UnknownReason;

/// The maximum depth of cgroups below a pod; runtimes do not nest deeper.
const MAX_DEPTH: usize = 8;

/// Returns whether the cgroup, or one below it, has a process. A cgroup that cannot be read counts as empty.
pub fn is_populated(group: &Path) -> bool {
    // From 7.2 on the list of processes is empty before the memory is returned; the events of v2 are not.
    let events = read_once(&group.join("cgroup.events"), 4096).unwrap_or_default();
    events.split(|byte| *byte == b'\n').any(|line| line == b"populated 1") || has_processes(group, MAX_DEPTH)
}

fn has_processes(group: &Path, depth_left: usize) -> bool {
    let list = OpenFile::open(&group.join("cgroup.procs"));
    match list.and_then(|list| list.read(&mut [0; 32]).map(|text| !text.is_empty())) {
        // The beginning of the list is enough.
        Ok(true) | Err(UnknownReason::Unparsable) => return true,
        Ok(false) | Err(_) => {}
    }
    let Some(depth_left) = depth_left.checked_sub(1) else { return false };
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let mut folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.any(|folder| has_processes(&folder.path(), depth_left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_in_any_nested_cgroup_makes_the_pod_populated() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join("pod");
        assert!(!is_populated(&pod), "there is none");
        fs::create_dir_all(pod.join("main/inner")).unwrap();
        for group in ["", "main", "main/inner"] {
            fs::write(pod.join(group).join("cgroup.procs"), "").unwrap();
        }
        assert!(!is_populated(&pod));
        fs::write(pod.join("main/inner/cgroup.procs"), "17\n".repeat(100)).unwrap();
        assert!(is_populated(&pod));
        fs::write(pod.join("cgroup.procs"), "0\n").unwrap();
        assert!(is_populated(&pod), "also of another PID namespace");
        fs::remove_dir_all(pod.join("main")).unwrap();
        fs::write(pod.join("cgroup.procs"), "").unwrap();
        for (events, populated) in [("populated 0\nfrozen 0\n", false), ("populated 1\nfrozen 0\n", true)] {
            fs::write(pod.join("cgroup.events"), events).unwrap();
            assert_eq!(is_populated(&pod), populated);
        }
    }
}
