//! How much the memory of a pod has grown since it was told to end.
//!
//! A process that handles SIGTERM may go on growing for the whole grace period, at gigabytes per second.
//! What counts is the pod's usage less its page cache: the kernel can take page cache back, and a process
//! that writes files before it ends is not what the node is short of. Files in memory (tmpfs, shared
//! memory) are not page cache in this sense. Usage is exact to a batch of charges. Page cache is read
//! from every cgroup that can have some: the statistics of a cgroup above a changing one may be two
//! seconds old.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, pread};

use super::cgroup_procs::{CgroupProcesses, open_group};
use super::cgroup_scope::PinnedCgroup;

/// Between two comparisons: 3 MiB at 3 GB/s.
const PAUSE_NS: u64 = 1_000_000;

/// After a comparison nothing is compared for at least so many times as long as it took.
const REST: u64 = 3;

/// A pod with more cgroups takes too long to read.
const CGROUPS: usize = 64;

/// Room for the text of a `memory.stat`.
const TEXT: usize = 16 << 10;

const USAGE_1: &str = "memory.usage_in_bytes";
const USAGE_2: &str = "memory.current";
const STAT: &str = "memory.stat";

/// Compares the memory of a pod with what it was at SIGTERM.
#[derive(Debug)]
pub(super) struct Growth {
    limit: u64,
    baseline: u64,
    cgroups: Vec<Cgroup>,
    due_ns: u64,
    text: Vec<u8>,
}

/// One of a pod's pinned cgroups.
#[derive(Debug)]
struct Cgroup {
    dir: OwnedFd,
    usage: OwnedFd,
    usage_file: &'static str,
    /// Itself and those below it.
    parts: Vec<Part>,
}

/// A cgroup whose page cache is read.
#[derive(Debug)]
struct Part {
    /// Below the pinned cgroup; empty for that one.
    path: Box<[u8]>,
    stat: OwnedFd,
    /// The last value: what a removed cgroup leaves behind stays charged to the one above it.
    page_cache: u64,
}

/// Why the growth of a pod is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// A file cannot be read.
    Unreadable(&'static str, Errno),
    /// A file does not say what it should.
    Unexpected(&'static str),
    /// The pod has more cgroups than can be read in time.
    TooMany,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("growth since SIGTERM is not watched: ")?;
        match self {
            Self::Unreadable(file, error) => write!(f, "read {file}: {error}"),
            Self::Unexpected(file) => write!(f, "read {file}: unexpected content"),
            Self::TooMany => write!(f, "the pod has more than {CGROUPS} cgroups"),
        }
    }
}

impl Growth {
    /// Takes the baseline. The pod may grow by `limit` bytes.
    ///
    /// # Errors
    /// If the memory of a cgroup that exists cannot be read.
    pub(super) fn since_now(
        groups: &[PinnedCgroup],
        limit: u64,
        members: &mut CgroupProcesses,
    ) -> Result<Self, Unknown> {
        let mut cgroups = Vec::with_capacity(groups.len());
        for group in groups {
            cgroups.extend(Cgroup::open(group.deciding.as_fd())?);
        }
        let mut growth = Self { limit, baseline: 0, cgroups, due_ns: 0, text: vec![0; TEXT] };
        growth.find_parts(members)?;
        growth.baseline = growth.memory()?;
        Ok(growth)
    }

    /// When to compare again: CLOCK_MONOTONIC in nanoseconds.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// By how many bytes the pod has grown, if that is more than it may.
    ///
    /// # Errors
    /// If its memory cannot be read.
    pub(super) fn exceeded(
        &mut self,
        members: &mut CgroupProcesses,
        clock: impl Fn() -> u64,
    ) -> Result<Option<u64>, Unknown> {
        let from_ns = clock();
        let mut grown = self.memory()?.saturating_sub(self.baseline);
        if grown > self.limit {
            // It may be the page cache of a cgroup that was made since.
            self.find_parts(members)?;
            grown = self.memory()?.saturating_sub(self.baseline);
        }
        let now_ns = clock();
        let rest_ns = now_ns.saturating_sub(from_ns).saturating_mul(REST);
        self.due_ns = now_ns.saturating_add(rest_ns.max(PAUSE_NS));
        Ok(Some(grown).filter(|grown| *grown > self.limit))
    }

    /// Usage less page cache. Usage is read first: page cache that comes in between is no growth.
    fn memory(&mut self) -> Result<u64, Unknown> {
        let mut memory = 0_u64;
        for cgroup in &mut self.cgroups {
            memory = memory.saturating_add(cgroup.memory(&mut self.text)?);
        }
        Ok(memory)
    }

    /// Adds the cgroups that are not known yet.
    fn find_parts(&mut self, members: &mut CgroupProcesses) -> Result<(), Unknown> {
        let mut count = 0;
        for cgroup in &mut self.cgroups {
            cgroup.find_parts(members)?;
            count += cgroup.parts.len();
        }
        if count > CGROUPS { Err(Unknown::TooMany) } else { Ok(()) }
    }
}

impl Cgroup {
    /// Nothing if the cgroup is gone.
    fn open(dir: BorrowedFd<'_>) -> Result<Option<Self>, Unknown> {
        let dir = open_group(dir, b"").map_err(|error| Unknown::Unreadable("the cgroup", error))?;
        for usage_file in [USAGE_2, USAGE_1] {
            match open(&dir, usage_file) {
                Ok(usage) => return Ok(Some(Self { dir, usage, usage_file, parts: Vec::new() })),
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(error) => return Err(Unknown::Unreadable(usage_file, error)),
            }
        }
        match open(&dir, "cgroup.procs") {
            Ok(_) => Err(Unknown::Unreadable(USAGE_2, Errno::NOENT)),
            Err(_) => Ok(None),
        }
    }

    /// Bytes; none if the cgroup is gone, and its processes with it.
    fn memory(&mut self, text: &mut [u8]) -> Result<u64, Unknown> {
        let usage = match read(&self.usage, text) {
            Ok(said) => number(said).ok_or(Unknown::Unexpected(self.usage_file))?,
            Err(Errno::NOENT | Errno::NODEV) => return Ok(0),
            Err(error) => return Err(Unknown::Unreadable(self.usage_file, error)),
        };
        for part in &mut self.parts {
            part.refresh(text)?;
        }
        let page_cache = self.parts.iter().map(|part| part.page_cache).fold(0, u64::saturating_add);
        Ok(usage.saturating_sub(page_cache))
    }

    /// Version 1 gives the page cache of each cgroup, version 2 with that of all below it: so only
    /// those count that have none below them.
    fn find_parts(&mut self, members: &mut CgroupProcesses) -> Result<(), Unknown> {
        members.scan(self.dir.as_fd());
        let is_version_2 = self.usage_file == USAGE_2;
        for path in members.paths() {
            let is_known = self.parts.iter().any(|part| match is_version_2 {
                true => *part.path == *path || is_below(path, &part.path),
                false => *part.path == *path,
            });
            if is_known || (is_version_2 && members.paths().any(|other| is_below(other, path))) {
                continue;
            }
            let stat = open_group(self.dir.as_fd(), path).and_then(|group| open(&group, STAT));
            match stat {
                Ok(stat) => self.parts.push(Part { path: path.into(), stat, page_cache: 0 }),
                // Gone meanwhile, or without a memory controller: its pages are those of the one above.
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(error) => return Err(Unknown::Unreadable(STAT, error)),
            }
            if self.parts.len() > CGROUPS {
                return Err(Unknown::TooMany);
            }
        }
        Ok(())
    }
}

impl Part {
    fn refresh(&mut self, text: &mut [u8]) -> Result<(), Unknown> {
        match read(&self.stat, text) {
            Ok(said) => {
                let value = |key| value(said, key).ok_or(Unknown::Unexpected(STAT));
                self.page_cache = value(b"inactive_file ")?.saturating_add(value(b"active_file ")?);
                Ok(())
            }
            Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(Unknown::Unreadable(STAT, error)),
        }
    }
}

/// Whether a path leads to something below another one; an empty path is above all.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| match above {
        [] => !rest.is_empty(),
        _ => rest.first() == Some(&b'/'),
    })
}

fn open(group: &OwnedFd, file: &str) -> Result<OwnedFd, Errno> {
    openat(group, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn read<'t>(file: &OwnedFd, text: &'t mut [u8]) -> Result<&'t [u8], Errno> {
    loop {
        match pread(file, &mut *text, 0) {
            Ok(count) => return Ok(&text[..count]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

fn value(text: &[u8], key: &[u8]) -> Option<u64> {
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key)).and_then(number)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::CgroupDirs;
    use crate::cgroup_scope::CgroupScope;

    const MIB: u64 = 1 << 20;

    /// A plain folder that passes for a node with a pod.
    struct Pod {
        folder: tempfile::TempDir,
        members: CgroupProcesses,
    }

    impl Pod {
        fn new(files: &[(&str, &str)]) -> Self {
            let pod = Self { folder: tempfile::tempdir().unwrap(), members: CgroupProcesses::new() };
            pod.write("cgroup.procs", "");
            for (file, text) in files {
                pod.write(file, text);
            }
            pod
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.folder.path().join("pod").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn watch(&mut self) -> Result<Growth, Unknown> {
            let dirs = |path: &Path| CgroupDirs { memory: Some(path.to_owned()), ..CgroupDirs::default() };
            let boundary = CgroupScope::open(&dirs(self.folder.path())).unwrap();
            let pinned = boundary.pin(&dirs(&self.folder.path().join("pod"))).unwrap();
            Growth::since_now(&[pinned], 16 * MIB, &mut self.members)
        }

        fn grown_mib(&mut self, growth: &mut Growth) -> Option<u64> {
            let grown = growth.exceeded(&mut self.members, || 0).unwrap();
            grown.map(|bytes| bytes / MIB)
        }
    }

    fn bytes(mib: u64) -> String {
        format!("{}\n", mib * MIB)
    }

    fn stat(inactive_mib: u64, active_mib: u64) -> String {
        let (inactive, active) = (inactive_mib * MIB, active_mib * MIB);
        // `total_` has that of the cgroups below as well, and is no other key's end.
        format!("cache 1\ninactive_file {inactive}\nactive_file {active}\ntotal_inactive_file 9\n")
    }

    #[test]
    fn more_than_the_limit_since_the_baseline_is_growth() {
        for usage in [USAGE_1, USAGE_2] {
            let mut pod = Pod::new(&[(usage, &bytes(100)), (STAT, &stat(0, 0))]);
            let mut growth = pod.watch().unwrap();
            for (mib, expected) in [(100, None), (116, None), (40, None), (110, None), (117, Some(17))] {
                pod.write(usage, &bytes(mib));
                assert_eq!(pod.grown_mib(&mut growth), expected, "{mib}");
            }
            assert_eq!(growth.due_ns(), PAUSE_NS);
        }
    }

    #[test]
    fn page_cache_counts_for_nothing_also_in_cgroups_made_since() {
        // By version 1 each cgroup has its own, by version 2 those below a cgroup are its own as well.
        for (usage, own) in [(USAGE_1, 0), (USAGE_2, 60)] {
            let files = [(usage, &bytes(100)), (STAT, &stat(own, 0)), ("a/memory.stat", &stat(20, 30))];
            let mut pod = Pod::new(&files.map(|(file, text)| (file, text.as_str())));
            let mut growth = pod.watch().unwrap();
            pod.write(usage, &bytes(150));
            pod.write("a/memory.stat", &stat(60, 40));
            assert_eq!(pod.grown_mib(&mut growth), None);
            // What a removed cgroup has left is page cache still.
            std::fs::remove_dir_all(pod.folder.path().join("pod/a")).unwrap();
            pod.write("b/c/memory.stat", &stat(30, 0));
            pod.write("b/memory.stat", &stat(if usage == USAGE_1 { 0 } else { 30 }, 0));
            pod.write(usage, &bytes(180));
            assert_eq!(pod.grown_mib(&mut growth), None);
            pod.write(usage, &bytes(197));
            assert_eq!(pod.grown_mib(&mut growth), Some(17));
        }
    }

    #[test]
    fn page_cache_that_makes_room_for_memory_hides_no_growth() {
        let mut pod = Pod::new(&[(USAGE_2, &bytes(100)), (STAT, &stat(80, 0))]);
        let mut growth = pod.watch().unwrap();
        pod.write(STAT, &stat(60, 0));
        assert_eq!(pod.grown_mib(&mut growth), Some(20));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let error = |files: &[(&str, &str)]| Pod::new(files).watch().unwrap_err().to_string();
        let said = error(&[(STAT, "inactive_file 0\nactive_file 0\n")]);
        assert!(said.contains("read memory.current: No such file"), "{said}");
        let said = error(&[(USAGE_2, "many\n"), (STAT, "inactive_file 0\nactive_file 0\n")]);
        assert!(said.ends_with("read memory.current: unexpected content"), "{said}");
        let said = error(&[(USAGE_2, "5\n"), (STAT, "inactive_file 0\nfile 0\n")]);
        assert!(said.ends_with("read memory.stat: unexpected content"), "{said}");
        let mut pod = Pod::new(&[(USAGE_1, "5\n"), (STAT, &stat(0, 0))]);
        for n in 0..CGROUPS {
            pod.write(&format!("{n}/{STAT}"), &stat(0, 0));
        }
        assert_eq!(pod.watch().unwrap_err(), Unknown::TooMany);
    }

    #[test]
    fn comparing_takes_at_most_a_part_of_the_time() {
        let mut pod = Pod::new(&[(USAGE_2, "5\n"), (STAT, &stat(0, 0))]);
        let mut growth = pod.watch().unwrap();
        let now_ns = std::cell::Cell::new(0);
        let clock = || now_ns.replace(now_ns.get() + 2_000_000);
        growth.exceeded(&mut pod.members, clock).unwrap();
        assert_eq!(growth.due_ns(), 2_000_000 + 3 * 2_000_000);
    }
}
