//! Measures how much the memory of a pod has grown since SIGTERM.
//!
//! A process that handles SIGTERM may continue to allocate for the whole grace period, at gigabytes per
//! second. The measure is the pod's usage minus its page cache: the kernel can reclaim page cache, and a
//! process that writes files before it ends does not cause the memory shortage. Files in memory (tmpfs,
//! shared memory) do not count as page cache. Usage is exact to a batch of charges. Page cache is read from
//! every cgroup that can have some, because the statistics of a parent of a changing cgroup may be two
//! seconds old.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::{Errno, pread};

use super::cgroup::{PinnedCgroup, open_file, open_group};
use super::cgroup_procs::CgroupProcesses;

/// The pause between two comparisons: 3 MiB of growth at 3 GB/s.
const PAUSE_NS: u64 = 1_000_000;

/// The minimum pause after a comparison, as a multiple of its duration.
const PAUSE_FACTOR: u64 = 3;

/// The maximum number of cgroups of a pod; more take too long to read.
const MAX_CGROUPS: usize = 64;

/// The buffer size for a `memory.stat`, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

const USAGE_1: &str = "memory.usage_in_bytes";
const USAGE_2: &str = "memory.current";
const STAT: &str = "memory.stat";
const UNEXPECTED: &str = "unexpected content";

/// Compares the memory of a pod with the value at SIGTERM.
#[derive(Debug)]
pub(super) struct Growth {
    limit: u64,
    baseline: u64,
    cgroups: Vec<Cgroup>,
    /// The time of the next comparison: CLOCK_MONOTONIC in nanoseconds.
    pub(super) due_ns: u64,
    text: Vec<u8>,
}

/// One of a pod's pinned cgroups.
#[derive(Debug)]
struct Cgroup {
    dir: OwnedFd,
    usage: OwnedFd,
    usage_file: &'static str,
    /// The cgroup itself and those below it.
    parts: Vec<Part>,
}

/// A cgroup whose page cache is read.
#[derive(Debug)]
struct Part {
    /// The path below the pinned cgroup; empty for that cgroup itself.
    path: Box<[u8]>,
    stat: OwnedFd,
    /// The last value, in bytes. It is kept when the cgroup is removed, since its page cache stays charged to
    /// the parent.
    page_cache: u64,
}

impl Growth {
    /// Reads the baseline. The pod may grow by `limit` bytes.
    ///
    /// # Errors
    /// If the memory of a cgroup that exists cannot be read.
    pub(super) fn start(
        groups: &[PinnedCgroup],
        limit: u64,
        processes: &mut CgroupProcesses,
    ) -> Result<Self, String> {
        let mut cgroups = Vec::with_capacity(groups.len());
        for group in groups {
            cgroups.extend(Cgroup::open(group)?);
        }
        let mut growth = Self { limit, baseline: 0, cgroups, due_ns: 0, text: vec![0; BUFFER_BYTES] };
        growth.find_parts(processes)?;
        growth.baseline = growth.memory()?;
        Ok(growth)
    }

    /// Returns the growth of the pod in bytes if it exceeds the limit.
    ///
    /// # Errors
    /// If the memory of the pod cannot be read.
    pub(super) fn exceeded(
        &mut self,
        processes: &mut CgroupProcesses,
        clock: impl Fn() -> u64,
    ) -> Result<Option<u64>, String> {
        let from_ns = clock();
        let mut grown = self.memory()?.saturating_sub(self.baseline);
        if grown > self.limit {
            // The growth may be page cache of a cgroup that was created since then.
            self.find_parts(processes)?;
            grown = self.memory()?.saturating_sub(self.baseline);
        }
        let now_ns = clock();
        let pause_ns = now_ns.saturating_sub(from_ns).saturating_mul(PAUSE_FACTOR);
        self.due_ns = now_ns.saturating_add(pause_ns.max(PAUSE_NS));
        Ok(Some(grown).filter(|grown| *grown > self.limit))
    }

    /// Returns usage minus page cache. Usage is read first, so page cache that is added in between does not
    /// count as growth.
    fn memory(&mut self) -> Result<u64, String> {
        let Self { cgroups, text, .. } = self;
        cgroups.iter_mut().try_fold(0_u64, |sum, cgroup| Ok(sum.saturating_add(cgroup.memory(text)?)))
    }

    /// Adds the cgroups that are not in `parts` yet.
    fn find_parts(&mut self, processes: &mut CgroupProcesses) -> Result<(), String> {
        let mut count = 0;
        for cgroup in &mut self.cgroups {
            cgroup.find_parts(processes)?;
            count += cgroup.parts.len();
        }
        if count > MAX_CGROUPS { Err(too_many()) } else { Ok(()) }
    }
}

impl Cgroup {
    /// Opens a cgroup. Returns `None` if it is removed.
    fn open(group: &PinnedCgroup) -> Result<Option<Self>, String> {
        let dir = open_group(group.memory.as_fd(), b"").map_err(|error| unreadable("the cgroup", error))?;
        let usage_file = if group.is_unified { USAGE_2 } else { USAGE_1 };
        match open_file(&dir, usage_file) {
            Ok(usage) => Ok(Some(Self { dir, usage, usage_file, parts: Vec::new() })),
            Err(Errno::NOENT | Errno::NODEV) if open_file(&dir, "cgroup.procs").is_err() => Ok(None),
            Err(error) => Err(unreadable(usage_file, error)),
        }
    }

    /// Returns the memory in bytes; 0 if the cgroup is removed, and its processes with it.
    fn memory(&mut self, text: &mut [u8]) -> Result<u64, String> {
        let usage = match read(&self.usage, text) {
            Ok(content) => number(content).ok_or_else(|| unreadable(self.usage_file, UNEXPECTED))?,
            Err(Errno::NOENT | Errno::NODEV) => return Ok(0),
            Err(error) => return Err(unreadable(self.usage_file, error)),
        };
        for part in &mut self.parts {
            part.refresh(text)?;
        }
        let page_cache = self.parts.iter().map(|part| part.page_cache).fold(0, u64::saturating_add);
        Ok(usage.saturating_sub(page_cache))
    }

    /// Adds the cgroups below that are not known yet. In cgroup v1 the page cache of a cgroup excludes that
    /// of its children. In cgroup v2 it includes it, so only cgroups without children count.
    fn find_parts(&mut self, processes: &mut CgroupProcesses) -> Result<(), String> {
        processes.scan(self.dir.as_fd());
        let is_version_2 = self.usage_file == USAGE_2;
        for path in processes.paths() {
            let is_known = self.parts.iter().any(|part| match is_version_2 {
                true => *part.path == *path || is_below(path, &part.path),
                false => *part.path == *path,
            });
            if is_known || (is_version_2 && processes.paths().any(|other| is_below(other, path))) {
                continue;
            }
            let stat = open_group(self.dir.as_fd(), path).and_then(|group| open_file(&group, STAT));
            match stat {
                Ok(stat) => self.parts.push(Part { path: path.into(), stat, page_cache: 0 }),
                // Removed in the meantime, or without a memory controller: its pages count for the parent.
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(error) => return Err(unreadable(STAT, error)),
            }
            if self.parts.len() > MAX_CGROUPS {
                return Err(too_many());
            }
        }
        Ok(())
    }
}

impl Part {
    fn refresh(&mut self, text: &mut [u8]) -> Result<(), String> {
        match read(&self.stat, text) {
            Ok(content) => {
                let value = |key| value(content, key).ok_or_else(|| unreadable(STAT, UNEXPECTED));
                self.page_cache = value(b"inactive_file ")?.saturating_add(value(b"active_file ")?);
                Ok(())
            }
            Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(unreadable(STAT, error)),
        }
    }
}

fn unreadable(file: &str, why: impl fmt::Display) -> String {
    format!("growth since SIGTERM is not watched: read {file}: {why}")
}

fn too_many() -> String {
    format!("growth since SIGTERM is not watched: the pod has more than {MAX_CGROUPS} cgroups")
}

/// Whether a path is below another one. Every path is below an empty path.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| match above {
        [] => !rest.is_empty(),
        _ => rest.first() == Some(&b'/'),
    })
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
    use crate::{CgroupDirs, CgroupScope};

    const MIB: u64 = 1 << 20;

    /// A plain directory that takes the place of a node with a pod.
    struct Pod {
        folder: tempfile::TempDir,
        processes: CgroupProcesses,
    }

    impl Pod {
        fn new(files: &[(&str, &str)]) -> Self {
            let pod = Self { folder: tempfile::tempdir().unwrap(), processes: CgroupProcesses::new() };
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

        fn watch(&mut self) -> Result<Growth, String> {
            let is_unified = !self.folder.path().join("pod").join(USAGE_1).exists();
            let dirs = |path: &Path| {
                let unified = is_unified.then(|| path.to_owned());
                CgroupDirs { memory: path.to_owned(), unified, ..CgroupDirs::default() }
            };
            let scope = CgroupScope::open(&dirs(self.folder.path())).unwrap();
            let pinned = scope.pin(&dirs(&self.folder.path().join("pod"))).unwrap().unwrap();
            Growth::start(&[pinned], 16 * MIB, &mut self.processes)
        }

        fn grown_mib(&mut self, growth: &mut Growth) -> Option<u64> {
            let grown = growth.exceeded(&mut self.processes, || 0).unwrap();
            grown.map(|bytes| bytes / MIB)
        }
    }

    fn bytes(mib: u64) -> String {
        format!("{}\n", mib * MIB)
    }

    fn stat(inactive_mib: u64, active_mib: u64) -> String {
        let (inactive, active) = (inactive_mib * MIB, active_mib * MIB);
        // `total_` includes the cgroups below, and must not match as the end of another key.
        format!("cache 1\ninactive_file {inactive}\nactive_file {active}\ntotal_inactive_file 9\n")
    }

    #[test]
    fn growth_beyond_the_limit_since_the_baseline_is_reported() {
        for usage in [USAGE_1, USAGE_2] {
            let mut pod = Pod::new(&[(usage, &bytes(100)), (STAT, &stat(0, 0))]);
            let mut growth = pod.watch().unwrap();
            for (mib, expected) in [(100, None), (116, None), (40, None), (110, None), (117, Some(17))] {
                pod.write(usage, &bytes(mib));
                assert_eq!(pod.grown_mib(&mut growth), expected, "{mib}");
            }
            assert_eq!(growth.due_ns, PAUSE_NS);
        }
    }

    #[test]
    fn page_cache_is_not_growth_even_in_new_cgroups() {
        // In cgroup v1 each cgroup has its own page cache. In v2 the value of a cgroup includes its children.
        for (usage, own) in [(USAGE_1, 0), (USAGE_2, 60)] {
            let files = [(usage, &bytes(100)), (STAT, &stat(own, 0)), ("a/memory.stat", &stat(20, 30))];
            let mut pod = Pod::new(&files.map(|(file, text)| (file, text.as_str())));
            let mut growth = pod.watch().unwrap();
            pod.write(usage, &bytes(150));
            pod.write("a/memory.stat", &stat(60, 40));
            assert_eq!(pod.grown_mib(&mut growth), None);
            // What a removed cgroup has left behind is still page cache.
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
    fn growth_is_detected_while_page_cache_shrinks() {
        let mut pod = Pod::new(&[(USAGE_2, &bytes(100)), (STAT, &stat(80, 0))]);
        let mut growth = pod.watch().unwrap();
        pod.write(STAT, &stat(60, 0));
        assert_eq!(pod.grown_mib(&mut growth), Some(20));
    }

    #[test]
    fn unreadable_memory_files_are_reported_by_name() {
        let error = |files: &[(&str, &str)]| Pod::new(files).watch().unwrap_err();
        let message = error(&[(STAT, "inactive_file 0\nactive_file 0\n")]);
        assert!(message.contains("read memory.current: No such file"), "{message}");
        let message = error(&[(USAGE_2, "many\n"), (STAT, "inactive_file 0\nactive_file 0\n")]);
        assert!(message.ends_with("read memory.current: unexpected content"), "{message}");
        let message = error(&[(USAGE_2, "5\n"), (STAT, "inactive_file 0\nfile 0\n")]);
        assert!(message.ends_with("read memory.stat: unexpected content"), "{message}");
        let mut pod = Pod::new(&[(USAGE_1, "5\n"), (STAT, &stat(0, 0))]);
        for n in 0..MAX_CGROUPS {
            pod.write(&format!("{n}/{STAT}"), &stat(0, 0));
        }
        assert!(pod.watch().unwrap_err().ends_with("the pod has more than 64 cgroups"));
    }

    #[test]
    fn pause_after_a_comparison_is_three_times_its_duration() {
        let mut pod = Pod::new(&[(USAGE_2, "5\n"), (STAT, &stat(0, 0))]);
        let mut growth = pod.watch().unwrap();
        let now_ns = std::cell::Cell::new(0);
        let clock = || now_ns.replace(now_ns.get() + 2_000_000);
        growth.exceeded(&mut pod.processes, clock).unwrap();
        assert_eq!(growth.due_ns, 2_000_000 + 3 * 2_000_000);
    }
}
