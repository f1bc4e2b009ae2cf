//! Counts of the inodes that pods create while they are read.
//!
//! A volume with many inodes takes long to read, and the pod that fills it creates thousands more meanwhile. So
//! pods are read while the threshold comes nearer, and the inodes that were counted since are added when it is
//! crossed. Bytes are not counted like that: buffered writes can be attributed only while the dense hook is
//! attached.

use eviction_bpf::DiskUsage;
use eviction_node::cgroup::pods::Pod;
use eviction_node::fs::InodeGrowth;

use super::ControlLoop;
use super::pod_storage::{AHEAD, Extent};

/// The inodes that the probes on ext4 had counted for each pod when its reading was requested.
#[derive(Debug, Default)]
pub(super) struct InodeCounts {
    /// The number of the programs that counted.
    programs: u32,
    /// The counts, sorted by the ids of the pods' cgroups.
    pods: Vec<InodeGrowth>,
}

impl InodeCounts {
    fn of(&self, cgroup: u64) -> Option<[i64; 2]> {
        let place = self.pods.binary_search_by_key(&cgroup, |it| it.cgroup).ok()?;
        self.pods.get(place).map(|it| it.inodes)
    }

    /// Returns the inodes that the pod with this cgroup created on nodefs or imagefs, whichever is more: they
    /// may be the same file system.
    pub(super) fn made_by(&self, cgroup: u64) -> Option<i64> {
        self.of(cgroup)?.into_iter().max()
    }
}

impl ControlLoop {
    /// Requests a reading of all pods if the inodes of a disk on which they are counted may be used up soon.
    pub(super) fn read_ahead(&mut self, now_ns: u64) {
        let is_soon = self.node_sampler.disks.inodes_fill_within(AHEAD);
        if is_soon && self.storage.may_read_ahead(now_ns) {
            self.request_storage(Extent::Ahead);
        }
    }

    /// Adds the inodes that pods created since they were read ahead, if only inodes are short, and each pod was
    /// read and counted. Returns whether it did.
    pub(super) fn add_counted_inodes(&mut self, now_ns: u64) -> bool {
        self.node_sampler.inode_growth.clear();
        let is_read_ahead = self.storage.counts_ahead(now_ns).is_some();
        if !is_read_ahead || !self.node_sampler.disks.are_inodes_alone_short() {
            return false;
        }
        let Some(now) = self.count_inodes() else { return false };
        let before = self.storage.counts_ahead(now_ns).filter(|before| before.programs == now.programs);
        let Some(before) = before else { return false };
        let since = now.pods.iter().map(|now| {
            let [node, image] = before.of(now.cgroup)?;
            Some(InodeGrowth {
                cgroup: now.cgroup,
                inodes: [now.inodes[0].wrapping_sub(node), now.inodes[1].wrapping_sub(image)],
            })
        });
        // A pod without an earlier count has not been read.
        let Some(since) = since.collect::<Option<Vec<_>>>() else { return false };
        self.node_sampler.inode_growth = since;
        true
    }

    /// Returns how many inodes each pod has created so far on nodefs and imagefs; `None` unless both are
    /// counted.
    pub(super) fn count_inodes(&mut self) -> Option<InodeCounts> {
        let [node, image] = self.node_sampler.disks.ext4_devices();
        let devices = [node?, image?];
        let usage = self.notifier.bpf.disk_usage(&devices)?;
        let of = |id: u64, device: u64| {
            let found = usage.binary_search_by_key(&(id, device), |it| (it.cgroup, it.device)).ok();
            found.and_then(|place| usage.get(place)).map_or(0, |DiskUsage { inodes, .. }| *inodes)
        };
        let of_pod = |pod: &Pod| {
            let mut ids: Vec<u64> = pod.containers.iter().map(|container| container.cgroup_id).collect();
            ids.push(pod.cgroup_id);
            ids.extend(&pod.leaves);
            ids.sort_unstable();
            ids.dedup();
            let inodes = devices.map(|device| ids.iter().map(|id| of(*id, device)).sum());
            InodeGrowth { cgroup: pod.cgroup_id, inodes }
        };
        let groups = self.node_sampler.cgroups.pods().pods.iter();
        let known = groups.filter(|group| self.pod_index.pod_of(group).is_some());
        let mut pods: Vec<_> = known.map(of_pod).collect();
        pods.sort_unstable_by_key(|pod| pod.cgroup);
        Some(InodeCounts { programs: self.notifier.bpf.programs().0, pods })
    }
}
