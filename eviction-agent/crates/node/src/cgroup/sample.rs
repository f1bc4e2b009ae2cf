//! The values of a sample.
#![forbid(unsafe_code)]

use super::files::{Limit, MemoryStat};
use eviction_core::reading::Reading;
use eviction_core::snapshot::MemoryDetail;

/// Memory usage of the node or of a cgroup, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in use, page cache included.
    pub usage: u64,
    /// Bytes in use less page cache that has not been used lately, never below zero (cadvisor's
    /// `setMemoryStats`).
    pub working_set: u64,
}

impl MemoryUsage {
    /// Returns the two values that were read.
    pub fn of(usage: Reading<u64>, working_set: Reading<u64>) -> Reading<Self> {
        usage.zip(working_set).map(|(usage, working_set)| Self { usage, working_set })
    }

    /// Returns the usage by another measure than the working set: what that measure does not count as available
    /// is used. No measure subtracts more than is charged.
    pub fn by_measure(self, capacity: u64, available: Option<i64>) -> Self {
        let used = available.map(|available| capacity.saturating_sub(available.max(0).unsigned_abs()));
        Self { working_set: used.unwrap_or(self.working_set), ..self }
    }
}

/// The values that were read of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSample {
    /// The usage and working set of the node.
    pub memory: Reading<MemoryUsage>,
    /// MemFree of the machine. Known only if the node is the whole machine; otherwise it is not read.
    pub free: Reading<u64>,
    /// MemTotal of the machine. For a node that is a cgroup with a limit: that limit if it is lower than
    /// MemTotal was when the sampler was created.
    pub capacity: Reading<u64>,
    /// The other measures, without stalls. For a node that is a cgroup only the active file pages are known,
    /// which may be older than the rest.
    pub detail: MemoryDetail,
}

/// The last values of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSample {
    /// The cgroup id.
    pub cgroup_id: u64,
    /// Bytes in use, page cache included.
    pub usage: Reading<u64>,
    /// Usage less inactive file pages, which may be older than the usage.
    pub working_set: Reading<u64>,
    /// The values of memory.stat.
    pub stat: MemoryStat,
    /// When memory.stat was read; 0 for never.
    pub stat_at_ns: u64,
    /// The lowest limit that is set on this cgroup itself.
    pub limit: Limit,
    /// The limit at which the kernel kills: without `memory.high`.
    pub hard_limit: Limit,
}

/// The last values of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSample {
    /// The values of the pod's cgroup.
    pub memory: GroupSample,
    /// Tasks in the pod's cgroup and below (`pids.current`).
    pub tasks: Reading<u64>,
}

/// Whether a sample of pods counts tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// Tasks are counted.
    Count,
    /// Tasks are left unknown where no value is needed: counting reads a file for each pod.
    Leave,
}

pub(super) fn working_set_of(usage: Reading<u64>, inactive_file: Reading<u64>) -> Reading<u64> {
    usage.zip(inactive_file).map(|(usage, inactive)| usage.saturating_sub(inactive))
}
