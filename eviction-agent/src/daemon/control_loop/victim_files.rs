//! Files of evicted pods that are still on a disk.
//!
//! The kubelet removes the volumes of a pod before the pod counts as terminated, but its writable layers and logs
//! only when it collects garbage: once a minute (`kubelet.go: ContainerGCPeriod`), or at its own thresholds. It
//! collects garbage before it evicts a pod (`eviction_manager.go: reclaimNodeLevelResources`). So no other pod is
//! evicted for a shortage that these files explain, for a limited time.

use std::time::Duration;

use eviction_core::in_flight::{ExecutorUpdate, InFlightEviction};
use eviction_core::pods::KnownPod;
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{DiskUsage, PodStorage, StorageRequest, StorageSample};

use super::ControlLoop;

/// How long the files of a pod count after its termination: the period of the kubelet's garbage collection, and
/// the time that it takes.
const TIMEOUT: Duration = Duration::from_secs(70);

/// How long a reading of the files counts. They are read again in half of that time.
const MAX_AGE: Duration = Duration::from_secs(2);

/// How often the disks are sampled meanwhile.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long no pod is evicted for a disk after the agent has killed one for it.
const PAUSE_AFTER_KILL: Duration = Duration::from_secs(30);

/// The files of evicted pods, and whether the agent waits until they are removed.
#[derive(Debug, Default)]
pub(super) struct VictimFiles {
    victims: Vec<Victim>,
    /// The sum of the victims' usage of nodefs and of imagefs.
    usage: [DiskUsage; 2],
    /// The end of the wait, CLOCK_MONOTONIC in nanoseconds.
    until_ns: u64,
}

/// A pod that is evicted for a disk.
#[derive(Debug)]
struct Victim {
    decision: u64,
    request: StorageRequest,
    /// When the pod terminated, CLOCK_MONOTONIC in nanoseconds.
    terminated_ns: Option<u64>,
}

impl VictimFiles {
    /// Returns the time until the next sample while the agent waits.
    pub(super) fn wait(&self, now_ns: u64) -> Option<Duration> {
        (now_ns < self.until_ns).then_some(INTERVAL)
    }

    /// Returns the bytes that the agent waits for, else 0.
    pub(super) fn awaited_bytes(&self, now_ns: u64) -> u64 {
        let [node, image] = self.usage.map(|usage| usage.bytes);
        self.wait(now_ns).map_or(0, |_| node.saturating_add(image))
    }

    /// Forgets pods whose files do not count any more, and evictions that ended without a termination.
    fn retain(&mut self, now_ns: u64, is_executing: impl Fn(u64) -> bool) {
        self.victims.retain(|victim| match victim.terminated_ns {
            Some(at_ns) => now_ns < at_ns.saturating_add(nanos(TIMEOUT)),
            None => is_executing(victim.decision),
        });
    }

    /// Returns the terminated pods.
    fn terminated(&self) -> impl Iterator<Item = &Victim> {
        self.victims.iter().filter(|victim| victim.terminated_ns.is_some())
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
            self.storage.victim_files.victims.push(Victim { decision, request, terminated_ns: None });
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
        let mut victims = self.storage.victim_files.victims.iter_mut();
        let Some(victim) = victims.find(|victim| victim.decision == decision) else { return };
        victim.terminated_ns.get_or_insert_with(mono_ns);
        self.storage.forget_reading();
        self.reclaim.allow_another_attempt(self.engine.policy().eviction.node_reclaim);
    }

    /// Returns the requests for the files of evicted pods that are not among these.
    pub(super) fn victim_requests(&mut self, active: &[StorageRequest]) -> Vec<StorageRequest> {
        let executing: Vec<_> = self.executing().filter_map(|it| it.decision).collect();
        let files = &mut self.storage.victim_files;
        files.retain(mono_ns(), |decision| executing.contains(&decision));
        let requests = files.terminated().map(|victim| &victim.request);
        requests.filter(|victim| active.iter().all(|pod| pod.uid != victim.uid)).cloned().collect()
    }

    /// Takes the usage of evicted pods from a reading. Waits for their files if these explain the thresholds that
    /// are met.
    pub(super) fn await_victim_files(&mut self, sample: &StorageSample, now_ns: u64) {
        let victims = self.storage.victim_files.terminated();
        let found = victims.filter_map(|victim| sample.pods.get(&victim.request.uid));
        let usage = PodStorage::sum_by_file_system(found, self.node_sampler.disks.layout());
        let was_waiting = self.storage.victim_files.wait(now_ns).is_some();
        let waits = self.node_sampler.disks.is_met_by(usage);
        let files = &mut self.storage.victim_files;
        files.usage = usage;
        files.until_ns = if waits { now_ns.saturating_add(nanos(MAX_AGE)) } else { 0 };
        if waits && !was_waiting {
            tracing::info!(
                node_fs_bytes = usage[0].bytes,
                image_fs_bytes = usage[1].bytes,
                "no pod is evicted until the files of evicted pods are removed, for {TIMEOUT:?} at most",
            );
        }
    }

    /// Ends the wait if the files do not explain any more which thresholds are met.
    pub(super) fn update_victim_wait(&mut self) {
        let files = &mut self.storage.victim_files;
        if files.until_ns > 0 && !self.node_sampler.disks.is_met_by(files.usage) {
            files.until_ns = 0;
        }
    }
}
