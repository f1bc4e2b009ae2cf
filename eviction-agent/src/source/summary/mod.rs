//! Reader of the kubelet's statistics: the Summary of `stats/v1alpha1`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use serde::Deserialize;

use eviction_core::disk_layout::Parts;
use eviction_core::nullable::{nullable, nullable_list};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::{
    ContainerStatValues, FsStats, FsUsage, MemoryDetail, MemoryStats, NodeStats, PodStatValues, ProcessStats,
    Snapshot,
};
use eviction_node::fs::{
    ContainerStorage, DiskUsage, PodStorage, StorageRequest, StorageSample, SummaryFileSystems,
};

/// The fields of a Summary on which decisions depend. Absent and null values are the same, and neither is
/// zero.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Summary {
    #[serde(deserialize_with = "nullable")]
    node: Node,
    #[serde(deserialize_with = "nullable_list")]
    pods: Vec<Pod>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Node {
    memory: Option<MemoryStats>,
    #[serde(deserialize_with = "nullable_list")]
    system_containers: Vec<Container>,
    fs: Option<FsStats>,
    runtime: Option<Runtime>,
    rlimit: Option<ProcessStats>,
    /// Two fields of the agent in recordings, which the kubelet does not have.
    unmeasured: Parts,
    awaited_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    image_fs: Option<FsStats>,
    container_fs: Option<FsStats>,
}

/// The memory of a pod.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodMemory {
    working_set_bytes: Option<u64>,
    rss_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pod {
    #[serde(deserialize_with = "nullable")]
    pod_ref: PodReference,
    memory: Option<PodMemory>,
    #[serde(rename = "ephemeral-storage")]
    ephemeral_storage: Option<FsUsage>,
    #[serde(rename = "process_stats")]
    process_stats: Option<Processes>,
    /// A field of the agent in recordings, which the kubelet does not have.
    bytes_elsewhere: Option<u64>,
    #[serde(deserialize_with = "nullable_list")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "nullable_list")]
    volume: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodReference {
    #[serde(deserialize_with = "nullable")]
    uid: Box<str>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Processes {
    process_count: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    #[serde(deserialize_with = "nullable")]
    name: Box<str>,
    memory: Option<MemoryStats>,
    rootfs: Option<FsUsage>,
    logs: Option<FsUsage>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    #[serde(deserialize_with = "nullable")]
    name: Box<str>,
    used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

impl Summary {
    /// Reads a Summary from JSON.
    ///
    /// # Errors
    /// If the text is not JSON, or a value has the wrong type or does not fit its type.
    pub fn parse(json: &[u8]) -> Result<Self, serde_path_to_error::Error<serde_json::Error>> {
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(json))
    }

    /// Returns the values as a snapshot in new memory.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.snapshot_into(&mut snapshot);
        snapshot
    }

    /// Replaces the values of a snapshot that is no longer needed.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) {
        let Self { node, pods } = self;
        snapshot.reset(node.stats());
        for pod in pods {
            snapshot.add_pod(&pod.pod_ref.uid, pod.values());
            for container in &pod.containers {
                snapshot.add_container(&container.name, container.values());
            }
            for volume in &pod.volume {
                let values = FsUsage { used: volume.used_bytes, inodes: volume.inodes_used };
                snapshot.add_volume(&volume.name, values);
            }
        }
    }

    /// Returns the node's file systems. The Summary came at `at_ns`, CLOCK_MONOTONIC in nanoseconds.
    pub fn file_systems(&self, at_ns: u64) -> SummaryFileSystems {
        SummaryFileSystems::new(&self.node.stats(), at_ns)
    }

    /// Returns the storage of the pods for which `requests` asks.
    pub fn pod_storage(&self, requests: &[StorageRequest]) -> StorageSample {
        let mut sample = StorageSample::unknown();
        for request in requests {
            let found = self.pods.iter().find(|pod| *pod.pod_ref.uid == *request.kubelet_uid);
            if let Some(pod) = found {
                let parts = &mut sample.unmeasured;
                parts.volumes = false;
                parts.logs &= pod.containers.iter().all(|it| it.logs.is_none());
                parts.rootfs &= pod.containers.iter().all(|it| it.rootfs.is_none());
            }
            let storage = found.map_or_else(PodStorage::unknown, |pod| pod.storage(request));
            sample.pods.insert(request.uid.clone(), storage);
        }
        sample
    }
}

impl Node {
    fn stats(&self) -> NodeStats {
        let Self { memory, system_containers, fs, runtime, rlimit, unmeasured, awaited_bytes } = self;
        let pods = system_containers.iter().find(|container| &*container.name == "pods");
        let runtime = runtime.unwrap_or_default();
        NodeStats {
            memory: known(*memory),
            allocatable_memory: known(pods.and_then(|pods| pods.memory)),
            node_fs: known(*fs),
            image_fs: known(runtime.image_fs),
            container_fs: known(runtime.container_fs),
            processes: known(*rlimit),
            memory_detail: MemoryDetail::default(),
            unmeasured: *unmeasured,
            awaited_bytes: *awaited_bytes,
        }
    }
}

fn known<T>(values: Option<T>) -> Reading<T> {
    values.ok_or(UnknownReason::Absent).into()
}

/// Counts like the kubelet: a missing inode count is 0 (`pkg/kubelet/eviction/helpers.go: inodeUsage`).
fn disk_usage(bytes: Option<u64>, inodes: Option<u64>) -> Option<DiskUsage> {
    Some(DiskUsage { bytes: bytes?, inodes: inodes.unwrap_or_default(), ..DiskUsage::default() })
}

impl Pod {
    fn values(&self) -> PodStatValues {
        PodStatValues {
            has_memory: self.memory.is_some(),
            memory_working_set: self.memory.and_then(|memory| memory.working_set_bytes),
            memory_anonymous: self.memory.and_then(|memory| memory.rss_bytes),
            ephemeral_storage_used: self.ephemeral_storage.and_then(|fs| fs.used),
            process_count: self.process_stats.and_then(|stats| stats.process_count),
            bytes_elsewhere: self.bytes_elsewhere,
        }
    }

    /// Returns the storage on the node's disks. The Summary also has volumes that are elsewhere, like those of
    /// persistent volume claims.
    fn storage(&self, request: &StorageRequest) -> PodStorage {
        let of = |fs: Option<FsUsage>| fs.and_then(|fs| disk_usage(fs.used, fs.inodes));
        let volumes = self
            .volume
            .iter()
            .filter(|it| request.counts_volume(&it.name))
            .filter_map(|it| Some((it.name.clone(), disk_usage(it.used_bytes, it.inodes_used)?)));
        let containers = self.containers.iter().map(|it| ContainerStorage {
            name: it.name.clone(),
            rootfs: of(it.rootfs),
            layer: None,
            logs: of(it.logs),
        });
        PodStorage::new(volumes.collect(), containers.collect())
    }
}

impl Container {
    fn values(&self) -> ContainerStatValues {
        let rootfs = self.rootfs.unwrap_or_default();
        let logs = self.logs.unwrap_or_default();
        ContainerStatValues {
            memory_working_set: self.memory.and_then(|memory| memory.working_set),
            rootfs_used: rootfs.used,
            rootfs_inodes: rootfs.inodes,
            logs_used: logs.used,
            logs_inodes: logs.inodes,
        }
    }
}
