//! Space on the disks that is freed without an eviction. No pod is evicted for a shortage that it explains, for a
//! limited time.
//!
//! **Files of evicted pods.** The kubelet removes the volumes of a pod before the pod counts as terminated, but its
//! writable layers and logs only when it collects garbage: once a minute (`kubelet.go: ContainerGCPeriod`), or at its
//! own thresholds. It collects garbage before it evicts a pod (`eviction_manager.go: reclaimNodeLevelResources`).
//! When a pod was deleted, it removes them soon after the termination. The space of a file that is still open then
//! returns only when the runtime closes it.
//!
//! **Space that xfs preallocates** for a file that grows, up to the size of the file, and gives back when the file is
//! closed. A threshold may be met for a moment by space that no file has. The rules of the kubelet do not take this
//! into account.

use std::time::Duration;

use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::pods::KnownPod;
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{DiskUsage, PodStorage, StorageRequest, StorageSample};

use super::ControlLoop;
use super::pod_storage::PodStorageWatch;

/// How long the files of a pod count after its termination: the period of the kubelet's garbage collection, and
/// the time that it takes.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(70);

/// How long a reading of the files of evicted pods counts. They are read again in half of that time.
const VICTIM_FILES_AGE: Duration = Duration::from_secs(2);

/// How long files of evicted pods count after they were removed. containerd closes a log up to 100 ms later.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How often the disks are sampled while the agent waits for files of evicted pods.
const VICTIM_INTERVAL: Duration = Duration::from_millis(100);

/// How long no pod is evicted for a disk after the agent has killed one for it.
const PAUSE_AFTER_KILL: Duration = Duration::from_secs(30);

/// How long the agent waits for preallocated space.
const XFS_WAIT: Duration = Duration::from_secs(2);

/// How often the disks are sampled while the agent waits for preallocated space: other processes may write.
const XFS_INTERVAL: Duration = Duration::from_millis(10);

/// Space that the agent waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AwaitedSpace {
    /// The end of the wait, CLOCK_MONOTONIC in nanoseconds.
    until_ns: u64,
    /// The usage of nodefs and of imagefs that will be freed.
    usage: [DiskUsage; 2],
}

impl AwaitedSpace {
    /// Returns whether the agent waits now.
    pub(super) fn is_awaited(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Returns the bytes that will be freed.
    fn bytes(&self) -> u64 {
        let [node, image] = self.usage.map(|usage| usage.bytes);
        node.saturating_add(image)
    }

    /// Returns both, awaited until the later end.
    fn plus(self, other: Self) -> Self {
        let ([node, image], [other_node, other_image]) = (self.usage, other.usage);
        let usage = [node.plus(other_node), image.plus(other_image)];
        Self { until_ns: self.until_ns.max(other.until_ns), usage }
    }
}

impl PodStorageWatch {
    /// Returns whether a pod may be evicted for a disk: space that was freed, or will be freed soon, is known.
    pub(super) fn may_evict_for_disk(&self, now_ns: u64) -> bool {
        now_ns >= self.paused_until_ns && self.awaited(now_ns).next().is_none()
    }

    /// Returns the space that the agent waits for now, and how often the disks are sampled meanwhile.
    fn awaited(&self, now_ns: u64) -> impl Iterator<Item = (AwaitedSpace, Duration)> {
        let preallocated = self.preallocated.map(|space| (space, XFS_INTERVAL));
        let spaces = preallocated.into_iter().chain([(self.victim_files, VICTIM_INTERVAL)]);
        spaces.filter(move |(space, _)| space.is_awaited(now_ns))
    }

    /// Returns when the disks are to be sampled because the agent waits for space.
    pub(super) fn awaited_space_due(&self, now_ns: u64) -> Option<Duration> {
        self.awaited(now_ns).map(|(_, interval)| interval).min()
    }

    /// Returns the bytes that will be freed without an eviction, if the agent waits for them, else 0.
    pub(super) fn awaited_bytes(&self, now_ns: u64) -> u64 {
        self.awaited(now_ns).fold(0, |bytes, (space, _)| space.bytes().saturating_add(bytes))
    }
}

/// A pod that is evicted for a disk.
#[derive(Debug)]
pub(super) struct DiskVictim {
    decision: u64,
    request: StorageRequest,
    /// When the pod terminated, CLOCK_MONOTONIC in nanoseconds.
    terminated_ns: Option<u64>,
    /// The usage of its files when they were last found, and until when they count if they are not found again.
    files: AwaitedSpace,
}

impl DiskVictim {
    /// Records the termination. Files that are removed right after it count as well.
    fn terminate(&mut self, now_ns: u64) {
        if self.terminated_ns.is_none() {
            self.terminated_ns = Some(now_ns);
            self.files.until_ns = now_ns.saturating_add(nanos(CLOSE_TIMEOUT));
        }
    }

    /// Takes a reading of its files. Returns the space that is not free yet: the files that were found, and those that
    /// were just removed.
    fn update_files(&mut self, usage: [DiskUsage; 2], now_ns: u64) -> AwaitedSpace {
        let found = AwaitedSpace { until_ns: now_ns.saturating_add(nanos(VICTIM_FILES_AGE)), usage };
        if found.bytes() >= self.files.bytes() || !self.files.is_awaited(now_ns) {
            self.files = found;
            return found;
        }
        self.files.until_ns = self.files.until_ns.min(now_ns.saturating_add(nanos(CLOSE_TIMEOUT)));
        let until_ns = if found.bytes() > 0 { found.until_ns } else { self.files.until_ns };
        AwaitedSpace { until_ns, ..self.files }
    }
}

fn is_of_disk(evicted: &InFlightEviction) -> bool {
    matches!(evicted.resource(), Resource::EphemeralStorage | Resource::Inodes)
}

impl ControlLoop {
    /// Remembers where the files of a pod are that is evicted for a disk. If the agent only kills it, they stay.
    pub(super) fn add_victim(&mut self, evicted: &InFlightEviction, known: &KnownPod) {
        let is_of_disk = evicted.api.is_some() && is_of_disk(evicted);
        let storage = self.node_sampler.storage_of(&evicted.pod.uid);
        if let (true, Some(decision), Some(storage)) = (is_of_disk, evicted.decision, storage) {
            let request = StorageRequest::of_remaining(known, storage);
            let usage = storage.remaining_by_file_system(self.node_sampler.disks.layout());
            let files = AwaitedSpace { until_ns: 0, usage };
            self.storage.victims.push(DiskVictim { decision, request, terminated_ns: None, files });
        }
    }

    /// Pauses evictions for a disk after the agent has killed a pod itself: another program removes its files.
    pub(super) fn pause_after_kill(&mut self, killed: &InFlightEviction) {
        if killed.api.is_none() && is_of_disk(killed) {
            self.storage.paused_until_ns = mono_ns().saturating_add(nanos(PAUSE_AFTER_KILL));
        }
    }

    /// Notes the termination of a victim. Its files are read before another pod is evicted for a disk.
    pub(super) fn update_victim(&mut self, decision: u64, update: &ExecutorUpdate) {
        if !matches!(update, ExecutorUpdate::PodGone | ExecutorUpdate::KillEnded { gone: true }) {
            return;
        }
        let mut victims = self.storage.victims.iter_mut();
        let Some(victim) = victims.find(|victim| victim.decision == decision) else { return };
        victim.terminate(mono_ns());
        self.storage.forget_reading();
        self.reclaim.allow_another_attempt(self.engine.policy().eviction.node_reclaim);
    }

    /// Returns the requests for the files of evicted pods that are not among these. Forgets pods whose files do
    /// not count any more, and evictions that ended without a termination.
    pub(super) fn victim_requests(&mut self, active: &[StorageRequest]) -> Vec<StorageRequest> {
        let executing: Vec<_> = self.executing().filter_map(|it| it.decision).collect();
        let now_ns = mono_ns();
        self.storage.victims.retain(|victim| match victim.terminated_ns {
            Some(at_ns) => now_ns < at_ns.saturating_add(nanos(VICTIM_TIMEOUT)),
            None => executing.contains(&victim.decision),
        });
        let terminated = self.storage.victims.iter().filter(|victim| victim.terminated_ns.is_some());
        let requests = terminated.map(|victim| &victim.request);
        requests.filter(|victim| active.iter().all(|pod| pod.uid != victim.uid)).cloned().collect()
    }

    /// Takes the usage of evicted pods from a reading. Waits for their files if these explain the thresholds that
    /// are met.
    pub(super) fn await_victim_files(&mut self, sample: &StorageSample, now_ns: u64) {
        let layout = self.node_sampler.disks.layout();
        let terminated = self.storage.victims.iter_mut().filter(|victim| victim.terminated_ns.is_some());
        let mut awaited = AwaitedSpace::default();
        for victim in terminated {
            let found = sample.pods.get(&victim.request.uid).into_iter();
            let files = victim.update_files(PodStorage::sum_by_file_system(found, layout), now_ns);
            awaited = awaited.plus(files);
        }
        let was_waiting = self.storage.victim_files.is_awaited(now_ns);
        let waits = self.node_sampler.disks.is_met_by(awaited.usage);
        let usage = awaited.usage;
        self.storage.victim_files =
            AwaitedSpace { until_ns: if waits { awaited.until_ns } else { 0 }, usage };
        if waits && !was_waiting {
            tracing::info!(
                node_fs_bytes = usage[0].bytes,
                image_fs_bytes = usage[1].bytes,
                "no pod is evicted until the files of evicted pods are removed, for {VICTIM_TIMEOUT:?} at most",
            );
        }
    }

    /// Begins to wait if thresholds are met only by preallocated space: once for each time that a threshold is met.
    pub(super) fn await_preallocated_space(&mut self, bytes: [u64; 2], now_ns: u64) {
        if self.storage.preallocated.is_some()
            || self.engine.policy().rules.are_kubelets()
            || !self.node_sampler.disks.is_met_by_preallocation(bytes)
        {
            return;
        }
        tracing::info!(
            node_fs_bytes = bytes[0],
            image_fs_bytes = bytes[1],
            "xfs has allocated space ahead of files: no pod is evicted until it is given back, for {XFS_WAIT:?} at most",
        );
        let usage = bytes.map(|bytes| DiskUsage { bytes, ..DiskUsage::default() });
        let until_ns = now_ns.saturating_add(nanos(XFS_WAIT));
        self.storage.preallocated = Some(AwaitedSpace { until_ns, usage });
    }

    /// Ends the waits if the awaited space does not explain any more which thresholds are met.
    pub(super) fn update_awaited_space(&mut self) {
        let (disks, storage) = (&self.node_sampler.disks, &mut self.storage);
        if !disks.is_met_by(storage.victim_files.usage) {
            storage.victim_files.until_ns = 0;
        }
        storage.preallocated = storage.preallocated.filter(|_| disks.may_be_met());
        if let Some(space) = &mut storage.preallocated
            && !disks.is_met_by_preallocation(space.usage.map(|usage| usage.bytes))
        {
            space.until_ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture;

    use super::*;

    const MS: u64 = 1_000_000;

    fn usage(bytes: u64) -> [DiskUsage; 2] {
        [DiskUsage { bytes, ..DiskUsage::default() }, DiskUsage::default()]
    }

    /// Returns a pod whose files used 100 bytes when it was evicted, and which terminated at 1 s.
    fn victim() -> DiskVictim {
        let pods = fixture::set(vec![fixture::pod("a", "1")]);
        let request = StorageRequest::of_remaining(&pods.pods()[0], &PodStorage::default());
        let files = AwaitedSpace { until_ns: 0, usage: usage(100) };
        let mut victim = DiskVictim { decision: 1, request, terminated_ns: None, files };
        victim.terminate(1000 * MS);
        victim
    }

    /// Takes a reading at this time. Returns the bytes that are awaited, and until when.
    fn read(victim: &mut DiskVictim, at_ms: u64, bytes: u64) -> (u64, u64) {
        let space = victim.update_files(usage(bytes), at_ms * MS);
        (space.bytes(), space.until_ns / MS)
    }

    #[test]
    fn files_that_were_removed_count_until_they_can_be_closed() {
        let mut pod = victim();
        assert_eq!(read(&mut pod, 1010, 0), (100, 1500), "removed right after the termination");
        assert_eq!(read(&mut pod, 1490, 0), (100, 1500));
        assert_eq!(read(&mut pod, 1500, 0), (0, 3500));

        let mut pod = victim();
        assert_eq!(read(&mut pod, 1010, 120), (120, 3010), "it went on writing after the decision");
        assert_eq!(read(&mut pod, 2010, 120), (120, 4010));
        assert_eq!(read(&mut pod, 3010, 20), (120, 5010), "a part was removed");
        assert_eq!(read(&mut pod, 4010, 20), (20, 6010));
        assert_eq!(read(&mut pod, 5010, 0), (20, 5510));
        assert_eq!(read(&mut pod, 6010, 0), (0, 8010));
    }

    #[test]
    fn a_reading_long_after_the_termination_counts_alone() {
        assert_eq!(read(&mut victim(), 1600, 0), (0, 3600));
    }
}
