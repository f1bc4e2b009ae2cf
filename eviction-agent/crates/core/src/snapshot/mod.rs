//! One sample of the node and its pods.
//!
//! A snapshot of ten thousand pods consists of a few flat arrays: building one in the memory of an old one
//! allocates nothing, and dropping it frees a few blocks.

#[cfg(test)]
mod tests;

use std::sync::Arc;

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
    volumes: Vec<NamedEntry<FsUsage>>,
    /// The pods that the snapshot is indexed for.
    indexed: Option<Arc<PodSet>>,
    /// The index of each pod's statistics, if it has any, by the index of the pod.
    stats_index: Vec<Option<u32>>,
}

/// The statistics of a pod. Its texts and lists are ranges, from the first index to the one behind the last.
#[derive(Clone, Copy, Debug)]
struct PodEntry {
    uid: (usize, usize),
    containers: (usize, usize),
    volumes: (usize, usize),
    values: PodStatValues,
}

/// A container or a volume.
#[derive(Clone, Copy, Debug)]
struct NamedEntry<V> {
    name: (usize, usize),
    values: V,
}

impl Snapshot {
    /// Creates a snapshot with the node's values alone.
    pub fn of_node(node: NodeStats) -> Self {
        Self { node, ..Self::default() }
    }

    /// Replaces all values by the node's values alone. The memory is kept for the values of pods.
    pub fn reset(&mut self, node: NodeStats) {
        self.node = node;
        self.text.clear();
        self.pods.clear();
        self.containers.clear();
        self.volumes.clear();
        self.indexed = None;
    }

    /// Adds a pod. If two pods have the same uid, the later one counts.
    pub fn add_pod(&mut self, uid: &str, mut values: PodStatValues) -> &mut Self {
        values.has_memory |= values.memory_working_set.is_some();
        let entry = PodEntry {
            uid: self.write(uid),
            containers: (self.containers.len(), self.containers.len()),
            volumes: (self.volumes.len(), self.volumes.len()),
            values,
        };
        self.pods.push(entry);
        self
    }

    /// Adds a container of any kind to the pod that was added last.
    pub fn add_container(&mut self, name: &str, values: ContainerStatValues) -> &mut Self {
        let name = self.write(name);
        self.containers.push(NamedEntry { name, values });
        if let Some(pod) = self.pods.last_mut() {
            pod.containers.1 = self.containers.len();
        }
        self
    }

    /// Adds a volume to the pod that was added last.
    pub fn add_volume(&mut self, name: &str, values: FsUsage) -> &mut Self {
        let name = self.write(name);
        self.volumes.push(NamedEntry { name, values });
        if let Some(pod) = self.pods.last_mut() {
            pod.volumes.1 = self.volumes.len();
        }
        self
    }

    /// Copies a text and returns its range.
    fn write(&mut self, text: &str) -> (usize, usize) {
        let start = self.text.len();
        self.text.push_str(text);
        (start, self.text.len())
    }

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

    /// Returns the name and the values of each container of any kind, in order.
    pub fn containers(self) -> impl ExactSizeIterator<Item = (&'a str, ContainerStatValues)> {
        named(&self.snapshot.text, &self.snapshot.containers, self.entry.containers)
    }

    /// Returns the name and the values of each volume, in order.
    pub fn volumes(self) -> impl DoubleEndedIterator<Item = (&'a str, FsUsage)> {
        named(&self.snapshot.text, &self.snapshot.volumes, self.entry.volumes)
    }
}

fn part(text: &str, (start, end): (usize, usize)) -> &str {
    &text[start..end]
}

/// Returns the names and values in a range of entries.
fn named<'a, V: Copy>(
    text: &'a str,
    all: &'a [NamedEntry<V>],
    (start, end): (usize, usize),
) -> impl DoubleEndedIterator<Item = (&'a str, V)> + ExactSizeIterator {
    all[start..end].iter().map(move |entry| {
        step();
        (part(text, entry.name), entry.values)
    })
}

impl Snapshot {
    /// Finds the statistics of each pod, for [`Snapshot::stats_of`].
    pub fn index(&mut self, pods: &Arc<PodSet>) {
        let mut stats_index = std::mem::take(&mut self.stats_index);
        stats_index.clear();
        stats_index.resize(pods.len(), None);
        // If several statistics have the same uid, the last one counts.
        for (at, pod) in (0..).zip(self.pods()) {
            if let Some(index) = pods.index_of(pod.uid()) {
                stats_index[index as usize] = Some(at);
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
        self.pod((*self.stats_index.get(pod as usize)?)?)
    }
}

/// The values of a pod as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodStatValues {
    /// Whether there is a `memory` at all. It shows in a message even without a value.
    pub has_memory: bool,
    /// `memory.workingSetBytes`.
    pub memory_working_set: Option<u64>,
    /// Anonymous memory, which is freed completely when the processes end: `memory.rssBytes`, `anon` of
    /// `memory.stat`.
    pub memory_anonymous: Option<u64>,
    /// `ephemeral-storage.usedBytes`.
    pub ephemeral_storage_used: Option<u64>,
    /// `process_stats.process_count`.
    pub process_count: Option<u64>,
    /// A lower bound of the bytes that the pod has written to the node's disks outside of its volumes and
    /// writable layers, or to deleted files that are still open. Only the agent counts them. They do not affect
    /// the order of pods.
    pub bytes_elsewhere: Option<u64>,
}

/// The values of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatValues {
    /// `memory.workingSetBytes`.
    pub memory_working_set: Option<u64>,
    /// `rootfs.usedBytes`.
    pub rootfs_used: Option<u64>,
    /// `rootfs.inodesUsed`.
    pub rootfs_inodes: Option<u64>,
    /// `logs.usedBytes`.
    pub logs_used: Option<u64>,
    /// `logs.inodesUsed`.
    pub logs_inodes: Option<u64>,
}

/// What a volume, a writable layer or logs use of a file system: fields of `stats.FsStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FsUsage {
    /// `usedBytes`.
    #[serde(rename = "usedBytes")]
    pub used: Option<u64>,
    /// `inodesUsed`.
    #[serde(rename = "inodesUsed")]
    pub inodes: Option<u64>,
}

/// The values of the node. A group that was not read is unknown. The JSON form is that of samples in recordings: if it
/// changes, so does the version of recordings.
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
    /// The available memory.
    #[serde(rename = "availableBytes")]
    pub available: Option<u64>,
    /// The working set.
    #[serde(rename = "workingSetBytes")]
    pub working_set: Option<u64>,
    /// When the values were read.
    pub time: Option<Timestamp>,
}

/// `stats.FsStats` of a whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsStats {
    /// The available bytes.
    #[serde(rename = "availableBytes")]
    pub available: Option<u64>,
    /// The size in bytes.
    #[serde(rename = "capacityBytes")]
    pub capacity: Option<u64>,
    /// The available inodes.
    #[serde(rename = "inodesFree")]
    pub inodes_free: Option<u64>,
    /// All inodes.
    pub inodes: Option<u64>,
    /// When the values were read.
    pub time: Option<Timestamp>,
}

/// `stats.RlimitStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStats {
    /// The number of process ids.
    #[serde(rename = "maxpid")]
    pub max: Option<i64>,
    /// The number of tasks.
    #[serde(rename = "curproc")]
    pub running: Option<i64>,
    /// When the values were read.
    pub time: Option<Timestamp>,
}
