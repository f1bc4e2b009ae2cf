//! The cases of benches: what grows beyond the threshold, and under which conditions.

use std::path::Path;

use ::tests::growth::{Growth, Pages};
use ::tests::node::MIB;
use ::tests::stamps::Record;

use crate::observer::Observer;

/// The kind of growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hog {
    /// Fresh pages of 4 KiB.
    Fresh,
    /// Pages of 2 MiB.
    Huge,
    /// Pages that were freed before with `MADV_DONTNEED`.
    Refault,
    /// Fresh pages, by four threads.
    Threads,
    /// A file in memory.
    Tmpfs,
    /// A file on disk: its pages are inactive, so they do not cross the threshold.
    PageCache,
}

impl Hog {
    pub(crate) const ALL: [Self; 6] =
        [Self::Fresh, Self::Huge, Self::Refault, Self::Threads, Self::Tmpfs, Self::PageCache];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Huge => "huge",
            Self::Refault => "refault",
            Self::Threads => "threads",
            Self::Tmpfs => "tmpfs",
            Self::PageCache => "page cache",
        }
    }

    /// Returns whether the growth must be seen as a crossing.
    pub(crate) fn crosses(self) -> bool {
        self != Self::PageCache
    }

    /// Returns the workload's arguments.
    pub(crate) fn arguments(self, size: u64, rate: Rate, stamps: &Path, disk: &Path) -> Vec<String> {
        let kind = match self {
            Self::Fresh | Self::Threads => "fresh",
            Self::Huge => "huge",
            Self::Refault => "refault",
            Self::Tmpfs => "tmpfs",
            Self::PageCache => "page-cache",
        };
        let (size, rate) = (size.to_string(), rate.bytes_per_second().to_string());
        let stamps = stamps.display().to_string();
        let mut arguments = ["grow", "--kind", kind, "--size", &size, "--rate", &rate, "--stamps", &stamps]
            .map(str::to_owned)
            .to_vec();
        match self {
            Self::Threads => arguments.extend(["--threads", "4", "--touch-first"].map(str::to_owned)),
            Self::PageCache => arguments.extend(["--dir".to_owned(), disk.display().to_string()]),
            // A refault is a second touch by itself.
            Self::Refault => {}
            Self::Fresh | Self::Huge | Self::Tmpfs => arguments.push("--touch-first".to_owned()),
        }
        arguments
    }

    pub(crate) fn growth(self, record: &Record) -> Growth {
        if self == Self::Threads { Growth::of_threads(record) } else { Growth::of(record) }
    }

    pub(crate) fn pages(self) -> Pages {
        match self {
            Self::Fresh | Self::Threads => Pages::Fresh,
            Self::Refault | Self::Tmpfs | Self::PageCache => Pages::Refault,
            Self::Huge => Pages::Huge,
        }
    }
}

/// The rate of the growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// 0.1 GB/s.
    Tenth,
    /// 1 GB/s.
    One,
    /// Unlimited.
    Full,
}

impl Rate {
    pub(crate) const ALL: [Self; 3] = [Self::Tenth, Self::One, Self::Full];

    fn name(self) -> &'static str {
        match self {
            Self::Tenth => "0.1 GB/s",
            Self::One => "1 GB/s",
            Self::Full => "full",
        }
    }

    /// Returns the rate; 0 is unlimited.
    pub(crate) fn bytes_per_second(self) -> u64 {
        match self {
            Self::Tenth => 100_000_000,
            Self::One => 1_000_000_000,
            Self::Full => 0,
        }
    }
}

/// The other load on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// No other load.
    Idle,
    /// 15 processes that use the processor, and 4 that touch memory and free it.
    Hogs,
}

/// One kind of crossing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) load: Load,
    pub(crate) hog: Hog,
    pub(crate) rate: Rate,
    /// Whether page cache has filled the node to its limit before, so that usage stays constant.
    pub(crate) cache_full: bool,
    /// Whether the kernel may carry out an armed kill order.
    pub(crate) kernel_kill: bool,
    pub(crate) observer: Observer,
    /// The number of pods on the node.
    pub(crate) pods: usize,
    /// The working set that the node must not exceed, bytes.
    pub(crate) max_working_set: u64,
    /// How far a hog grows beyond that if it is not ended, bytes.
    pub(crate) max_overshoot: u64,
    /// The number of valid crossings to measure.
    pub(crate) n: usize,
}

/// The usual working set that the node must not exceed, bytes.
pub(crate) const MAX_WORKING_SET: u64 = 256 * MIB;

impl Case {
    /// Creates a case of `n` crossings on a node with few pods, by fresh pages at 1 GB/s, without other load.
    pub(crate) fn new(n: usize) -> Self {
        let (load, hog, rate) = (Load::Idle, Hog::Fresh, Rate::One);
        let (cache_full, kernel_kill, pods) = (false, false, super::hog_node::FEW);
        let (max_working_set, max_overshoot) = (MAX_WORKING_SET, 64 * MIB);
        let observer = Observer::None;
        Self { load, hog, rate, cache_full, kernel_kill, observer, pods, max_working_set, max_overshoot, n }
    }

    /// Returns the name in rows.
    pub(crate) fn name(self) -> String {
        let load = match self.load {
            Load::Idle => "idle",
            Load::Hogs => "15 hogs",
        };
        let mut name = format!("{load}, {}, {}", self.hog.name(), self.rate.name());
        if self.cache_full {
            name.push_str(", cache full");
        }
        if self.pods > super::hog_node::FEW {
            name.push_str(&format!(", {} pods", self.pods));
        }
        if self.kernel_kill {
            name.push_str(", reflex");
        }
        name + self.observer.suffix()
    }

    /// Returns the memory that must stay available, bytes: the growth beyond the threshold, and as much again
    /// between the end of the growth and the node's memory.
    pub(crate) fn threshold(self) -> u64 {
        2 * self.max_overshoot
    }

    /// Returns the memory of the node, bytes. Its cgroup cannot exceed it.
    pub(crate) fn memory(self) -> u64 {
        self.max_working_set + self.threshold()
    }

    /// Returns the size at which a hog stops by itself, bytes.
    pub(crate) fn size(self) -> u64 {
        self.max_working_set + self.max_overshoot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_names_are_stable() {
        let case = Case::new(1);
        assert_eq!(case.name(), "idle, fresh, 1 GB/s");
        let case = Case { load: Load::Hogs, hog: Hog::PageCache, rate: Rate::Tenth, ..case };
        assert_eq!(case.name(), "15 hogs, page cache, 0.1 GB/s");
        let case = Case { cache_full: true, kernel_kill: true, rate: Rate::Full, pods: 110, ..case };
        assert_eq!(case.name(), "15 hogs, page cache, full, cache full, 110 pods, reflex");
    }

    #[test]
    fn a_hog_stops_between_the_threshold_and_the_memory_limit() {
        for case in [
            Case { max_overshoot: 1024 * MIB, ..Case::new(1) },
            Case { max_working_set: 64 * MIB, ..Case::new(1) },
        ] {
            assert!(case.max_working_set < case.size() && case.size() < case.memory());
            assert_eq!(case.memory() - case.threshold(), case.max_working_set);
        }
    }
}
