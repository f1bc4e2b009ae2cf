//! The usage of pods on the node's disks: volumes, logs and writable layers.
#![forbid(unsafe_code)]

mod reader;

use std::collections::BTreeMap;
use std::path::PathBuf;

use eviction_core::disk_layout::{DiskLayout, Parts};
use eviction_core::pod::Volume;
use eviction_core::pods::{KnownPod, LocalLimits, NamedLimit, mirrored_uid};
use eviction_core::snapshot::{ContainerStatValues, FsUsage};

use super::disk_usage::DiskUsage;
use super::monitor::SummaryFileSystems;
pub use reader::{StorageReader, read_pod_storage};

/// A pod whose storage is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageRequest {
    /// The uid of its object.
    pub uid: Box<str>,
    /// The kubelet's uid of the pod: for a static pod that of its manifest.
    pub kubelet_uid: Box<str>,
    logs: String,
    volumes: Vec<(Box<str>, &'static str)>,
    /// Each container's name, and where its writable layer is found.
    containers: Vec<(Box<str>, LayerSource)>,
    expected_inodes: u64,
}

/// Where the writable layer of a container is found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LayerSource {
    /// By the root of one of the processes in this `cgroup.procs`.
    Processes(PathBuf),
    /// In this directory of the host.
    Directory(PathBuf),
    /// It is not known.
    Unknown,
}

impl StorageRequest {
    /// Creates a request for a pod with these containers. Pods with few expected inodes are read before others.
    pub fn new(known: &KnownPod, containers: Vec<(Box<str>, PathBuf)>, expected_inodes: u64) -> Self {
        let pod = &known.pod;
        let volumes = pod.volumes.iter().filter_map(|volume| Some((volume.name.clone(), plugin(volume)?)));
        let kubelet_uid = mirrored_uid(pod).unwrap_or(&pod.uid);
        Self {
            uid: pod.uid.clone(),
            kubelet_uid: kubelet_uid.into(),
            logs: format!("{}_{}_{kubelet_uid}", pod.namespace, pod.name),
            volumes: volumes.collect(),
            containers: containers
                .into_iter()
                .map(|(name, procs)| (name, LayerSource::Processes(procs)))
                .collect(),
            expected_inodes,
        }
    }

    /// Creates a request for what is left of a pod after its processes have ended. `storage` is its last reading.
    pub fn of_remaining(known: &KnownPod, storage: &PodStorage) -> Self {
        let containers = storage.containers.iter().map(|container| {
            let layer = container.layer.clone().map_or(LayerSource::Unknown, LayerSource::Directory);
            (container.name.clone(), layer)
        });
        Self { containers: containers.collect(), ..Self::new(known, Vec::new(), storage.inodes()) }
    }

    /// Returns whether the volume of this name counts as the pod's usage of the node's disks.
    pub fn counts_volume(&self, name: &str) -> bool {
        self.volumes.iter().any(|(volume, _)| **volume == *name)
    }
}

/// Returns the directory of volumes of this kind; `None` if its usage is not on the node's disk, or not the
/// pod's.
fn plugin(volume: &Volume) -> Option<&'static str> {
    match &volume.empty_dir {
        Some(dir) if dir.medium.is_empty() => Some("kubernetes.io~empty-dir"),
        Some(_) => None,
        None if volume.git_repo => Some("kubernetes.io~git-repo"),
        None if volume.config_map => Some("kubernetes.io~configmap"),
        None => None,
    }
}

/// The usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStorage {
    volumes: Vec<(Box<str>, DiskUsage)>,
    containers: Vec<ContainerStorage>,
    /// Whether there is a volume that could not be read.
    has_unknown_volume: bool,
    /// A lower bound of the bytes that the pod has written to the node's disks outside of its volumes and
    /// writable layers, or to deleted files that are still open; `None` if they are not counted.
    pub bytes_elsewhere: Option<u64>,
}

/// The usage of a container; `None` for a part that is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStorage {
    /// Its name.
    pub name: Box<str>,
    /// Its writable layer.
    pub rootfs: Option<DiskUsage>,
    /// The directory of the writable layer on the host, if it was found.
    pub layer: Option<PathBuf>,
    /// Its logs.
    pub logs: Option<DiskUsage>,
}

impl PodStorage {
    /// Creates the usage of a pod with these volumes and containers, as far as they are known.
    pub fn new(volumes: Vec<(Box<str>, DiskUsage)>, containers: Vec<ContainerStorage>) -> Self {
        Self { volumes, containers, ..Self::default() }
    }

    /// Returns the usage of a pod of which nothing is known.
    pub fn unknown() -> Self {
        Self { has_unknown_volume: true, ..Self::default() }
    }

    /// Returns whether not everything of it could be read.
    fn is_lower_bound(&self) -> bool {
        self.has_unknown_volume || self.containers.iter().any(|it| it.rootfs.is_none() || it.logs.is_none())
    }

    /// Returns `ephemeral-storage` of the Summary: the sum of everything, if everything is known.
    pub fn ephemeral_storage(&self) -> Option<u64> {
        let sum = self.total();
        (!self.is_lower_bound() && !sum.is_lower_bound).then_some(sum.bytes)
    }

    /// Returns the bytes of the volumes and writable layers, which the containers write themselves, if all of
    /// them are known.
    pub fn written_by_containers(&self) -> Option<u64> {
        let layers = self.containers.iter().map(|it| it.rootfs).collect::<Option<Vec<_>>>()?;
        let sum = sum(self.volumes.iter().map(|(_, usage)| *usage).chain(layers));
        (!self.has_unknown_volume && !sum.is_lower_bound).then_some(sum.bytes)
    }

    /// Returns each volume as in the Summary. A lower bound must not exceed a limit; where it does, the usage
    /// is left out.
    pub fn volumes<'a>(&'a self, known: &'a KnownPod) -> impl Iterator<Item = (&'a str, FsUsage)> {
        self.volumes.iter().map(|(name, usage)| {
            let limit =
                known.limits.empty_dirs.iter().find(|limit| limit.name == *name).map(|limit| limit.limit);
            let exceeds = limit.is_some_and(|limit| i128::from(usage.bytes) > limit);
            let used = (!(usage.is_lower_bound && exceeds)).then_some(usage.bytes);
            (&**name, FsUsage { used, inodes: Some(usage.inodes) })
        })
    }

    /// Returns the storage of a container as in the Summary. For a container with a limit only exact values are
    /// returned.
    pub fn container(&self, name: &str, known: &KnownPod) -> ContainerStatValues {
        let Some(found) = self.containers.iter().find(|it| *it.name == *name) else {
            return ContainerStatValues::default();
        };
        let is_limited = known.limits.containers.iter().any(|limit| *limit.name == *name);
        let of = |usage: Option<DiskUsage>| usage.filter(|usage| !(is_limited && usage.is_lower_bound));
        let (rootfs, logs) = (of(found.rootfs), of(found.logs));
        ContainerStatValues {
            memory_working_set: None,
            rootfs_used: rootfs.map(|usage| usage.bytes),
            rootfs_inodes: rootfs.map(|usage| usage.inodes),
            logs_used: logs.map(|usage| usage.bytes),
            logs_inodes: logs.map(|usage| usage.inodes),
        }
    }

    /// Returns the bytes that the pod can still write before it may exceed one of its limits, at least 1.
    /// `None` if it exceeds one, or if its usage is unknown. The default value is the usage of a pod that was
    /// just created. With a dedicated imagefs, writable layers do not count for the limits of containers.
    pub fn headroom(&self, known: &KnownPod, dedicated_image_fs: bool) -> Option<u64> {
        let LocalLimits { empty_dirs, pod, containers } = &known.limits;
        let exact = |usage: DiskUsage| (!usage.is_lower_bound).then_some(usage.bytes);
        let of_volume = |name: &str| match self.volumes.iter().find(|(it, _)| **it == *name) {
            Some((_, usage)) => exact(*usage),
            None => (!self.is_lower_bound()).then_some(0),
        };
        let of_container = |name: &str| match self.containers.iter().find(|it| *it.name == *name) {
            Some(it) if dedicated_image_fs => exact(it.logs?),
            Some(it) => exact(it.rootfs?.plus(it.logs?)),
            None => (!self.is_lower_bound()).then_some(0),
        };
        let on_disk = |dir: &&NamedLimit| known.pod.volumes.get(dir.index).and_then(plugin).is_some();
        let dirs = empty_dirs.iter().filter(on_disk).map(|dir| (of_volume(&dir.name), dir.limit));
        let containers = containers.iter().map(|it| (of_container(&it.name), it.limit));
        let pod = pod.map(|limit| (self.ephemeral_storage(), limit));
        let remaining = dirs.chain(containers).chain(pod).filter_map(|(used, limit)| {
            let first_beyond = u64::try_from((limit + 1).clamp(0, i64::MAX.into())).unwrap_or(0);
            Some(first_beyond.saturating_sub(used?))
        });
        remaining.min().filter(|remaining| *remaining > 0)
    }

    /// Returns what is known of the usage of nodefs and of imagefs by these pods. If both are one file system, it is
    /// the usage of nodefs, and imagefs has none.
    pub fn sum_by_file_system<'a>(
        pods: impl Iterator<Item = &'a Self>,
        layout: DiskLayout,
    ) -> [DiskUsage; 2] {
        let has_layers_on_image_fs = layout.has_layers_on_image_fs();
        pods.map(Self::by_part).fold([DiskUsage::default(); 2], |[node, image], [rest, layers]| {
            match has_layers_on_image_fs {
                true => [node.plus(rest), image.plus(layers)],
                false => [node.plus(rest).plus(layers), image],
            }
        })
    }

    /// Returns what is known of its logs and writable layers, as [`Self::sum_by_file_system`] does. They remain when the
    /// pod has terminated; its volumes do not.
    pub fn remaining_by_file_system(&self, layout: DiskLayout) -> [DiskUsage; 2] {
        let remaining = Self { volumes: Vec::new(), ..self.clone() };
        Self::sum_by_file_system(std::iter::once(&remaining), layout)
    }

    /// Returns the inodes of everything that is known.
    pub fn inodes(&self) -> u64 {
        self.total().inodes
    }

    /// Returns what is known of its volumes and logs, and of its writable layers.
    fn by_part(&self) -> [DiskUsage; 2] {
        let volumes = self.volumes.iter().map(|(_, usage)| *usage);
        let logs = self.containers.iter().filter_map(|it| it.logs);
        [sum(volumes.chain(logs)), sum(self.containers.iter().filter_map(|it| it.rootfs))]
    }

    /// Returns the sum of everything that is known.
    fn total(&self) -> DiskUsage {
        sum(self.by_part().into_iter())
    }
}

fn sum(usages: impl Iterator<Item = DiskUsage>) -> DiskUsage {
    usages.fold(DiskUsage::default(), DiskUsage::plus)
}

/// Inodes that a pod created less those that it removed, since its storage was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeGrowth {
    /// The id of its cgroup.
    pub cgroup: u64,
    /// Inodes on nodefs and on imagefs, which may be the same.
    pub inodes: [i64; 2],
}

impl InodeGrowth {
    /// Adds the growth on nodefs, or on imagefs, to the inodes that were read of a part of the pod. If more was
    /// removed than there was in that part, the rest is left for the next one.
    pub fn add_to(&mut self, is_image_fs: bool, inodes: Option<u64>) -> Option<u64> {
        let growth = &mut self.inodes[usize::from(is_image_fs)];
        let grown = inodes?.saturating_add_signed(*growth);
        *growth = growth.wrapping_sub(grown.wrapping_sub(inodes?).cast_signed());
        Some(grown)
    }
}

/// The storage that was read of some pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageSample {
    /// When the reading began, CLOCK_MONOTONIC in nanoseconds.
    pub began_ns: u64,
    /// How long the reading took, in nanoseconds.
    pub took_ns: u64,
    /// The usage of each pod, by uid.
    pub pods: BTreeMap<Box<str>, PodStorage>,
    /// Parts that could not be read of any pod.
    pub unmeasured: Parts,
    /// The node's file systems, if the kubelet was asked.
    pub file_systems: Option<SummaryFileSystems>,
}

impl StorageSample {
    /// Returns a sample without values of any pod.
    pub fn unknown() -> Self {
        Self { unmeasured: Parts::ALL, ..Self::default() }
    }

    /// Returns the bytes that are allocated beyond the ends of files, on nodefs and on imagefs, as
    /// [`PodStorage::sum_by_file_system`] does.
    pub fn preallocated(&self, layout: DiskLayout) -> [u64; 2] {
        PodStorage::sum_by_file_system(self.pods.values(), layout).map(|usage| usage.preallocated)
    }
}

#[cfg(test)]
mod tests;
