//! The pods' usage of the disks: when it is read, and how long a reading counts. Pods with their own limits on local
//! storage are read more often.

use std::collections::BTreeMap;
use std::time::Duration;

use eviction_core::decision::Decision;
use eviction_core::disk_layout::Parts;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::pods::PodSet;
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_node::cgroup::hierarchy::Host;
use eviction_node::cgroup::names::ContainerKind;
use eviction_node::cgroup::pods::Container;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{FsPaths, PodStorage, StorageReader, StorageRequest, StorageSample};
use eviction_node::thread::Priority;
use tokio::sync::mpsc::{Receiver, channel};

use super::ControlLoop;
use super::awaited_space::{AwaitedSpace, DiskVictim};
use super::disk_counts::PodCounts;
use crate::daemon::kubelet_api::{self, KubeletClient};

/// The maximum age of a reading by which pods are ranked.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

/// The longest wait that follows from the time that a reading takes. A disk that stalls for a minute must not
/// postpone the next reading by an hour.
const MAX_PACED_WAIT: Duration = Duration::from_secs(60);

/// All pods are read while a crossing is less than this away at the highest recent rate, and no more often than
/// that. [`LIMITS_PACE`] makes that 10 s if a reading takes 200 ms.
const AHEAD: Duration = Duration::from_secs(1);

/// The maximum age of a reading to which inodes that were counted since are added.
const COUNTED_AGE: Duration = Duration::from_secs(12);

/// How often all pods are read while a kill order for writers may be armed, and the minimum wait as a multiple
/// of the time that a reading takes. An order is valid for as long as the reading that it was made on.
const KILL_ORDER_INTERVAL: Duration = Duration::from_millis(500);
const KILL_ORDER_PACE: u64 = 10;

/// How often pods with limits are read, and the minimum wait as a multiple of the time that a reading takes.
const LIMITS_INTERVAL: Duration = Duration::from_secs(10);
const LIMITS_PACE: u64 = 50;

/// The disks are read before a pod can reach its limit at this rate, bytes per second: page cache of ext4 takes
/// 4.4 GB/s from one writer. The minimum wait of `LIMIT_FLOOR` costs 0.1 % of a core.
const LIMIT_RATE: u64 = 4_000_000_000;
const LIMIT_FLOOR: Duration = Duration::from_millis(20);

/// The state of reading the pods' storage.
#[derive(Debug)]
pub(crate) struct PodStorageWatch {
    reader: Option<StorageReader>,
    /// When the kubelet may be asked next, if it is the source. It answers for all pods and not at once, so it
    /// is asked only when a threshold is met. `None` if directories are read.
    summary_due_ns: Option<u64>,
    pub(super) samples: Receiver<StorageSample>,
    pending: Option<PendingReading>,
    /// The last reading of all pods.
    all_pods: Option<AllPodsReading>,
    /// When the last reading of any pods began, and how long it took.
    last_began_ns: u64,
    last_took_ns: u64,
    /// For each pod with limits, by UID: the [growth of the disks](eviction_node::fs::DiskMonitor::grown_bytes) at
    /// which it may exceed one, if it writes all of that. `None` if it exceeds a limit, or if that is not known: then
    /// only the reading of every [`LIMITS_INTERVAL`] shows it.
    limits_reached_at: BTreeMap<Box<str>, Option<u64>>,
    /// When all pods with limits are read next.
    limits_due_ns: u64,
    pub(super) paused_until_ns: u64,
    /// The space that xfs has preallocated, since a threshold is met: the agent waits for it or has waited.
    pub(super) preallocated: Option<AwaitedSpace>,
    pub(super) victims: Vec<DiskVictim>,
    /// The files of terminated victims.
    pub(super) victim_files: AwaitedSpace,
    /// The pods that are older than the probes, by the ids of their cgroups, with the counts from which on their
    /// bytes elsewhere count ([`PodCounts::without`]): those of their first reading. `None` between the loading of
    /// probes and the next full sample.
    pub(super) older_pods: Option<BTreeMap<u64, Option<PodCounts>>>,
    /// Whether the next sync must check the pods' limits.
    pub(super) needs_limit_check: bool,
}

/// A reading in progress.
#[derive(Debug)]
struct PendingReading {
    extent: Extent,
    /// The growth of the disks when it was requested.
    grown: u64,
    /// What the probes had counted when it was requested, for a reading of all pods.
    counts: Option<BTreeMap<u64, PodCounts>>,
}

/// A reading of all pods.
#[derive(Debug)]
struct AllPodsReading {
    /// When it began; when the answer came, if the kubelet was asked.
    at_ns: u64,
    /// What could not be read.
    unmeasured: Parts,
    /// What the probes had counted when it was requested, by the ids of the pods' cgroups.
    counts: Option<BTreeMap<u64, PodCounts>>,
}

/// Which pods are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All pods, which are to be ranked.
    All,
    /// Pods with limits.
    Limited,
    /// Pods that may exceed a limit since they were read.
    NearLimit,
}

impl PodStorageWatch {
    /// Starts the reader if there is something to read.
    pub(crate) fn new(host: Host, paths: FsPaths, summary: Option<KubeletClient>) -> Self {
        let (sender, samples) = channel(1);
        let summary_due_ns = summary.is_some().then_some(0);
        let reader = match summary {
            Some(kubelet) => Some(kubelet_api::start_summary_reader(kubelet, sender)),
            None if paths == FsPaths::default() => None,
            None => Some(StorageReader::of_directories(host, paths, sender)),
        };
        let on_error =
            |error: &_| tracing::error!(%error, "cannot start the thread that reads pods' storage");
        let reader = reader.and_then(|started| started.inspect_err(on_error).ok());
        Self {
            reader,
            summary_due_ns,
            samples,
            pending: None,
            all_pods: None,
            last_began_ns: 0,
            last_took_ns: 0,
            limits_reached_at: BTreeMap::new(),
            limits_due_ns: 0,
            paused_until_ns: 0,
            preallocated: None,
            victims: Vec::new(),
            victim_files: AwaitedSpace::default(),
            older_pods: None,
            needs_limit_check: false,
        }
    }

    /// Returns when the next reading may begin: `pause` after the last one began, or `pace` times the time that
    /// it took (at most [`MAX_PACED_WAIT`] after its end), whichever is later.
    fn next_due_ns(&self, pause: Duration, pace: u64) -> u64 {
        let took_ns = self.last_took_ns;
        let paced = took_ns.saturating_mul(pace).min(took_ns.saturating_add(nanos(MAX_PACED_WAIT)));
        self.last_began_ns.saturating_add(nanos(pause).max(paced))
    }

    /// Returns the last reading of all pods, if it is not older than `age`.
    fn read_within(&self, age: Duration, now_ns: u64) -> Option<&AllPodsReading> {
        self.all_pods.as_ref().filter(|it| now_ns.saturating_sub(it.at_ns) <= nanos(age))
    }

    /// Forgets the reading of all pods: they are read again before they are ranked. A reading in progress lacks the
    /// files of a pod that has terminated meanwhile, so it counts for limits only.
    pub(super) fn forget_reading(&mut self) {
        self.all_pods = None;
        if let Some(PendingReading { extent: extent @ Extent::All, .. }) = &mut self.pending {
            *extent = Extent::Limited;
        }
    }

    /// Forgets the counts of programs that were replaced.
    pub(super) fn forget_counts(&mut self) {
        self.older_pods = None;
        if let Some(pending) = &mut self.pending {
            pending.counts = None;
        }
        self.forget_counts_of_reading();
    }

    /// Forgets what was counted when all pods were read.
    fn forget_counts_of_reading(&mut self) {
        if let Some(reading) = &mut self.all_pods {
            reading.counts = None;
        }
    }

    /// Returns what the probes had counted at the last reading of all pods, if inodes that were counted since may be
    /// added to it.
    pub(super) fn counts_at_reading(&self, now_ns: u64) -> Option<&BTreeMap<u64, PodCounts>> {
        self.read_within(COUNTED_AGE, now_ns)?.counts.as_ref()
    }

    /// Returns whether directories are read, which may be done at any time.
    fn reads_directories(&self) -> bool {
        self.reader.is_some() && self.summary_due_ns.is_none()
    }

    /// Returns whether the directories of all pods may be read, at this minimum interval and pace
    /// ([`Self::next_due_ns`]).
    fn may_read_all(&self, interval: Duration, pace: u64, now_ns: u64) -> bool {
        self.reads_directories() && self.pending.is_none() && now_ns >= self.next_due_ns(interval, pace)
    }

    /// Returns when the reading of all pods began by which they may be ranked now, for a crossing.
    pub(super) fn ranked_by(&self, now_ns: u64) -> Option<u64> {
        self.read_within(MAX_AGE, now_ns).filter(|_| self.may_evict_for_disk(now_ns)).map(|it| it.at_ns)
    }

    /// Returns the parts of pods whose usage is unknown now. With `is_counted`, the inodes that pods created since they
    /// were read are known.
    pub(super) fn unmeasured(&self, now_ns: u64, is_counted: bool) -> Parts {
        let reading = self.read_within(if is_counted { COUNTED_AGE } else { MAX_AGE }, now_ns);
        reading.filter(|_| self.may_evict_for_disk(now_ns)).map_or(Parts::ALL, |it| it.unmeasured)
    }

    /// Returns whether a pod may exceed a limit by now, because the disks have grown to `grown` since it was read.
    fn may_exceed_limit(&self, uid: &str, grown: u64) -> bool {
        matches!(self.limits_reached_at.get(uid), Some(Some(at)) if *at <= grown)
    }

    /// Returns the least growth of the disks until a pod may exceed a limit, bytes. Includes pods that were just
    /// created and not read yet.
    fn limit_headroom(&mut self, pods: &PodSet, grown: u64, is_dedicated: bool) -> Option<u64> {
        let limited = pods.pods().iter().filter(|known| !known.limits.is_empty());
        let left = limited.filter_map(|known| {
            let uid = &known.pod.uid;
            let of_new = || Some(grown.saturating_add(PodStorage::default().headroom(known, is_dedicated)?));
            let reached_at = match self.limits_reached_at.get(uid) {
                Some(reached_at) => *reached_at,
                None => *self.limits_reached_at.entry(uid.clone()).or_insert_with(of_new),
            };
            Some(reached_at?.saturating_sub(grown))
        });
        left.min()
    }

    /// Records a reading; the disks had grown to `grown` when it was requested. Returns whether a pod exceeds a limit,
    /// or may do so.
    fn record_limits(
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
            self.limits_reached_at.insert(uid.clone(), left.map(|left| grown.saturating_add(left)));
        }
        self.limits_reached_at.retain(|uid, _| pods.index_of(uid).is_some());
        is_exceeded
    }
}

impl ControlLoop {
    /// Requests the storage of all pods if the decision lacks it. What could not be read a moment ago is not
    /// read again at once.
    pub(super) fn read_storage_for(&mut self, decision: &Decision) {
        let end = decision.evaluation().map(|evaluation| evaluation.end);
        if let Some(EvaluationEnd::CannotRank | EvaluationEnd::AwaitingSpace) = end {
            self.read_storage(mono_ns());
        }
    }

    /// Requests the storage of all pods if a threshold is met for which pods must be ranked. Runs before the
    /// sync that finds this, since the reading takes as long as the sync.
    pub(super) fn read_storage_at_crossing(&mut self) {
        let (now_ns, disks) = (mono_ns(), &self.node_sampler.disks);
        let has_counts = self.storage.counts_at_reading(now_ns).is_some();
        // With counts, the last reading is enough to rank pods by inodes.
        let needs_reading = |resource| !(has_counts && resource == Resource::Inodes);
        if disks.is_met_now(needs_reading) {
            self.read_storage(now_ns);
        }
    }

    /// Asks the kubelet for nodefs and imagefs, if it is the source and one of them cannot be read.
    pub(super) fn read_summary(&mut self, now_ns: u64) {
        let is_due = self.storage.summary_due_ns.is_some_and(|due_ns| now_ns >= due_ns);
        if is_due && self.node_sampler.disks.is_incomplete() {
            self.request_storage(Extent::All, None);
        }
    }

    fn read_storage(&mut self, now_ns: u64) {
        // In an unknown layout pods cannot be ranked.
        let is_due = self.node_sampler.disks.is_layout_known()
            && now_ns >= self.storage.paused_until_ns
            && !self.storage.preallocated.is_some_and(|space| space.is_awaited(now_ns))
            && self.storage.read_within(MAX_AGE, now_ns).is_none()
            && self.storage.summary_due_ns.is_none_or(|due_ns| now_ns >= due_ns);
        if is_due && !self.reclaim.is_awaited && self.storage.pending.is_none() {
            // The kubelet's values are older than the counts.
            let counts = if self.storage.reads_directories() { self.count_disk_usage() } else { None };
            self.request_storage(Extent::All, counts);
        }
    }

    /// Requests the storage of all pods ahead of a crossing: for a kill order, or if the inodes of a disk may be used
    /// up soon and are counted.
    pub(super) fn read_ahead(&mut self, now_ns: u64) {
        let for_order = self.may_arm_disk_kill()
            && self.storage.may_read_all(KILL_ORDER_INTERVAL, KILL_ORDER_PACE, now_ns);
        let for_inodes = self.node_sampler.disks.inodes_fill_within(AHEAD)
            && self.storage.may_read_all(AHEAD, LIMITS_PACE, now_ns);
        if !for_order && !for_inodes {
            return;
        }
        let counts = self.count_disk_usage();
        if for_order || counts.is_some() {
            self.request_storage(Extent::All, counts);
        }
    }

    /// Requests the storage of pods. `counts` is what the probes have counted so far, if all pods are to be read.
    fn request_storage(&mut self, extent: Extent, counts: Option<BTreeMap<u64, PodCounts>>) {
        if self.storage.reader.is_none() || self.storage.pending.is_some() {
            return;
        }
        let cgroups = &self.node_sampler.cgroups;
        let groups = cgroups.pods().pods.iter();
        let known = groups.filter_map(|group| Some((self.pod_index.pod_of(group)?, group)));
        let grown = self.node_sampler.disks.grown_bytes();
        let wanted = known.filter(|(known, _)| match extent {
            Extent::All => true,
            Extent::Limited => !known.limits.is_empty(),
            Extent::NearLimit => self.storage.may_exceed_limit(&known.pod.uid, grown),
        });
        let requests = wanted.map(|(known, group)| {
            let of = |it: &Container| {
                let procs = cgroups.root().memory.join(&it.path).join("cgroup.procs");
                (self.pod_index.container_name(&it.id).into(), procs)
            };
            let containers = group.containers.iter().filter(|it| it.kind != ContainerKind::Monitor);
            let counted = counts.as_ref().and_then(|counts| counts.get(&group.cgroup_id));
            let created = counted.map_or(0, PodCounts::created_inodes);
            let read = self.node_sampler.storage_of(&known.pod.uid).map_or(0, PodStorage::inodes);
            StorageRequest::new(known, containers.map(of).collect(), read.max(created))
        });
        let priority = match extent {
            Extent::All | Extent::NearLimit => Priority::Urgent,
            Extent::Limited => Priority::Idle,
        };
        let mut requests: Vec<_> = requests.collect();
        if extent == Extent::All && self.storage.reads_directories() {
            requests.extend(self.victim_requests(&requests));
        }
        let Some(reader) = &self.storage.reader else { return };
        if reader.request(requests, priority) {
            self.storage.pending = Some(PendingReading { extent, grown, counts });
            if let Some(due_ns) = &mut self.storage.summary_due_ns {
                *due_ns = mono_ns().saturating_add(nanos(kubelet_api::MIN_SUMMARY_INTERVAL));
            }
        }
    }

    /// Takes a reading. Returns whether the engine needs it: it does not need pods that were only near their
    /// limits, and still are.
    pub(super) fn handle_storage_sample(&mut self, mut sample: StorageSample) -> bool {
        let Some(PendingReading { extent, grown, counts }) = self.storage.pending.take() else {
            return false;
        };
        if sample.file_systems.is_some_and(|found| self.node_sampler.disks.take_summary(found)) {
            self.adopt_disks();
        }
        if extent == Extent::All {
            self.await_victim_files(&sample, mono_ns());
        }
        if let Some(counts) = &counts {
            self.add_bytes_elsewhere(counts, &mut sample);
        }
        let (watch, active) = (&mut self.storage, self.pod_index.active());
        let is_dedicated = self.node_sampler.disks.layout().dedicated_image_fs;
        (watch.last_began_ns, watch.last_took_ns) = (sample.began_ns, sample.took_ns);
        if extent == Extent::All {
            // The kubelet's values are older than its answer in any case.
            let took_ns = watch.summary_due_ns.map_or(0, |_| sample.took_ns);
            let at_ns = sample.began_ns.saturating_add(took_ns);
            watch.all_pods = Some(AllPodsReading { at_ns, unmeasured: sample.unmeasured, counts });
        } else {
            // Some pods were read again: the counts do not fit all of them any more.
            watch.forget_counts_of_reading();
        }
        if extent != Extent::NearLimit {
            watch.limits_due_ns = watch.next_due_ns(LIMITS_INTERVAL, LIMITS_PACE);
        }
        let is_exceeded = watch.record_limits(&sample, active, grown, is_dedicated);
        let needs_sync = is_exceeded || extent != Extent::NearLimit;
        watch.needs_limit_check |= needs_sync;
        if extent == Extent::All {
            self.await_preallocated_space(sample.preallocated(self.node_sampler.disks.layout()), mono_ns());
        }
        self.node_sampler.take_storage(sample, &self.pod_index);
        needs_sync
    }

    /// Requests the storage of pods with limits, if that is due.
    pub(super) fn read_limited_storage(&mut self, now_ns: u64) {
        let has_limits = self.engine.policy().local_storage_capacity_isolation
            && self.engine.pods().pods().iter().any(|known| !known.limits.is_empty());
        if has_limits && self.storage.reads_directories() && now_ns >= self.storage.limits_due_ns {
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
        let left = self.storage.limit_headroom(self.pod_index.active(), grown, is_dedicated)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reading_postpones_the_next_one_by_a_minute_at_most() {
        let mut watch = PodStorageWatch::new(Host::default(), FsPaths::default(), None);
        let mut due = |took: Duration| {
            watch.last_took_ns = nanos(took);
            Duration::from_nanos(watch.next_due_ns(LIMITS_INTERVAL, LIMITS_PACE))
        };
        assert_eq!(due(Duration::from_millis(1)), LIMITS_INTERVAL);
        assert_eq!(due(Duration::from_millis(400)), Duration::from_secs(20));
        assert_eq!(due(Duration::from_secs(90)), Duration::from_secs(150));
    }

    fn watch_with_reading(at_ns: u64) -> PodStorageWatch {
        let mut watch = PodStorageWatch::new(Host::default(), FsPaths::default(), None);
        let counts = Some(BTreeMap::new());
        watch.all_pods = Some(AllPodsReading { at_ns, unmeasured: Parts::default(), counts });
        watch
    }

    #[test]
    fn the_counts_of_replaced_programs_are_not_added_to_readings() {
        let mut watch = watch_with_reading(1);
        watch.older_pods = Some(BTreeMap::new());
        let counts = Some(BTreeMap::new());
        watch.pending = Some(PendingReading { extent: Extent::All, grown: 0, counts });
        watch.forget_counts();
        assert!(watch.counts_at_reading(1).is_none() && watch.older_pods.is_none());
        assert_eq!(watch.unmeasured(1, false), Parts::default(), "the reading itself counts");
        assert!(watch.pending.is_some_and(|pending| pending.counts.is_none()));
    }

    #[test]
    fn a_reading_ranks_pods_for_a_second_and_longer_with_what_was_counted_since() {
        let watch = watch_with_reading(0);
        let is_known = |seconds: u64, is_counted| {
            watch.unmeasured(seconds * 1_000_000_000, is_counted) == Parts::default()
        };
        assert_eq!([1, 2].map(|seconds| is_known(seconds, false)), [true, false]);
        assert_eq!([2, 12, 13].map(|seconds| is_known(seconds, true)), [true, true, false]);
    }
}
