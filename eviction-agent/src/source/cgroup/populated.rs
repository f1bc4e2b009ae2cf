//! Whether anybody is left in a group.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use crate::source::file::read_once;

/// Runtimes nest no deeper below a pod.
const DEEPEST: usize = 8;

/// A list of all processes that there can be.
const LONGEST: usize = 64 << 20;

/// Whether the group, or one below it, has a process. One that cannot be read has none.
pub fn is_populated(group: &Path) -> bool {
    // From 7.2 on the list ends before the memory is back; the events of version 2 do not.
    let events = read_once(&group.join("cgroup.events"), LONGEST).unwrap_or_default();
    events.split(|byte| *byte == b'\n').any(|line| line == b"populated 1")
        || is_populated_within(group, DEEPEST)
}

fn is_populated_within(group: &Path, deeper: usize) -> bool {
    if read_once(&group.join("cgroup.procs"), LONGEST).is_ok_and(|text| !text.is_empty()) {
        return true;
    }
    let Some(deeper) = deeper.checked_sub(1) else { return false };
    let Ok(inside) = fs::read_dir(group) else { return false };
    let groups = inside.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.into_iter().any(|group| is_populated_within(&group.path(), deeper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_anywhere_below_counts() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join("pod");
        assert!(!is_populated(&pod), "there is none");
        fs::create_dir_all(pod.join("main/inner")).unwrap();
        for group in ["", "main", "main/inner"] {
            fs::write(pod.join(group).join("cgroup.procs"), "").unwrap();
        }
        assert!(!is_populated(&pod));
        fs::write(pod.join("main/inner/cgroup.procs"), "17\n").unwrap();
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
