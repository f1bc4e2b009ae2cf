//! Pods with their own limits on local storage: when they are read.

use std::collections::BTreeMap;
use std::time::Duration;

use eviction_core::pods::PodSet;
use eviction_node::fs::{PodStorage, StorageSample};

use super::ControlLoop;
use super::pod_storage::Extent;

/// How often pods with limits are read, and the minimum wait as a multiple of the time that a reading takes.
pub(super) const LIMITS_INTERVAL: Duration = Duration::from_secs(10);
pub(super) const LIMITS_PACE: u64 = 50;

/// The disks are read before a pod can reach its limit at this rate, bytes per second: page cache of ext4 takes
/// 4.4 GB/s from one writer. The minimum wait of `LIMIT_FLOOR` costs 0.1 % of a core.
const LIMIT_RATE: u64 = 4_000_000_000;
const LIMIT_FLOOR: Duration = Duration::from_millis(20);

/// When pods with limits are read.
#[derive(Debug, Default)]
pub(super) struct StorageLimits {
    /// For each pod with limits, by UID: the [growth of the disks](eviction_node::fs::DiskMonitor::grown_bytes) at
    /// which it may exceed one, if it writes all of that. `None` if it exceeds a limit, or if that is not known: then
    /// only the reading of every [`LIMITS_INTERVAL`] shows it.
    reached_at: BTreeMap<Box<str>, Option<u64>>,
    /// When all pods with limits are read next.
    pub(super) due_ns: u64,
}

impl StorageLimits {
    /// Returns whether a pod may exceed a limit by now, because the disks have grown to `grown` since it was read.
    pub(super) fn may_be_exceeded(&self, uid: &str, grown: u64) -> bool {
        matches!(self.reached_at.get(uid), Some(Some(at)) if *at <= grown)
    }

    /// Returns the least growth of the disks until a pod may exceed a limit, bytes. Includes pods that were just
    /// created and not read yet.
    fn headroom(&mut self, pods: &PodSet, grown: u64, is_dedicated: bool) -> Option<u64> {
        let limited = pods.pods().iter().filter(|known| !known.limits.is_empty());
        let left = limited.filter_map(|known| {
            let uid = &known.pod.uid;
            let of_new = || Some(grown.saturating_add(PodStorage::default().headroom(known, is_dedicated)?));
            let reached_at = match self.reached_at.get(uid) {
                Some(reached_at) => *reached_at,
                None => *self.reached_at.entry(uid.clone()).or_insert_with(of_new),
            };
            Some(reached_at?.saturating_sub(grown))
        });
        left.min()
    }

    /// Records a reading; the disks had grown to `grown` when it was requested. Returns whether a pod exceeds a limit,
    /// or may do so.
    pub(super) fn record(
        &mut self,
        sample: &StorageSample,
        pods: &PodSet,
        grown: u64,
        is_dedicated: bool,
    ) -> bool {
        let mut is_exceeded = false;
        for (uid, storage) in &sample.pods {
            let Some(known) = pods.find(uid).filter(|known| !known.limits.is_empty()) else { continue };
            let left = storage.headroom(known, is_dedicated);
            is_exceeded |= left.is_none();
            self.reached_at.insert(uid.clone(), left.map(|left| grown.saturating_add(left)));
        }
        self.reached_at.retain(|uid, _| pods.index_of(uid).is_some());
        is_exceeded
    }
}

impl ControlLoop {
    /// Requests the storage of pods with limits, if that is due.
    pub(super) fn read_limited_storage(&mut self, now_ns: u64) {
        let has_limits = self.engine.policy().local_storage_capacity_isolation
            && self.engine.pods().pods().iter().any(|known| !known.limits.is_empty());
        if has_limits && self.storage.reads_directories() && now_ns >= self.storage.limits.due_ns {
            self.request_storage(Extent::Limited, None);
        }
    }

    /// Requests a reading of pods that may exceed a limit by now, because the disks have grown by their
    /// headroom. Returns when to check again.
    pub(super) fn read_storage_near_limits(&mut self, now_ns: u64) -> Option<Duration> {
        if !self.storage.reads_directories() || !self.engine.policy().local_storage_capacity_isolation {
            return None;
        }
        let grown = self.node_sampler.disks.grown_bytes();
        let is_dedicated = self.node_sampler.disks.layout().dedicated_image_fs;
        let left = self.storage.limits.headroom(self.pod_index.active(), grown, is_dedicated)?;
        if left > 0 {
            let ns = u128::from(left) * 1_000_000_000 / u128::from(LIMIT_RATE);
            let time = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            return Some(time.clamp(LIMIT_FLOOR, LIMITS_INTERVAL));
        }
        let pause = self.storage.next_due_ns(LIMIT_FLOOR, LIMITS_PACE).saturating_sub(now_ns);
        if pause > 0 {
            return Some(Duration::from_nanos(pause));
        }
        self.request_storage(Extent::NearLimit, None);
        Some(LIMIT_FLOOR)
    }
}
