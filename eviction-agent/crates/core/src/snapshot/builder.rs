//! Filling a snapshot.

use super::values::{ContainerStatValues, PodStatValues, VolumeStatValues};
use super::{ContainerEntry, NodeStats, PodEntry, Snapshot, Span, VolumeEntry};

/// Fills a snapshot, pod by pod.
#[derive(Debug, Default)]
pub struct SnapshotBuilder {
    snapshot: Snapshot,
}

impl SnapshotBuilder {
    /// Starts a snapshot in new memory.
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
        old.joined.clear();
        Self { snapshot: old }
    }

    /// Sets the node's figures.
    pub fn node(&mut self, node: NodeStats) -> &mut Self {
        self.snapshot.node = node;
        self
    }

    /// Adds a pod. Of two with the same uid the later one counts.
    pub fn pod(&mut self, uid: &str, figures: PodStatValues) -> PodBuilder<'_> {
        let entry = PodEntry {
            uid: self.write(uid),
            containers: empty_at(self.snapshot.containers.len()),
            volumes: empty_at(self.snapshot.volumes.len()),
            figures: figures.pack(),
        };
        self.snapshot.pods.push(entry);
        PodBuilder { builder: self }
    }

    /// The snapshot.
    pub fn finish(self) -> Snapshot {
        self.snapshot
    }

    /// Copies a text. Past 4 GiB of names there is only the empty one.
    fn write(&mut self, text: &str) -> Span {
        let start = self.snapshot.text.len();
        let end = start + text.len();
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => {
                self.snapshot.text.push_str(text);
                Span { start, end }
            }
            _ => Span { start: 0, end: 0 },
        }
    }
}

/// Adds what belongs to the pod added last.
#[derive(Debug)]
pub struct PodBuilder<'a> {
    builder: &'a mut SnapshotBuilder,
}

impl PodBuilder<'_> {
    /// Adds a container of any kind.
    pub fn container(&mut self, name: &str, figures: ContainerStatValues) -> &mut Self {
        let name = self.builder.write(name);
        let snapshot = &mut self.builder.snapshot;
        snapshot.containers.push(ContainerEntry { name, figures: figures.pack() });
        if let Some(pod) = snapshot.pods.last_mut() {
            pod.containers.1 = place(snapshot.containers.len());
        }
        self
    }

    /// Adds a volume.
    pub fn volume(&mut self, name: &str, figures: VolumeStatValues) -> &mut Self {
        let name = self.builder.write(name);
        let snapshot = &mut self.builder.snapshot;
        snapshot.volumes.push(VolumeEntry { name, figures: figures.pack() });
        if let Some(pod) = snapshot.pods.last_mut() {
            pod.volumes.1 = place(snapshot.volumes.len());
        }
        self
    }
}

fn empty_at(length: usize) -> (u32, u32) {
    (place(length), place(length))
}

fn place(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
