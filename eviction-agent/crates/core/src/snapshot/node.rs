//! The figures of the node, as a stats Summary groups them.

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::time::Timestamp;

/// Where a figure came from: a place in the list of sources that the agent keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub u8);

impl SourceId {
    /// A stats Summary.
    pub const SUMMARY: Self = Self(0);
}

/// Everything about the node. A group that nobody read is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// `node.memory`.
    pub memory: Reading<MemoryStats>,
    /// Memory of the first of `node.systemContainers` named `pods`.
    pub allocatable_memory: Reading<MemoryStats>,
    /// `node.fs`.
    pub node_fs: Reading<FsStats>,
    /// `node.runtime.imageFs`.
    pub image_fs: Reading<FsStats>,
    /// `node.runtime.containerFs`.
    pub container_fs: Reading<FsStats>,
    /// `node.rlimit`.
    pub processes: Reading<ProcessStats>,
    /// What the kernel says of the node's memory beside these.
    pub memory_detail: MemoryDetail,
}

/// The other measures of the node's memory, and what may be asked for beside one of them. Each
/// figure stands for itself; they are as old as those of `memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDetail {
    /// `MemAvailable` of /proc/meminfo, the kernel's own estimate, in bytes.
    pub mem_available: Reading<u64>,
    /// Page cache that was used lately, in bytes.
    pub active_file: Reading<u64>,
    /// The share of the last ten seconds in which some task stalled for memory, in hundredths
    /// of a percent.
    pub some_avg10: Reading<u64>,
    /// The share in which all tasks stalled at once.
    pub full_avg10: Reading<u64>,
    /// Whether tasks stalled as long as the policy's trigger asks for, within its window.
    pub stalled: Reading<bool>,
    /// Swap in use, in bytes.
    pub swap_used: Reading<u64>,
    /// All swap there is, in bytes.
    pub swap_total: Reading<u64>,
}

/// `stats.MemoryStats`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// `availableBytes`.
    pub available: Option<u64>,
    /// `workingSetBytes`.
    pub working_set: Option<u64>,
    /// When it was read.
    pub time: Option<Timestamp>,
    /// Where it was read.
    pub source: SourceId,
}

/// `stats.FsStats` of a whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsStats {
    /// `availableBytes`.
    pub available: Option<u64>,
    /// `capacityBytes`.
    pub capacity: Option<u64>,
    /// `inodesFree`.
    pub inodes_free: Option<u64>,
    /// `inodes`.
    pub inodes: Option<u64>,
    /// When it was read.
    pub time: Option<Timestamp>,
    /// Where it was read.
    pub source: SourceId,
}

/// `stats.RlimitStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStats {
    /// `maxpid`.
    pub max: Option<i64>,
    /// `curproc`.
    pub running: Option<i64>,
    /// When it was read.
    pub time: Option<Timestamp>,
    /// Where it was read.
    pub source: SourceId,
}
