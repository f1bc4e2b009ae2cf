//! Builds snapshots and reuses their memory.

use std::mem::take;
use std::sync::Arc;

use crate::snapshot::{NamedEntry, NodeStats, PodEntry, Snapshot};

/// Fills a snapshot, pod by pod.
#[derive(Debug, Default)]
pub struct SnapshotBuilder {
    snapshot: Snapshot,
}

impl SnapshotBuilder {
    /// Starts a snapshot with new memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a snapshot in the memory of one that is no longer needed.
    pub fn reuse(mut old: Snapshot) -> Self {
        old.node = NodeStats::default();
        old.text.clear();
        old.pods.clear();
        old.containers.clear();
        old.volumes.clear();
        old.indexed = None;
        Self { snapshot: old }
    }

    /// Sets the node's values.
    pub fn node(&mut self, node: NodeStats) -> &mut Self {
        self.snapshot.node = node;
        self
    }

    /// Adds a pod. If two pods have the same uid, the later one counts.
    pub fn pod(&mut self, uid: &str, mut values: PodStatValues) -> PodBuilder<'_> {
        values.has_memory |= values.memory_working_set.is_some();
        let entry = PodEntry {
            uid: self.write(uid),
            containers: empty_at(self.snapshot.containers.len()),
            volumes: empty_at(self.snapshot.volumes.len()),
            values,
        };
        self.snapshot.pods.push(entry);
        PodBuilder { builder: self }
    }

    /// Returns the snapshot.
    pub fn finish(self) -> Snapshot {
        self.snapshot
    }

    /// Copies a text and returns its range. Once there are 4 GiB of names, further names are empty.
    fn write(&mut self, text: &str) -> (u32, u32) {
        let start = self.snapshot.text.len();
        let end = start + text.len();
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => {
                self.snapshot.text.push_str(text);
                (start, end)
            }
            _ => (0, 0),
        }
    }
}

/// Adds values to the pod that was added last.
#[derive(Debug)]
pub struct PodBuilder<'a> {
    builder: &'a mut SnapshotBuilder,
}

impl PodBuilder<'_> {
    /// Adds a container of any kind.
    pub fn container(&mut self, name: &str, values: ContainerStatValues) -> &mut Self {
        let name = self.builder.write(name);
        let snapshot = &mut self.builder.snapshot;
        snapshot.containers.push(NamedEntry { name, values });
        if let Some(pod) = snapshot.pods.last_mut() {
            pod.containers.1 = index(snapshot.containers.len());
        }
        self
    }

    /// Adds a volume.
    pub fn volume(&mut self, name: &str, values: VolumeStatValues) -> &mut Self {
        let name = self.builder.write(name);
        let snapshot = &mut self.builder.snapshot;
        snapshot.volumes.push(NamedEntry { name, values });
        if let Some(pod) = snapshot.pods.last_mut() {
            pod.volumes.1 = index(snapshot.volumes.len());
        }
        self
    }
}

fn empty_at(length: usize) -> (u32, u32) {
    (index(length), index(length))
}

fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
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

/// The values of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStatValues {
    /// `usedBytes`.
    pub used: Option<u64>,
    /// `inodesUsed`.
    pub inodes: Option<u64>,
}

/// A pool with one snapshot. While each snapshot is returned before the next one begins, samples allocate
/// nothing, unless there are more values than ever before.
#[derive(Debug, Default)]
pub struct SnapshotPool(Option<Arc<Snapshot>>);

impl SnapshotPool {
    /// Begins a snapshot, in the memory of the one that was returned, if there is one.
    pub fn begin(&mut self) -> SnapshotBuilder {
        match self.0.as_mut().and_then(Arc::get_mut) {
            Some(old) => SnapshotBuilder::reuse(take(old)),
            None => SnapshotBuilder::new(),
        }
    }

    /// Shares a finished snapshot.
    pub fn share(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let Some(mut block) = self.0.take() else {
            return Arc::new(snapshot);
        };
        match Arc::get_mut(&mut block) {
            Some(index) => *index = snapshot,
            None => block = Arc::new(snapshot),
        }
        block
    }

    /// Takes a snapshot back, unless it is still in use elsewhere.
    pub fn recycle(&mut self, mut snapshot: Arc<Snapshot>) {
        if Arc::get_mut(&mut snapshot).is_some() {
            self.0 = Some(snapshot);
        }
    }
}
