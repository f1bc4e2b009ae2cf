//! What the probes on ext4 count for each pod.
//!
//! **Inodes.** A volume with many inodes takes long to read, and the pod that fills it creates thousands more meanwhile. So
//! pods are read while the threshold comes nearer, and the inodes that were counted since are added when it is
//! crossed. Bytes are not counted like that: buffered writes can be attributed only while the on-demand
//! probe is attached.
//!
//! **Bytes.** Bytes that a pod has taken and no reading finds are in files elsewhere, such as those of a hostPath
//! volume, or in deleted files that are still open. The agent reports them ([`ControlLoop::add_bytes_elsewhere`]).

use std::collections::BTreeMap;

use eviction_bpf::DiskUsageKey;
use eviction_node::cgroup::names::ContainerKind;
use eviction_node::cgroup::pods::Pod;
use eviction_node::fs::{InodeGrowth, StorageSample};

use super::ControlLoop;

/// Bytes elsewhere that are fewer than this are not reported: what is written while pods are read, and blocks of
/// the file system itself, are among them.
const MIN_ELSEWHERE: i64 = 1 << 20;

/// What the probes on ext4 have counted for a pod so far.
#[derive(Clone, Debug, Default)]
pub(super) struct PodCounts {
    /// Inodes that were created on nodefs and on imagefs.
    inodes: [i64; 2],
    /// Bytes that the containers took less those that they freed.
    bytes: i64,
    /// The ids of the containers' cgroups, sorted.
    containers: Vec<u64>,
}

impl PodCounts {
    /// Returns the inodes that the pod created on nodefs or imagefs, whichever is more: they may be the same file
    /// system.
    pub(super) fn created_inodes(&self) -> u64 {
        let [node, image] = self.inodes;
        u64::try_from(node.max(image)).unwrap_or(0)
    }

    /// Returns the counts without the bytes that a reading found: the rest is elsewhere.
    fn without(&self, found: u64) -> Self {
        Self { bytes: self.bytes.saturating_sub_unsigned(found), ..self.clone() }
    }

    /// Returns whether a container of `before` has ended.
    fn lacks_container_of(&self, before: &Self) -> bool {
        before.containers.iter().any(|id| self.containers.binary_search(id).is_err())
    }

    /// Returns the bytes elsewhere that were added since `before`, if they are worth a report.
    fn elsewhere_since(&self, before: &Self) -> Option<u64> {
        let elsewhere = self.bytes.saturating_sub(before.bytes);
        (elsewhere >= MIN_ELSEWHERE).then_some(elsewhere.unsigned_abs())
    }
}

impl ControlLoop {
    /// Adds the inodes that pods created since they were read, if only inodes are short, and each pod was read and
    /// counted. Returns whether it did.
    pub(super) fn add_counted_inodes(&mut self, now_ns: u64) -> bool {
        self.node_sampler.inode_growth.clear();
        if !self.node_sampler.disks.are_inodes_alone_short() {
            return false;
        }
        let Some(before) = self.storage.counts_at_reading(now_ns) else { return false };
        let Some(now) = self.count_disk_usage() else { return false };
        let since = now.iter().map(|(&cgroup, PodCounts { inodes: now, .. })| {
            let [node, image] = before.get(&cgroup)?.inodes;
            Some(InodeGrowth { cgroup, inodes: [now[0].wrapping_sub(node), now[1].wrapping_sub(image)] })
        });
        // A pod without an earlier count has not been read.
        let Some(since) = since.collect::<Option<Vec<_>>>() else { return false };
        self.node_sampler.inode_growth = since;
        true
    }

    /// Returns what each pod has taken so far of nodefs and imagefs, by the ids of the pods' cgroups; `None` unless
    /// both are counted.
    pub(super) fn count_disk_usage(&self) -> Option<BTreeMap<u64, PodCounts>> {
        let [node, image] = self.node_sampler.disks.ext4_devices();
        let devices = [node?, image?];
        let usage = self.notifier.bpf.disk_usage(&devices)?;
        let of = |cgroup: u64, device: u64| {
            usage.get(&DiskUsageKey { cgroup, device }).copied().unwrap_or_default()
        };
        let is_shared = devices[0] == devices[1];
        let of_pod = |pod: &Pod| {
            let mut ids: Vec<u64> = pod.containers.iter().map(|container| container.cgroup_id).collect();
            ids.push(pod.cgroup_id);
            ids.extend(&pod.leaves);
            ids.sort_unstable();
            ids.dedup();
            let inodes = devices.map(|device| ids.iter().map(|id| of(*id, device).inodes).sum());
            // The pod's cgroup has the bytes of containers that are gone, whose layers others have removed. A
            // monitor writes logs.
            let monitors = pod.containers.iter().filter(|it| it.kind == ContainerKind::Monitor);
            let others: Vec<u64> = monitors.map(|it| it.cgroup_id).chain([pod.cgroup_id]).collect();
            ids.retain(|id| !others.contains(id));
            let bytes =
                |id: &u64| of(*id, devices[0]).bytes + if is_shared { 0 } else { of(*id, devices[1]).bytes };
            (pod.cgroup_id, PodCounts { inodes, bytes: ids.iter().map(bytes).sum(), containers: ids })
        };
        let groups = self.node_sampler.cgroups.pods().pods.iter();
        let known = groups.filter(|group| self.pod_index.pod_of(group).is_some());
        Some(known.map(of_pod).collect())
    }

    /// Records the pods that are older than programs that were just loaded, whose counts of them are incomplete. Part of
    /// a full sample, which reads the cgroup tree before.
    pub(super) fn record_older_pods(&mut self) {
        let pods = self.node_sampler.cgroups.pods().pods.iter();
        self.storage.older_pods.get_or_insert_with(|| pods.map(|pod| (pod.cgroup_id, None)).collect());
    }

    /// Adds to each pod of a reading the bytes that were counted of it, and that the reading did not find. Those
    /// of a pod that is older than the programs are counted from its first reading on, or from the first one after
    /// the end of a container. The values are lower bounds: with cgroup v1 a kernel worker writes back what was
    /// written before the on-demand probe was attached. Files that are removed while pods are read may be included.
    pub(super) fn add_bytes_elsewhere(
        &mut self,
        counts: &BTreeMap<u64, PodCounts>,
        sample: &mut StorageSample,
    ) {
        let Some(older_pods) = &mut self.storage.older_pods else { return };
        for group in &self.node_sampler.cgroups.pods().pods {
            let Some(known) = self.pod_index.pod_of(group) else { continue };
            let Some(storage) = sample.pods.get_mut(&known.pod.uid) else { continue };
            let (Some(found), Some(counted)) =
                (storage.written_by_containers(), counts.get(&group.cgroup_id))
            else {
                continue;
            };
            let now = counted.without(found);
            let Some(before) = older_pods.get_mut(&group.cgroup_id) else {
                storage.bytes_elsewhere = now.elsewhere_since(&PodCounts::default());
                continue;
            };
            let before = before.get_or_insert_with(|| now.clone());
            if now.lacks_container_of(before) {
                // Its layer was read, and mostly not counted.
                before.clone_from(&now);
            }
            storage.bytes_elsewhere = now.elsewhere_since(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_that_no_reading_found_are_elsewhere() {
        const MIB: i64 = 1 << 20;
        let at = |counted: i64, read: i64| {
            PodCounts { bytes: counted * MIB, ..PodCounts::default() }.without((read * MIB).unsigned_abs())
        };
        for (now, before, expected) in [
            (at(9, 9), PodCounts::default(), None),
            (at(9, 4), PodCounts::default(), Some(5)),
            (at(4, 9), PodCounts::default(), None),
            (at(20, 30), at(10, 30), Some(10)),
            (at(20, 40), at(10, 30), None),
            (at(-5, 10), at(0, 30), Some(15)),
            (at(-20, 10), at(0, 30), None),
        ] {
            let expected = expected.map(|mib: u64| mib << 20);
            assert_eq!(now.elsewhere_since(&before), expected, "{now:?} since {before:?}");
        }
        let little = PodCounts { bytes: MIN_ELSEWHERE - 1, ..PodCounts::default() };
        assert_eq!(little.elsewhere_since(&PodCounts::default()), None);
    }

    #[test]
    fn created_inodes_are_the_greater_count_and_never_negative() {
        let created = |inodes| PodCounts { inodes, ..PodCounts::default() }.created_inodes();
        assert_eq!([[3, 8], [8, 3], [8, 8], [-2, -1]].map(created), [8, 8, 8, 0]);
    }

    #[test]
    fn an_ended_container_is_noticed_and_a_new_one_is_not() {
        let with = |containers: &[u64]| PodCounts { containers: containers.into(), ..PodCounts::default() };
        let is_lacking = |now: &[u64]| with(now).lacks_container_of(&with(&[3, 7]));
        assert_eq!([&[3, 7][..], &[3, 5, 7], &[3, 5], &[]].map(is_lacking), [false, false, true, true]);
    }
}
