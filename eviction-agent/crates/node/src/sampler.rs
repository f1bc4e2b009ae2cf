//! Looks at the node: from readings of files to a snapshot for the engine.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::cgroup::files::Limit;
use crate::cgroup::sample::{NodeSample, Tasks};
use crate::cgroup::sampler::Sampler;
use crate::proc::tasks::TaskCounter;
use crate::psi::{PsiReader, PsiReading};
use eviction_core::disk_layout::Parts;
use eviction_core::pods::PodSet;
use eviction_core::policy::Rules;
use eviction_core::policy::preferences::{MemoryMeasure, MemoryPreferences};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::signal::Signal;
use eviction_core::signal_filter::{available, observe};
use eviction_core::snapshot::{
    ContainerStatValues, MemoryDetail, MemoryStats, NodeStats, PodStatValues, ProcessStats, Snapshot,
    SnapshotBuilder, SnapshotPool, SourceId, VolumeStatValues,
};

use crate::allocatable::{Allocatable, PodsRootSample};
pub use crate::cgroup::sample::MemoryUsage;
use crate::clock::{Clock, Instant};
use crate::fs::{DiskMonitor, InodeGrowth, NodeFileSystems, PodStorage, StorageSample};
use crate::pod_index::PodIndex;

/// The most memory.stat files that are read before a decision, those of the groups that use most:
/// a read takes some 10 µs. A full sample has read all of them a second ago.
const MOST_STATS: usize = 32;

/// What counts as the node.
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

/// What was seen of the node itself, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub struct CompleteSample {
    /// When it began: what was read since is of this sample.
    pub at: Instant,
    /// When that was read, and so the time of what is decided by it: a grace period does not begin
    /// before anybody can have known (`pkg/kubelet/eviction/eviction_manager.go:synchronize` asks
    /// the clock after the summary as well).
    pub read_at: Instant,
    /// As it was read.
    pub memory: Reading<MemoryUsage>,
    /// What is free on the machine.
    pub free: Reading<u64>,
    /// The same by the measure that the policy asks for.
    pub measured: Reading<MemoryUsage>,
    /// Memory that is available by that measure.
    pub memory_left: Reading<i64>,
    /// The same by each measure.
    pub by_measure: [Reading<i64>; MEASURES.len()],
    /// Tasks that there are.
    pub tasks: Reading<u64>,
    /// Process ids that are left.
    pub pids_left: Reading<i64>,
    /// The group of all pods, if a threshold is about it and it was read.
    pub pods_root: Option<PodsRootSample>,
    /// As the engine is told of it.
    pub stats: NodeStats,
}

/// Reads the node and its pods.
#[derive(Debug)]
pub struct NodeSampler {
    /// Reads the cgroups.
    pub cgroups: Sampler,
    /// Reads the group of all pods.
    pub allocatable: Allocatable,
    /// Reads nodefs and imagefs.
    pub disks: DiskMonitor,
    /// What pods made since they were read, to be added to it; in order of their cgroups' ids.
    pub inode_growth: Vec<InodeGrowth>,
    storage: BTreeMap<Box<str>, PodStorage>,
    capacity: Capacity,
    tasks: Option<TaskCounter>,
    spare: SnapshotPool,
    stalls: PsiReader,
    memory: MemoryPreferences,
    /// Whether measures beside the working set are read as well.
    all_measures: bool,
}

impl NodeSampler {
    /// `whole_machine`: tasks are those of the machine, not of a group.
    pub fn new(sampler: Sampler, capacity: Capacity, proc: &Path, whole_machine: bool) -> Self {
        let tasks = whole_machine.then(|| TaskCounter::open(proc));
        let stalls = PsiReader::open(sampler.root(), proc);
        let memory = MemoryPreferences::default();
        Self {
            cgroups: sampler,
            allocatable: Allocatable::default(),
            disks: DiskMonitor::new(NodeFileSystems::none(), 1),
            inode_growth: Vec::new(),
            storage: BTreeMap::new(),
            capacity,
            tasks,
            spare: SnapshotPool::default(),
            stalls,
            memory,
            all_measures: false,
        }
    }

    /// Measures as a policy wants it. The kubelet's profile needs one measure only.
    pub fn follow(&mut self, rules: &Rules) {
        self.memory = rules.memory().clone();
        self.all_measures = rules.preferences.is_some();
        self.stalls.ask(self.memory.psi.as_ref());
    }

    /// What `memory.available` is.
    pub fn measure(&self) -> MemoryMeasure {
        self.memory.measure
    }

    /// How soon memory must be looked at again while there is little, to see a stall.
    pub fn stall_interval_ns(&self) -> Option<u64> {
        self.stalls.interval_ns()
    }

    /// Returns what the node has in all.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Reads the node's own values, and those of all pods where that is due: the leaves in `charged` first.
    pub fn sample_node(&mut self, at: Instant, clock: &Clock, charged: &[u64]) -> CompleteSample {
        let NodeSample { level, free, capacity, detail } = self.cgroups.sample_node(charged);
        let memory = match (level.usage, level.working_set) {
            (Reading::Known(usage), Reading::Known(working_set)) => {
                Reading::Known(MemoryUsage { usage, working_set })
            }
            (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => Reading::Unknown(why),
        };
        let tasks = self.tasks();
        let by_measure = self.by_measure(memory, capacity, detail);
        let detail = match self.all_measures {
            true => self.detail(at, capacity, detail),
            false => MemoryDetail::default(),
        };
        let (allocatable_memory, pods_root) = self.allocatable.sample(&mut self.cgroups, at, charged);
        let NodeStats { node_fs, image_fs, container_fs, unmeasured, .. } = self.read_disks(at);
        let stats = NodeStats {
            allocatable_memory,
            node_fs,
            image_fs,
            container_fs,
            unmeasured,
            ..self.node_stats(at, memory, tasks, detail)
        };
        let seen = observe(&stats, self.memory.measure);
        let left = |signal| seen.reading(signal).map(|seen| seen.available);
        let memory_left = left(Signal::MemoryAvailable);
        CompleteSample {
            at,
            read_at: clock.now(),
            memory,
            free,
            measured: memory.map(|seen| seen.by_measure(self.capacity.memory, memory_left.known())),
            memory_left,
            by_measure,
            tasks,
            pids_left: left(Signal::PidAvailable),
            pods_root,
            stats,
        }
    }

    fn by_measure(
        &self,
        memory: Reading<MemoryUsage>,
        machine: Reading<u64>,
        detail: MemoryDetail,
    ) -> [Reading<i64>; MEASURES.len()] {
        let seen = match memory {
            Reading::Known(seen) => seen,
            Reading::Unknown(why) => return [Reading::Unknown(why); MEASURES.len()],
        };
        let detail = self.within_capacity(machine, detail);
        let total = self.capacity.memory;
        let left = total.saturating_sub(seen.working_set);
        let [total, left] = [total, left].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        MEASURES.map(|measure| available(left, total, &detail, measure))
    }

    fn tasks(&self) -> Reading<u64> {
        match &self.tasks {
            Some(machine) => machine.read(),
            None => self.cgroups.read_task_count(),
        }
    }

    /// Reads what is available of process ids, and nothing else.
    pub fn available_pids(&self, at: Instant) -> Reading<i64> {
        let (memory, detail) = (Reading::Unknown(UnknownReason::Absent), MemoryDetail::default());
        let stats = self.node_stats(at, memory, self.tasks(), detail);
        observe(&stats, self.memory.measure).reading(Signal::PidAvailable).map(|seen| seen.available)
    }

    /// Reads what is available of disks, and nothing else.
    pub fn read_disks(&mut self, at: Instant) -> NodeStats {
        let [node_fs, image_fs] = self.disks.read(at);
        // The kubelet's statistics have containerfs on the file system of the images as well.
        NodeStats {
            node_fs,
            image_fs,
            container_fs: image_fs,
            unmeasured: Parts::ALL,
            ..NodeStats::default()
        }
    }

    /// Where the node counts for less than the machine has, the rest is not available.
    fn within_capacity(&self, machine: Reading<u64>, detail: MemoryDetail) -> MemoryDetail {
        let left_out = machine.known().unwrap_or(0).saturating_sub(self.capacity.memory);
        let mem_available = detail.mem_available.map(|bytes| bytes.saturating_sub(left_out));
        MemoryDetail { mem_available, ..detail }
    }

    /// Adds stalls.
    fn detail(&mut self, at: Instant, machine: Reading<u64>, detail: MemoryDetail) -> MemoryDetail {
        let PsiReading { some_avg10, full_avg10, stalled } = self.stalls.read(at.mono_ns);
        let detail = self.within_capacity(machine, detail);
        MemoryDetail { some_avg10, full_avg10, stalled, ..detail }
    }

    /// A snapshot of the node alone: enough for a pass that ranks nobody.
    pub fn snapshot_of_node(&mut self, sample: &CompleteSample) -> SnapshotBuilder {
        let mut builder = self.spare.begin();
        builder.node(sample.stats);
        builder
    }

    /// The same with the values of all pods, fresh ones for those that may go.
    pub fn snapshot_with_pods(
        &mut self,
        sample: &CompleteSample,
        pod_index: &PodIndex,
        tasks: Tasks,
    ) -> SnapshotBuilder {
        self.cgroups.sample_changed(MOST_STATS, sample.at.mono_ns, tasks);
        self.snapshot_of_pods(sample, pod_index)
    }

    /// Reads the memory of the pods at these places once more, unless it was read for this sample.
    /// Whether anything was read.
    pub fn read_again(
        &mut self,
        sample: &CompleteSample,
        pod_index: &PodIndex,
        places: impl Iterator<Item = u32>,
    ) -> bool {
        let mut any = false;
        for place in places {
            // More than one while the kubelet's cgroup driver is being changed.
            for id in pod_index.cgroup_ids_of(place) {
                any |= self.cgroups.read_again(id, sample.at.mono_ns);
            }
        }
        any
    }

    /// The values of the node and of all pods as they were read last.
    pub fn snapshot_of_pods(&mut self, sample: &CompleteSample, pod_index: &PodIndex) -> SnapshotBuilder {
        let mut builder = self.snapshot_of_node(sample);
        let is_dedicated = self.disks.layout().dedicated_image_fs;
        // Samples are in the order of the pods; one whose group is gone has none.
        let mut samples = self.cgroups.last_pods().iter().peekable();
        for cgroup in &self.cgroups.pods().pods {
            let sample = samples.next_if(|sample| sample.memory.cgroup_id == cgroup.cgroup_id);
            let Some(known) = pod_index.pod_of(cgroup) else { continue };
            let Some(sample) = sample else { continue };
            let storage = self.storage.get(&known.pod.uid);
            let values = PodStatValues {
                has_memory: true,
                memory_working_set: sample.memory.working_set.known(),
                memory_anonymous: sample.memory.stat.anon.known(),
                process_count: sample.tasks.known(),
                ephemeral_storage_used: storage.and_then(PodStorage::ephemeral_storage),
            };
            let mut growth = self.growth_of(cgroup.cgroup_id);
            let mut pod = builder.pod(&known.pod.uid, values);
            for container in &cgroup.containers {
                let group = self.cgroups.group(container.cgroup_id);
                let name = pod_index.container_name(&container.id);
                let storage = storage.map(|storage| storage.container(name, known)).unwrap_or_default();
                let values = ContainerStatValues {
                    memory_working_set: group.and_then(|group| group.working_set.known()),
                    rootfs_inodes: growth.add_to(is_dedicated, storage.rootfs_inodes),
                    logs_inodes: growth.add_to(false, storage.logs_inodes),
                    ..storage
                };
                pod.container(name, values);
            }
            for (name, values) in storage.into_iter().flat_map(|storage| storage.volumes(known)) {
                let inodes = growth.add_to(false, values.inodes);
                pod.volume(name, VolumeStatValues { inodes, ..values });
            }
        }
        builder
    }

    fn growth_of(&self, cgroup: u64) -> InodeGrowth {
        let place = self.inode_growth.binary_search_by_key(&cgroup, |growth| growth.cgroup).ok();
        let found = place.and_then(|place| self.inode_growth.get(place)).copied();
        found.unwrap_or(InodeGrowth { cgroup, inodes: [0; 2] })
    }

    /// Takes what some pods use of the disks, and forgets pods that do not run any more.
    pub fn take_storage(&mut self, sample: StorageSample, pod_index: &PodIndex) {
        self.storage.extend(sample.pods);
        self.storage.retain(|uid, _| pod_index.active().index_of(uid).is_some());
    }

    /// Ends a snapshot, for an engine that knows these pods. Whose values they are is looked up
    /// once for the pass and for all that is told of it.
    pub fn finish(&mut self, builder: SnapshotBuilder, pods: &Arc<PodSet>) -> Arc<Snapshot> {
        let mut snapshot = builder.finish();
        if !snapshot.is_empty() {
            snapshot.index(pods);
        }
        self.spare.share(snapshot)
    }

    /// Gives a snapshot's memory back for the next one, if nobody keeps it.
    pub fn recycle(&mut self, snapshot: Arc<Snapshot>) {
        self.spare.recycle(snapshot);
    }

    /// The values of the node.
    fn node_stats(
        &self,
        at: Instant,
        memory: Reading<MemoryUsage>,
        tasks: Reading<u64>,
        detail: MemoryDetail,
    ) -> NodeStats {
        let time = Some(at.wall);
        let source = SourceId::default();
        NodeStats {
            memory: memory.map(|seen| MemoryStats {
                available: Some(self.capacity.memory.saturating_sub(seen.working_set)),
                working_set: Some(seen.working_set),
                time,
                source,
            }),
            processes: tasks.map(|tasks| ProcessStats {
                max: Some(signed(self.capacity.pids)),
                running: Some(signed(tasks)),
                time,
                source,
            }),
            memory_detail: detail,
            ..NodeStats::default()
        }
    }
}

/// What the node's group itself sets as limits, where the caller gave no capacity.
pub fn pid_limit(sampler: &Sampler) -> Reading<u64> {
    match sampler.read_tasks().1 {
        Reading::Known(Limit::At(limit)) => Reading::Known(limit),
        Reading::Known(Limit::Unlimited) => Reading::Unknown(UnknownReason::Absent),
        Reading::Unknown(why) => Reading::Unknown(why),
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
