//! The figures of the node, as a stats Summary groups them.

use serde::{Deserialize, Serialize};

use crate::core::reading::Reading;
use crate::core::time::Timestamp;

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
