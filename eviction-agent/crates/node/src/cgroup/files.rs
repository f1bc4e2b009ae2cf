//! The control files of a cgroup: parses their text, and determines whether there are processes.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use crate::file::{OpenFile, parse_keys, parse_number_line, read_once};
use eviction_core::reading::{Reading, UnknownReason};

/// The version of the hierarchy that a controller is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Parses `memory.limit_in_bytes`, `memory.max`, `memory.high` in bytes; `pids.max` in tasks. `None` if no limit is
/// set.
///
/// v1 shows no limit as the greatest signed long rounded down to a page (PAGE_COUNTER_MAX in
/// mm/page_counter.c), whatever the page size; v2 shows it as `max`.
pub fn parse_limit(text: &[u8]) -> Result<Option<u64>, UnknownReason> {
    const LARGEST_PAGE: u64 = 1 << 20;
    if text.strip_suffix(b"\n").unwrap_or(text) == b"max" {
        return Ok(None);
    }
    let value = parse_number_line(text)?;
    Ok((value <= i64::MAX as u64 - LARGEST_PAGE).then_some(value))
}

/// The values of `memory.stat` for a cgroup with all cgroups below it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStat {
    /// Anonymous memory (`anon`, `total_rss`).
    pub anon: Reading<u64>,
    /// Page cache that has not been used lately; the kubelet subtracts it from the usage.
    pub inactive_file: Reading<u64>,
    /// Page cache in use.
    pub active_file: Reading<u64>,
}

impl MemoryStat {
    /// Returns unknown values, for before the first read and after a read that failed.
    pub fn unknown(why: UnknownReason) -> Self {
        Self::of([Reading::Unknown(why); 3])
    }

    /// Creates it from the values in the order of [`Self::values`].
    pub(super) fn of([anon, inactive_file, active_file]: [Reading<u64>; 3]) -> Self {
        Self { anon, inactive_file, active_file }
    }

    /// Returns all values.
    pub(super) fn values(&self) -> [Reading<u64>; 3] {
        [self.anon, self.inactive_file, self.active_file]
    }
}

/// Parses `memory.stat`. Each value is parsed independently: one that is missing, repeated or no number is
/// unknown. Other lines are ignored. A text that ends inside a line was cut off, so all of its values are
/// unknown.
pub fn parse_memory_stat(version: Version, text: &[u8]) -> MemoryStat {
    let keys: [&[u8]; 3] = match version {
        // v1 has each value twice: of the cgroup alone, and with a prefix for the sum with those below.
        Version::V1 => [b"total_rss", b"total_inactive_file", b"total_active_file"],
        Version::V2 => [b"anon", b"inactive_file", b"active_file"],
    };
    MemoryStat::of(parse_keys(text, keys, None).map(Reading::from))
}

/// Counters of `memory.events` (v2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvents {
    /// How often the limit was reached and an allocation was about to fail.
    pub oom: Reading<u64>,
    /// How many processes the OOM killer killed.
    pub oom_kill: Reading<u64>,
}

/// Parses `memory.events` and `memory.events.local`.
pub fn parse_memory_events(text: &[u8]) -> MemoryEvents {
    let [oom, oom_kill] = parse_keys(text, [b"oom", b"oom_kill"], None).map(Reading::from);
    MemoryEvents { oom, oom_kill }
}

/// Parses `memory.oom_control` (v1): the number of killed processes of this cgroup itself (from 4.13).
pub fn parse_oom_control(text: &[u8]) -> Reading<u64> {
    let [kills] = parse_keys(text, [b"oom_kill"], None);
    kills.into()
}

/// Parses `pids.events`: how many forks the cgroup's limit refused.
pub fn parse_pids_events(text: &[u8]) -> Reading<u64> {
    let [max] = parse_keys(text, [b"max"], None);
    max.into()
}

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
    use Reading::{Known, Unknown};
    use proptest::prelude::*;

    const V2: &[u8] = b"anon 1\nfile 2\nkernel 3\nshmem 4\ninactive_file 5\nactive_file 6\n";
    const V1: &[u8] = b"inactive_file 9\nrss 9\ntotal_cache 2\ntotal_rss 1\ntotal_shmem 4\ntotal_inactive_file 5\ntotal_active_file 6\n";

    #[test]
    fn memory_stat_of_both_versions_is_parsed() {
        let expected = MemoryStat::of([1, 5, 6].map(Known));
        assert_eq!(parse_memory_stat(Version::V2, V2), expected);
        assert_eq!(parse_memory_stat(Version::V1, V1), expected);
    }

    #[test]
    fn bad_memory_stat_is_unknown_and_never_zero() {
        for (text, why) in [
            (&b""[..], UnknownReason::Unparsable),
            (b"\n", UnknownReason::Absent),
            (b"anon 1\nfile 2\n", UnknownReason::Absent),
            (b"inactive_file 1\ninactive_file 1\n", UnknownReason::Unparsable),
            (b"inactive_file 1\ninactive_file 2\ninactive_file 3\n", UnknownReason::Unparsable),
            (b"inactive_file 18446744073709551615\n", UnknownReason::Implausible),
            (b"inactive_file max\n", UnknownReason::Unparsable),
            (b"inactive_file -4096\n", UnknownReason::Implausible),
            (b"inactive_file \n", UnknownReason::Unparsable),
            (b"inactive_file\n", UnknownReason::Unparsable),
            (b"inactive_file 1 kB\n", UnknownReason::Unparsable),
            (b"inactive_file 1", UnknownReason::Unparsable),
            (b"anon 1\ninactive_file 12\nacti", UnknownReason::Unparsable),
            (b"total_inactive_file 1\n", UnknownReason::Absent),
            (b"\xff\xfe\x00\n", UnknownReason::Absent),
        ] {
            assert_eq!(parse_memory_stat(Version::V2, text).inactive_file, Unknown(why), "{text:?}");
        }
        assert_eq!(parse_memory_stat(Version::V1, V2).inactive_file, Unknown(UnknownReason::Absent));
        let junk_elsewhere = b"nonsense\n\nnewer 1 2 3\ninactive_file 7\n";
        assert_eq!(parse_memory_stat(Version::V2, junk_elsewhere).inactive_file, Known(7));
    }

    #[test]
    fn limits_are_parsed() {
        for (text, expected) in [
            ("max\n", Ok(None)),
            ("max", Ok(None)),
            ("9223372036854771712\n", Ok(None)),
            ("9223372036854710272\n", Ok(None)),
            ("0\n", Ok(Some(0))),
            ("536870912\n", Ok(Some(536_870_912))),
            ("-1\n", Err(UnknownReason::Implausible)),
            ("18446744073709551615\n", Err(UnknownReason::Implausible)),
            ("maximum\n", Err(UnknownReason::Unparsable)),
            ("", Err(UnknownReason::Unparsable)),
        ] {
            assert_eq!(parse_limit(text.as_bytes()), expected, "{text:?}");
        }
    }

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

    #[test]
    fn memory_events_and_oom_control_are_parsed() {
        let events = parse_memory_events(b"low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n");
        assert_eq!(events, MemoryEvents { oom: Known(3), oom_kill: Known(4) });
        let absent = parse_memory_events(b"oom 3\n").oom_kill;
        assert_eq!(absent, Unknown(UnknownReason::Absent));
        assert_eq!(parse_oom_control(b"oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Known(7));
        assert_eq!(parse_oom_control(b"oom_kill_disable 0\nunder_oom 0\n"), Unknown(UnknownReason::Absent));
        assert_eq!(parse_oom_control(b"oom_kill 1\noom_kill 1\n"), Unknown(UnknownReason::Unparsable));
        assert_eq!(parse_oom_control(b"oom_kill 1 2\n"), Unknown(UnknownReason::Unparsable));
        assert_eq!(parse_oom_control(b"oom_kill 1"), Unknown(UnknownReason::Unparsable));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>) {
            for version in [Version::V1, Version::V2] {
                parse_memory_stat(version, &bytes);
            }
            parse_memory_events(&bytes);
            parse_oom_control(&bytes);
            let _ = parse_limit(&bytes);
        }

        #[test]
        fn truncated_text_never_changes_a_value(inactive in 0..u64::MAX / 4, cut in 0..200_usize) {
            let whole = format!("anon 1\nfile 2\ninactive_file {inactive}\nactive_file 6\n");
            let part = &whole.as_bytes()[..cut.min(whole.len())];
            if let Known(value) = parse_memory_stat(Version::V2, part).inactive_file {
                prop_assert_eq!(value, inactive);
            }
        }

        #[test]
        fn every_value_of_memory_stat_is_parsed(expected: [u32; 3], order in Just([0, 1, 2]).prop_shuffle()) {
            let keys = ["rss", "inactive_file", "active_file"];
            let text: String = order.iter().map(|i| format!("{} 1\ntotal_{} {}\n", keys[*i], keys[*i], expected[*i])).collect();
            let stat = parse_memory_stat(Version::V1, text.as_bytes());
            prop_assert_eq!(stat.values(), expected.map(|value| Known(u64::from(value))));
        }
    }
}
