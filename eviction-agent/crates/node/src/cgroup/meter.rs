//! The memory figures of one group, and the descriptors that they are read through.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

use super::files::{Limit, MemoryStat, Version, parse_limit, parse_memory_stat, parse_usage};
use super::sample::{GroupSample, working_set_of};
use crate::file::{KeptFile, is_gone, unreadable};
use eviction_core::reading::{Reading, UnknownReason};

/// A `memory.stat` is 1.5 to 2 KB on kernels up to 7.2.
const STAT_BUFFER: usize = 32 << 10;

/// Longer than any number with its line feed.
const NUMBER_BUFFER: usize = 32;

/// The last figures of a group.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) id: u64,
    pub(super) usage: Reading<u64>,
    pub(super) usage_at_ns: u64,
    pub(super) stat: MemoryStat,
    pub(super) stat_at_ns: u64,
    /// The round of reads in which it was read: what is below a group is read in the same, before it.
    pub(super) stat_round: u64,
    /// The limit at which the kernel kills.
    pub(super) hard: Limit,
    /// The one at which it makes tasks reclaim, on version 2.
    pub(super) high: Limit,
    /// Bytes by which the group's own usage went up and down since its memory.stat was read.
    pub(super) moved: u64,
    /// Whether its usage or that of a group above it has reached a limit.
    pub(super) full: bool,
    /// How the usage changed from the sweep before to the last one.
    pub(super) change: i64,
    /// The usage as of the last sweep. What is read between sweeps says nothing of the groups below,
    /// which are not read then.
    swept: Option<u64>,
    /// Whether there is nothing to read of the group: it was removed, or has no such files.
    pub(super) gone: bool,
    /// The latter: the root of version 2, and every group to which the controller was not given.
    pub(super) bare: bool,
    /// Whether its memory.stat is to be read.
    pub(super) marked: bool,
    /// Whether it is a pod's group or one below it.
    pub(super) of_pod: bool,
    usage_file: Option<KeptFile>,
    stat_file: Option<KeptFile>,
}

impl Meter {
    /// The lowest limit that is set on the group.
    pub(super) fn limit(&self) -> Limit {
        self.hard.min(self.high)
    }

    /// Whether the group was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.gone && !self.bare
    }

    /// Takes note of why something could not be read.
    fn miss(&mut self, why: UnknownReason) {
        self.bare |= why == UnknownReason::Absent;
        self.gone |= self.bare || is_gone(why);
    }

    /// Takes note of a usage that was read.
    pub(super) fn take_usage(&mut self, usage: Result<u64, UnknownReason>, at_ns: u64) {
        self.usage = usage.into();
        self.usage_at_ns = at_ns;
    }

    /// Takes note of the usage as that of a sweep. Whether it is what it was at the one before.
    pub(super) fn sweep(&mut self) -> bool {
        let now = self.usage.known();
        let before = std::mem::replace(&mut self.swept, now);
        let since = before.unwrap_or(0).cast_signed();
        self.change = now.map_or(0, |now| now.cast_signed().saturating_sub(since));
        now.is_some() && now == before
    }

    /// Its last figures, with what its memory.stat is taken to say.
    pub(super) fn sample(&self, stat: MemoryStat) -> GroupSample {
        GroupSample {
            cgroup_id: self.id,
            usage: self.usage,
            usage_at_ns: self.usage_at_ns,
            working_set: working_set_of(self.usage, stat.inactive_file),
            stat,
            stat_at_ns: self.stat_at_ns,
            limit: self.limit(),
            hard_limit: self.hard,
        }
    }
}

/// Reads the files of groups: through kept descriptors as far as they reach, by opening them
/// each time beyond.
#[derive(Debug)]
pub(super) struct Reader {
    version: Version,
    /// Descriptors that may still be kept.
    descriptors: usize,
    buffer: Box<[u8]>,
    /// Length of the memory.stat in the buffer.
    length: usize,
}

impl Reader {
    pub(super) fn new(version: Version, descriptors: usize) -> Self {
        Self { version, descriptors, buffer: vec![0; STAT_BUFFER].into(), length: 0 }
    }

    fn usage_name(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    /// A meter for the group in `path`, which is left as it was.
    pub(super) fn open(&mut self, id: u64, path: &mut PathBuf) -> Meter {
        let usage_file = self.keep(path, self.usage_name());
        let (hard, high) = self.read_limits(path);
        Meter {
            id,
            usage: Reading::Unknown(UnknownReason::Absent),
            usage_at_ns: 0,
            stat: MemoryStat::unknown(UnknownReason::Absent),
            stat_at_ns: 0,
            stat_round: 0,
            full: false,
            hard,
            high,
            moved: 0,
            change: 0,
            swept: None,
            gone: false,
            bare: false,
            marked: false,
            of_pod: false,
            usage_file,
            stat_file: None,
        }
    }

    /// Gives back the descriptors of a meter that is no longer needed.
    pub(super) fn close(&mut self, meter: Meter) {
        self.descriptors += usize::from(meter.usage_file.is_some()) + usize::from(meter.stat_file.is_some());
    }

    /// The limits on the memory of the group in `path`: the one at which the kernel kills, and the
    /// one at which it makes tasks reclaim. One that cannot be read limits nothing as far as
    /// anybody can tell.
    pub(super) fn read_limits(&self, path: &mut PathBuf) -> (Limit, Limit) {
        let mut read = |name| {
            path.push(name);
            let file = KeptFile::open(path).map_err(unreadable);
            let limit = file.and_then(|file| parse_limit(file.read(&mut [0; NUMBER_BUFFER])?));
            path.pop();
            limit.unwrap_or(Limit::Unlimited)
        };
        match self.version {
            Version::V1 => (read("memory.limit_in_bytes"), Limit::Unlimited),
            Version::V2 => (read("memory.max"), read("memory.high")),
        }
    }

    /// Reads the usage of a group; `path` is written by `locate` where the file has to be opened.
    pub(super) fn read_usage(
        &mut self,
        meter: &mut Meter,
        at_ns: u64,
        path: &mut PathBuf,
        locate: impl Fn(&mut PathBuf),
    ) {
        let mut number = [0; NUMBER_BUFFER];
        let text = match &meter.usage_file {
            Some(file) => file.read(&mut number),
            None => {
                locate(path);
                path.push(self.usage_name());
                read_unkept(path, &mut number).map_err(|why| unless_gone(why, path))
            }
        };
        let usage = text.and_then(parse_usage);
        if let Err(why) = usage {
            meter.miss(why);
        }
        meter.take_usage(usage, at_ns);
    }

    /// Reads the memory.stat of a group, which makes the kernel bring it up to date.
    pub(super) fn read_stat(
        &mut self,
        meter: &mut Meter,
        at_ns: u64,
        path: &mut PathBuf,
        locate: impl Fn(&mut PathBuf),
    ) {
        meter.marked = false;
        meter.moved = 0;
        if meter.stat_file.is_none() {
            locate(path);
            meter.stat_file = self.keep(path, "memory.stat");
        }
        let text = match &meter.stat_file {
            Some(file) => file.read(&mut self.buffer),
            None => {
                locate(path);
                path.push("memory.stat");
                read_unkept(path, &mut self.buffer).map_err(|why| unless_gone(why, path))
            }
        };
        (meter.stat, self.length) = match text {
            Ok(text) => (parse_memory_stat(self.version, text), text.len()),
            Err(why) => {
                meter.miss(why);
                (MemoryStat::unknown(why), 0)
            }
        };
        meter.stat_at_ns = at_ns;
    }

    /// A number that tells the text of the memory.stat that was read last from other texts.
    pub(super) fn last_stat_text(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.buffer[..self.length]);
        hasher.finish()
    }

    fn keep(&mut self, path: &mut PathBuf, name: &str) -> Option<KeptFile> {
        self.descriptors = self.descriptors.checked_sub(1)?;
        path.push(name);
        let file = KeptFile::open(path).ok();
        path.pop();
        self.descriptors += usize::from(file.is_none());
        file
    }
}

/// A group that is there may have no such file.
fn unless_gone(why: UnknownReason, file: &Path) -> UnknownReason {
    if is_gone(why) && file.parent().is_some_and(Path::is_dir) { UnknownReason::Absent } else { why }
}

fn read_unkept<'b>(path: &Path, buffer: &'b mut [u8]) -> Result<&'b [u8], UnknownReason> {
    KeptFile::open(path).map_err(unreadable)?.read(buffer)
}

#[cfg(test)]
mod tests {
    use super::super::meters::{Groups, Sweep};
    use super::*;
    use crate::cgroup::tree::Tree;

    #[test]
    fn a_group_without_the_controller_is_there_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("kubepods");
        std::fs::create_dir(&child).unwrap();
        std::fs::write(child.join("memory.current"), "4096\n").unwrap();
        // Opened for each reading, as where descriptors are used up.
        let scan = || Tree::scan(folder.path(), None).unwrap();
        let mut groups = Groups::new(Version::V2, 0, scan());
        let sweep = |groups: &mut Groups| {
            groups.read_usages(Sweep::All, &[]);
            (groups.meters[0].usage, groups.meters[1].usage, groups.stale)
        };
        let absent = Reading::Unknown(UnknownReason::Absent);
        assert_eq!(sweep(&mut groups), (absent, Reading::Known(4096), false));
        assert!(groups.meters[0].gone, "nobody counts on figures of it");
        std::fs::write(folder.path().join("memory.current"), "8192\n").unwrap();
        assert_eq!(sweep(&mut groups).0, absent, "each sweep is not to try it again");
        groups.try_bare_ones();
        assert_eq!((sweep(&mut groups).0, groups.meters[0].gone), (Reading::Known(8192), false));
        std::fs::remove_dir_all(&child).unwrap();
        assert!(sweep(&mut groups).2, "that one is gone");
    }
}
