//! One sample of the node and its pods.
//!
//! A snapshot of ten thousand pods consists of a few flat arrays: building one in the memory of an old one
//! allocates nothing, and dropping it frees a few blocks. [`SnapshotBuilder`] fills a snapshot, and
//! [`SnapshotPool`] keeps the old one.

mod builder;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use builder::{
    ContainerStatValues, PodBuilder, PodStatValues, SnapshotBuilder, SnapshotPool, VolumeStatValues,
};
use serde::{Deserialize, Serialize};

use crate::disk_layout::Parts;
use crate::pods::PodSet;
use crate::reading::Reading;
use crate::time::Timestamp;
use crate::work::step;

/// One sample of the node and its pods.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The node's own values.
    pub node: NodeStats,
    text: String,
    pods: Vec<PodEntry>,
    containers: Vec<NamedEntry<ContainerStatValues>>,
    volumes: Vec<NamedEntry<VolumeStatValues>>,
    /// The pods that the snapshot is indexed for.
    indexed: Option<Arc<PodSet>>,
    /// The index of each pod's statistics or `NO_STATS`, by the index of the pod.
    stats_index: Vec<u32>,
}

/// The statistics of a pod. Its texts and lists are ranges, from the first index to the one behind the last.
#[derive(Clone, Copy, Debug)]
struct PodEntry {
    uid: (u32, u32),
    containers: (u32, u32),
    volumes: (u32, u32),
    values: PodStatValues,
}

/// A container or a volume.
#[derive(Clone, Copy, Debug)]
struct NamedEntry<V> {
    name: (u32, u32),
    values: V,
}

impl Snapshot {
    /// Returns the number of pods with statistics.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Returns whether no pod has statistics.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns the statistics at an index below [`Snapshot::len`].
    pub fn pod(&self, index: u32) -> Option<PodStats<'_>> {
        step();
        self.pods.get(index as usize).map(|entry| PodStats { snapshot: self, entry })
    }

    /// Returns the statistics of all pods, in the order in which they were added.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = PodStats<'_>> {
        self.pods.iter().map(|entry| {
            step();
            PodStats { snapshot: self, entry }
        })
    }

    /// Copies the values of another snapshot. Once the memory of this one is large enough, it allocates nothing.
    pub fn copy_from(&mut self, other: &Self) {
        self.node = other.node;
        self.text.clone_from(&other.text);
        self.pods.clone_from(&other.pods);
        self.containers.clone_from(&other.containers);
        self.volumes.clone_from(&other.volumes);
        self.indexed = None;
    }
}

/// The statistics of one pod: `stats.PodStats`.
#[derive(Clone, Copy, Debug)]
pub struct PodStats<'a> {
    snapshot: &'a Snapshot,
    entry: &'a PodEntry,
}

impl<'a> PodStats<'a> {
    /// `podRef.uid`.
    pub fn uid(self) -> &'a str {
        part(&self.snapshot.text, self.entry.uid)
    }

    /// Returns the pod's own values.
    pub fn values(self) -> PodStatValues {
        self.entry.values
    }

    /// Returns the containers of all kinds, in order.
    pub fn containers(self) -> impl ExactSizeIterator<Item = ContainerStats<'a>> {
        named(&self.snapshot.text, &self.snapshot.containers, self.entry.containers)
    }

    /// Returns the volumes, in order.
    pub fn volumes(self) -> impl DoubleEndedIterator<Item = VolumeStats<'a>> {
        named(&self.snapshot.text, &self.snapshot.volumes, self.entry.volumes)
    }
}

/// The statistics of one container: `stats.ContainerStats`.
pub type ContainerStats<'a> = NamedStats<'a, ContainerStatValues>;

/// The statistics of one volume: `stats.VolumeStats`.
pub type VolumeStats<'a> = NamedStats<'a, VolumeStatValues>;

/// The statistics of one container or volume.
#[derive(Clone, Copy, Debug)]
pub struct NamedStats<'a, V> {
    text: &'a str,
    entry: &'a NamedEntry<V>,
}

impl<'a, V: Copy> NamedStats<'a, V> {
    /// `name`.
    pub fn name(self) -> &'a str {
        part(self.text, self.entry.name)
    }

    /// Returns the values of the container or volume.
    pub fn values(self) -> V {
        self.entry.values
    }
}

fn part(text: &str, (start, end): (u32, u32)) -> &str {
    text.get(start as usize..end as usize).unwrap_or_default()
}

/// Returns the statistics in a range of entries.
fn named<'a, V>(
    text: &'a str,
    all: &'a [NamedEntry<V>],
    (start, end): (u32, u32),
) -> impl DoubleEndedIterator<Item = NamedStats<'a, V>> + ExactSizeIterator {
    all.get(start as usize..end as usize).unwrap_or_default().iter().map(move |entry| {
        step();
        NamedStats { text, entry }
    })
}

/// The index of a pod that has no statistics.
const NO_STATS: u32 = u32::MAX;

impl Snapshot {
    /// Finds the statistics of each pod, for [`Snapshot::stats_of`].
    pub fn index(&mut self, pods: &Arc<PodSet>) {
        let mut stats_index = std::mem::take(&mut self.stats_index);
        stats_index.clear();
        stats_index.resize(pods.len(), NO_STATS);
        // If several statistics have the same uid, the last one counts.
        for (at, pod) in (0..).zip(self.pods()) {
            if let Some(index) = pods.index_of(pod.uid()) {
                stats_index[index as usize] = at;
            }
        }
        for &(index, first) in pods.repeated() {
            stats_index[index as usize] = stats_index[first as usize];
        }
        self.stats_index = stats_index;
        self.indexed = Some(Arc::clone(pods));
    }

    /// Returns this snapshot, indexed for these pods. It is not copied if it is already, or if it has only
    /// the node's values.
    pub fn indexed(self: &Arc<Self>, pods: &Arc<PodSet>) -> Arc<Self> {
        let is_indexed = self.indexed.as_ref().is_some_and(|indexed| Arc::ptr_eq(indexed, pods));
        if self.is_empty() || is_indexed {
            return Arc::clone(self);
        }
        let mut copy = Self::clone(self);
        copy.index(pods);
        Arc::new(copy)
    }

    /// Returns the statistics of the pod at an index among those that the snapshot is indexed for.
    pub fn stats_of(&self, pod: u32) -> Option<PodStats<'_>> {
        self.pod(*self.stats_index.get(pod as usize)?)
    }
}

/// The source of a value: an index in the agent's list of sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId(pub u8);

impl SourceId {
    /// A stats Summary.
    pub const SUMMARY: Self = Self(0);
}

/// The values of the node. A group that was not read is unknown.
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
    /// Further values of the kernel about the node's memory.
    pub memory_detail: MemoryDetail,
    /// Parts of pods whose usage was not read. Pods cannot be ranked by them.
    #[serde(default)]
    pub unmeasured: Parts,
    /// Bytes that will be freed without an eviction, if a threshold is met only because of them; else 0: xfs has
    /// allocated them beyond the ends of files, or they are in files of evicted pods that the kubelet has not
    /// removed yet. Pods count as unmeasured until then.
    #[serde(default)]
    pub awaited_bytes: u64,
}

/// The other measures of the node's memory, and the values for further conditions. Each value is known or
/// unknown independently of the others. They are as old as those of `memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDetail {
    /// `MemAvailable` of /proc/meminfo, the kernel's own estimate, in bytes.
    pub mem_available: Reading<u64>,
    /// Page cache that was used recently, in bytes.
    pub active_file: Reading<u64>,
    /// The share of the last ten seconds in which some task stalled for memory, in hundredths
    /// of a percent.
    pub some_avg10: Reading<u64>,
    /// The share in which all tasks stalled at once, in hundredths of a percent.
    pub full_avg10: Reading<u64>,
    /// Whether tasks stalled as long as the policy's trigger requires, within its window.
    pub stalled: Reading<bool>,
    /// Swap in use, in bytes.
    pub swap_used: Reading<u64>,
    /// The total swap, in bytes.
    pub swap_total: Reading<u64>,
}

/// `stats.MemoryStats`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// `availableBytes`.
    pub available: Option<u64>,
    /// `workingSetBytes`.
    pub working_set: Option<u64>,
    /// When the values were read.
    pub time: Option<Timestamp>,
    /// The source of the values.
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
    /// When the values were read.
    pub time: Option<Timestamp>,
    /// The source of the values.
    pub source: SourceId,
}

/// `stats.RlimitStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStats {
    /// `maxpid`.
    pub max: Option<i64>,
    /// `curproc`.
    pub running: Option<i64>,
    /// When the values were read.
    pub time: Option<Timestamp>,
    /// The source of the values.
    pub source: SourceId,
}
