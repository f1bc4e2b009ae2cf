//! Samples the node: turns readings of files into a snapshot for the engine.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::cgroup::sampler::{NodeSample, Sampler};
use crate::psi::PsiReader;
use eviction_core::disk_layout::Parts;
use eviction_core::policy::Rules;
use eviction_core::policy::preferences::{MemoryMeasure, MemoryPreferences};
use eviction_core::reading::Reading;
use eviction_core::signal::Signal;
use eviction_core::signal_filter::{available, observe};
use eviction_core::snapshot::{
    ContainerStatValues, FsUsage, MemoryDetail, MemoryStats, NodeStats, PodStatValues, ProcessStats, Snapshot,
};

use crate::allocatable::{Allocatable, PodsRootSample};
pub use crate::cgroup::sampler::MemoryUsage;
use crate::clock::{Clock, Instant};
use crate::fs::{DiskMonitor, InodeGrowth, PodStorage, StorageSample};
use crate::pod_index::PodIndex;

/// The most memory.stat files that are read before a decision: those of the cgroups that use most memory. A
/// read takes about 10 µs. A full sample has read all of them a second ago.
const MAX_STATS: usize = 32;

/// The capacity of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of memory.
    pub memory: u64,
    /// Process ids.
    pub pids: u64,
}

/// The measures of available memory.
pub const MEASURES: [MemoryMeasure; 3] =
    [MemoryMeasure::WorkingSet, MemoryMeasure::MemAvailable, MemoryMeasure::WorkingSetMinusActiveFile];

/// One sample of the node, with the values that follow from it.
#[derive(Clone, Copy, Debug)]
pub struct CompleteSample {
    /// When the sample began. Values that were read since then belong to it.
    pub at: Instant,
    /// When the values were read, which is the time of the decisions on them. A grace period does not begin
    /// before its cause can be known (`pkg/kubelet/eviction/eviction_manager.go:synchronize` also reads the
    /// clock after the summary).
    pub read_at: Instant,
    /// Memory usage as it was read.
    pub memory: Reading<MemoryUsage>,
    /// Free memory of the machine, in bytes.
    pub free: Reading<u64>,
    /// Memory usage by the measure that the policy selects.
    pub measured: Reading<MemoryUsage>,
    /// Available memory by that measure, in bytes.
    pub memory_left: Reading<i64>,
    /// Available memory by each of [`MEASURES`], in bytes.
    pub by_measure: [Reading<i64>; MEASURES.len()],
    /// Available process ids.
    pub pids_left: Reading<i64>,
    /// The cgroup of all pods, if a threshold uses it and it was read.
    pub pods_root: Option<PodsRootSample>,
    /// The node's values as the engine gets them.
    pub stats: NodeStats,
}

/// Reads the node and its pods.
#[derive(Debug)]
pub struct NodeSampler {
    /// Reads the cgroups.
    pub cgroups: Sampler,
    /// Reads the cgroup of all pods.
    pub allocatable: Allocatable,
    /// Reads nodefs and imagefs.
    pub disks: DiskMonitor,
    /// Inodes that pods created since their storage was read, in order of their cgroup ids. They are added to
    /// the values that were read.
    pub inode_growth: Vec<InodeGrowth>,
    storage: BTreeMap<Box<str>, PodStorage>,
    capacity: Capacity,
    /// A snapshot that is not used any more, in whose memory the next one is made.
    spare: Option<Arc<Snapshot>>,
    stalls: PsiReader,
    memory: MemoryPreferences,
    /// Whether measures besides the working set are read as well.
    all_measures: bool,
}

impl NodeSampler {
    /// Creates a sampler without a policy. `proc` is the folder of the proc file system.
    pub fn new(cgroups: Sampler, disks: DiskMonitor, capacity: Capacity, proc: &Path) -> Self {
        let stalls = PsiReader::open(cgroups.root(), proc);
        Self {
            cgroups,
            allocatable: Allocatable::default(),
            disks,
            inode_growth: Vec::new(),
            storage: BTreeMap::new(),
            capacity,
            spare: None,
            stalls,
            memory: MemoryPreferences::default(),
            all_measures: false,
        }
    }

    /// Applies a policy. The kubelet's profile needs one measure only.
    pub fn apply_rules(&mut self, rules: &Rules) {
        self.memory = rules.memory().clone();
        self.all_measures = rules.preferences.is_some();
        self.stalls.set_window(self.memory.psi.as_ref());
    }

    /// Returns the measure that `memory.available` uses.
    pub fn measure(&self) -> MemoryMeasure {
        self.memory.measure
    }

    /// Returns the interval, in nanoseconds, at which memory must be sampled to detect a stall while little is
    /// available.
    pub fn stall_interval_ns(&self) -> Option<u64> {
        self.stalls.interval_ns()
    }

    /// Returns the capacity of the node.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Reads the node's values, and those of the cgroup of all pods where that is due. The cgroups in `charged`
    /// (by id) are read first.
    pub fn sample_node(&mut self, at: Instant, clock: &Clock, charged: &[u64]) -> CompleteSample {
        let NodeSample { memory, free, capacity, detail } = self.cgroups.sample_node(charged);
        let processes = self.process_stats(at);
        let detail = self.within_capacity(capacity, detail);
        let by_measure = self.by_measure(memory, &detail);
        let detail = match self.all_measures {
            true => self.stalls.read_into(detail, at.mono_ns),
            false => MemoryDetail::default(),
        };
        let (allocatable_memory, pods_root) = self.allocatable.sample(&mut self.cgroups, at, charged);
        let stats = NodeStats {
            memory: memory.map(|usage| MemoryStats {
                available: Some(self.capacity.memory.saturating_sub(usage.working_set)),
                working_set: Some(usage.working_set),
                time: Some(at.wall),
            }),
            memory_detail: detail,
            allocatable_memory,
            processes,
            ..self.read_disks(at)
        };
        let observation = observe(&stats, self.memory.measure);
        let available_of = |signal| observation.reading(signal).map(|value| value.available);
        let memory_left = available_of(Signal::MemoryAvailable);
        CompleteSample {
            at,
            read_at: clock.now(),
            memory,
            free,
            measured: memory.map(|usage| usage.by_measure(self.capacity.memory, memory_left.known())),
            memory_left,
            by_measure,
            pids_left: available_of(Signal::PidAvailable),
            pods_root,
            stats,
        }
    }

    fn by_measure(
        &self,
        memory: Reading<MemoryUsage>,
        detail: &MemoryDetail,
    ) -> [Reading<i64>; MEASURES.len()] {
        let usage = match memory {
            Reading::Known(usage) => usage,
            Reading::Unknown(why) => return [Reading::Unknown(why); MEASURES.len()],
        };
        let total = self.capacity.memory;
        let left = total.saturating_sub(usage.working_set);
        let [total, left] = [total, left].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        MEASURES.map(|measure| available(left, total, detail, measure))
    }

    /// Reads the process ids and the disks only.
    pub fn read_pids_and_disks(&mut self, at: Instant) -> NodeStats {
        NodeStats { processes: self.process_stats(at), ..self.read_disks(at) }
    }

    fn read_disks(&mut self, at: Instant) -> NodeStats {
        let [node_fs, image_fs] = self.disks.read(at);
        let container_fs = if self.disks.layout().split_image_fs { node_fs } else { image_fs };
        NodeStats { node_fs, image_fs, container_fs, unmeasured: Parts::ALL, ..NodeStats::default() }
    }

    /// Subtracts the memory that the machine has beyond the node's capacity, since it is not available to the
    /// node.
    fn within_capacity(&self, machine: Reading<u64>, detail: MemoryDetail) -> MemoryDetail {
        let beyond_capacity = machine.known().unwrap_or(0).saturating_sub(self.capacity.memory);
        let mem_available = detail.mem_available.map(|bytes| bytes.saturating_sub(beyond_capacity));
        MemoryDetail { mem_available, ..detail }
    }

    /// Returns a snapshot of the node alone. It is enough for an evaluation that ranks no pods.
    pub fn snapshot_of_node(&mut self, sample: &CompleteSample) -> Arc<Snapshot> {
        let mut snapshot = self.spare.take().unwrap_or_default();
        Arc::make_mut(&mut snapshot).reset(sample.stats);
        snapshot
    }

    /// Samples the pods for a decision on this sample of the node. Pods that may be evicted are read again. Their
    /// tasks are not counted.
    pub fn sample_pods(&mut self, sample: &CompleteSample) {
        self.cgroups.sample_changed(MAX_STATS, sample.at.mono_ns);
    }

    /// Reads the memory of the pods at these index positions once more, unless it was read for this sample.
    /// Returns whether anything was read.
    pub fn read_again(
        &mut self,
        sample: &CompleteSample,
        pod_index: &PodIndex,
        indices: impl Iterator<Item = u32>,
    ) -> bool {
        let mut was_read = false;
        for index in indices {
            // A pod has more than one cgroup while the kubelet's cgroup driver is being changed.
            for id in pod_index.cgroup_ids_of(index) {
                was_read |= self.cgroups.read_again(id, sample.at.mono_ns);
            }
        }
        was_read
    }

    /// Returns a snapshot with the values of the node and of all pods as they were read last.
    pub fn snapshot_of_pods(&mut self, sample: &CompleteSample, pod_index: &PodIndex) -> Arc<Snapshot> {
        let mut shared = self.snapshot_of_node(sample);
        // There is no other reference yet, so that nothing is copied.
        let snapshot = Arc::make_mut(&mut shared);
        let layers_on_image_fs = self.disks.layout().has_layers_on_image_fs();
        for (cgroup, sample) in self.cgroups.last_pods() {
            let Some(known) = pod_index.pod_of(cgroup) else { continue };
            let storage = self.storage.get(&known.pod.uid);
            let values = PodStatValues {
                has_memory: true,
                memory_working_set: sample.working_set.known(),
                memory_anonymous: sample.stat.anon.known(),
                process_count: sample.tasks.known(),
                ephemeral_storage_used: storage.and_then(PodStorage::ephemeral_storage),
                bytes_elsewhere: storage.and_then(|storage| storage.bytes_elsewhere),
            };
            let mut growth = self.growth_of(cgroup.cgroup_id);
            snapshot.add_pod(&known.pod.uid, values);
            for container in &cgroup.containers {
                let group = self.cgroups.group(container.cgroup_id);
                let name = pod_index.container_name(&container.id);
                let storage = storage.map(|storage| storage.container(name, known)).unwrap_or_default();
                let values = ContainerStatValues {
                    memory_working_set: group.and_then(|group| group.working_set.known()),
                    rootfs_inodes: growth.add_to(layers_on_image_fs, storage.rootfs_inodes),
                    logs_inodes: growth.add_to(false, storage.logs_inodes),
                    ..storage
                };
                snapshot.add_container(name, values);
            }
            for (name, values) in storage.into_iter().flat_map(|storage| storage.volumes(known)) {
                let inodes = growth.add_to(false, values.inodes);
                snapshot.add_volume(name, FsUsage { inodes, ..values });
            }
        }
        // The pod of each value is looked up once, for the evaluation and for the telemetry about it.
        snapshot.index(pod_index.active());
        shared
    }

    fn growth_of(&self, cgroup: u64) -> InodeGrowth {
        let index = self.inode_growth.binary_search_by_key(&cgroup, |growth| growth.cgroup).ok();
        let found = index.and_then(|index| self.inode_growth.get(index)).copied();
        found.unwrap_or(InodeGrowth { cgroup, inodes: [0; 2] })
    }

    /// Returns the last reading of a pod's storage.
    pub fn storage_of(&self, uid: &str) -> Option<&PodStorage> {
        self.storage.get(uid)
    }

    /// Takes the storage values of some pods, and removes those of pods that do not run any more.
    pub fn take_storage(&mut self, sample: StorageSample, pod_index: &PodIndex) {
        self.storage.extend(sample.pods);
        self.storage.retain(|uid, _| pod_index.active().index_of(uid).is_some());
    }

    /// Keeps the memory of a snapshot for the next one, if there is no other reference to it.
    pub fn recycle(&mut self, mut snapshot: Arc<Snapshot>) {
        if Arc::get_mut(&mut snapshot).is_some() {
            self.spare = Some(snapshot);
        }
    }

    fn process_stats(&self, at: Instant) -> Reading<ProcessStats> {
        self.cgroups.read_task_count().map(|tasks| ProcessStats {
            max: Some(signed(self.capacity.pids)),
            running: Some(signed(tasks)),
            time: Some(at.wall),
        })
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
