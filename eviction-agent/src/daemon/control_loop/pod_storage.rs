//! What pods use of the disks: when it is read, and for how long that counts.

use std::collections::BTreeMap;
use std::time::Duration;

use eviction_core::decision::Decision;
use eviction_core::disk_layout::Parts;
use eviction_core::eviction::EvaluationEnd;
use eviction_core::in_flight::InFlightEviction;
use eviction_core::signal::Resource;
use eviction_core::time::nanos;
use eviction_node::cgroup::node_root::GroupPaths;
use eviction_node::cgroup::pods::Container;
use eviction_node::clock::mono_ns;
use eviction_node::fs::{PodStorage, StoragePaths, StorageReader, StorageRequest, StorageSample, Urgency};
use tokio::sync::mpsc::{Receiver, channel};

use super::ControlLoop;
use super::inode_counts::InodeCounts;
use super::xfs_preallocation::Preallocation;
use crate::daemon::kubelet_api::KubeletClient;
use crate::daemon::stats_summary;

/// Pods are ranked by readings that are no older.
const FRESH: Duration = Duration::from_secs(1);

/// How often pods with limits of their own are read, and how many times as long as that takes is waited at least.
const LIMITS: Duration = Duration::from_secs(10);
const LIMITS_PACE: u64 = 50;

/// The disks are read before a pod can reach its limit at this rate, bytes per second: page cache of ext4 takes 4.4 GB/s
/// from one writer. No sooner than after the least time, which costs 0.1 % of a core.
const LIMIT_RATE: u64 = 4_000_000_000;
const LIMIT_FLOOR: Duration = Duration::from_millis(20);

/// Pods are read ahead of a crossing that is less than this away at the greatest rate seen lately, and no more often than
/// that; [`LIMITS_PACE`] makes that 10 s where a reading takes 200 ms.
/// What is counted since is added.
pub(super) const AHEAD: Duration = Duration::from_secs(1);
const AHEAD_FRESH: Duration = Duration::from_secs(12);

/// How often all pods are read while a kill order for writers may be armed, and how many times as long as that takes is
/// waited at least: an order is good for as long as the reading that it was made on.
const KILL_ORDER: Duration = Duration::from_millis(500);
const KILL_ORDER_PACE: u64 = 10;

/// How long no pod is evicted for a disk after the agent has killed one for it: the kubelet or another program removes
/// its files.
const SETTLE: Duration = Duration::from_secs(30);

/// The reading of pods' storage.
#[derive(Debug)]
pub(crate) struct PodStorageWatch {
    reader: Option<StorageReader>,
    /// When the kubelet may be asked next, if it is: it answers for all pods and not at once, so only when a threshold is
    /// met. `None` if directories are read.
    summary_due_ns: Option<u64>,
    pub(super) samples: Receiver<StorageSample>,
    /// What is being read.
    pending: Option<Extent>,
    /// [`DiskMonitor::grown_bytes`] when that was requested.
    ///
    /// [`DiskMonitor::grown_bytes`]: eviction_node::fs::DiskMonitor::grown_bytes
    asked_grown: u64,
    /// Of the pods with limits, by uid.
    headrooms: BTreeMap<Box<str>, LimitHeadroom>,
    /// When pods near a limit are read next at the earliest.
    near_due_ns: u64,
    /// When the last reading of all pods began, and what could not be read.
    all_read_ns: Option<u64>,
    unmeasured: Parts,
    /// What was counted when the reading that is awaited, and the last reading of all pods, were asked for: for one ahead
    /// of a crossing.
    asked_counts: Option<InodeCounts>,
    counts: Option<InodeCounts>,
    ahead_due_ns: u64,
    kill_order_due_ns: u64,
    /// When pods with limits are read next.
    limits_due_ns: u64,
    settled_ns: u64,
    pub(super) preallocation: Preallocation,
    /// The next sync is to hold the pods to their limits.
    pub(super) is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All pods, which are to be ranked.
    All,
    /// All pods, before that; only where inodes are counted.
    Ahead,
    /// Those with limits.
    Limited,
    /// Those that may exceed a limit since they were read.
    NearLimit,
}

/// How far a pod is from its limits.
#[derive(Clone, Copy, Debug)]
struct LimitHeadroom {
    /// How much the disks had grown when its reading was requested.
    grown: u64,
    /// What it could write then; `None` if it exceeds a limit, or that is not known: then only the reading of every
    /// [`LIMITS`] tells.
    left: Option<u64>,
}

impl LimitHeadroom {
    /// What the disks can grow until it may exceed a limit, if it has written all of that; 0 if it may exceed one now.
    fn until_exceeded(self, grown: u64) -> Option<u64> {
        Some(self.left?.saturating_sub(grown.wrapping_sub(self.grown)))
    }
}

impl PodStorageWatch {
    /// Starts the reader where there is something to be read.
    pub(crate) fn new(paths: StoragePaths, summary: Option<KubeletClient>) -> Self {
        let (sender, samples) = channel(1);
        let summary_due_ns = summary.is_some().then_some(0);
        let reader = match summary {
            Some(kubelet) => Some(stats_summary::start(kubelet, sender)),
            None if paths == StoragePaths::default() => None,
            None => Some(StorageReader::of_directories(paths, sender)),
        };
        let reader = reader.and_then(|started| {
            started
                .inspect_err(|error| tracing::error!(%error, "start the thread that reads pods' storage"))
                .ok()
        });
        Self {
            reader,
            summary_due_ns,
            samples,
            pending: None,
            asked_grown: 0,
            headrooms: BTreeMap::new(),
            near_due_ns: 0,
            asked_counts: None,
            counts: None,
            ahead_due_ns: 0,
            kill_order_due_ns: 0,
            all_read_ns: None,
            unmeasured: Parts::ALL,
            limits_due_ns: 0,
            settled_ns: 0,
            preallocation: Preallocation::default(),
            is_new: false,
        }
    }

    fn is_younger(&self, age: Duration, now_ns: u64) -> bool {
        self.all_read_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= nanos(age))
    }

    /// Whether all pods were read lately, for a crossing.
    fn is_fresh(&self, now_ns: u64) -> bool {
        self.counts.is_none() && self.is_younger(FRESH, now_ns)
    }

    /// Whether a pod may be evicted for a disk: what was freed, or will be freed soon, is known.
    fn is_settled(&self, now_ns: u64) -> bool {
        now_ns >= self.settled_ns && self.preallocation.wait(now_ns).is_none()
    }

    /// Whether all pods were read ahead of a crossing, and what they made since was counted.
    pub(super) fn is_read_ahead(&self, now_ns: u64) -> bool {
        self.counts.is_some() && self.is_younger(AHEAD_FRESH, now_ns)
    }

    /// Whether directories are read, which may be done at any time.
    fn reads_directories(&self) -> bool {
        self.reader.is_some() && self.summary_due_ns.is_none()
    }

    pub(super) fn may_read_ahead(&self, now_ns: u64) -> bool {
        self.reads_directories() && self.pending.is_none() && now_ns >= self.ahead_due_ns
    }

    /// Whether all pods may be read for a kill order.
    pub(super) fn may_read_for_kill_order(&self, now_ns: u64) -> bool {
        self.reads_directories() && self.pending.is_none() && now_ns >= self.kill_order_due_ns
    }

    /// When the reading of all pods began by which they may be ranked now, for a crossing.
    pub(super) fn ranked_by(&self, now_ns: u64) -> Option<u64> {
        self.all_read_ns.filter(|_| self.is_fresh(now_ns) && self.is_settled(now_ns))
    }

    pub(super) fn counts(&self) -> Option<&InodeCounts> {
        self.counts.as_ref()
    }

    /// Parts of pods whose usage is not known now. With `is_counted` what was read ahead counts.
    pub(super) fn unmeasured(&self, now_ns: u64, is_counted: bool) -> Parts {
        let is_known = (is_counted || self.is_fresh(now_ns)) && self.is_settled(now_ns);
        if is_known { self.unmeasured } else { Parts::ALL }
    }
}

impl ControlLoop {
    /// Has the storage of all pods read if the decision lacks it. What could not be read a moment ago is not
    /// read again at once.
    pub(super) fn read_storage_for(&mut self, decision: &Decision) {
        let cannot_rank =
            decision.evaluation().is_some_and(|evaluation| evaluation.end == EvaluationEnd::CannotRank);
        if cannot_rank {
            self.read_storage(mono_ns());
        }
    }

    /// Has the storage of all pods read if a threshold is met by which pods are to be ranked, before the sync which
    /// finds that: the reading takes as long as that.
    pub(super) fn read_storage_at_crossing(&mut self) {
        let now_ns = mono_ns();
        if !self.storage.is_read_ahead(now_ns) && self.node_sampler.disks.is_met_now() {
            self.read_storage(now_ns);
        }
    }

    fn read_storage(&mut self, now_ns: u64) {
        let is_due = self.storage.is_settled(now_ns)
            && !self.storage.is_fresh(now_ns)
            && self.storage.summary_due_ns.is_none_or(|due_ns| now_ns >= due_ns);
        if is_due && !self.reclaim.is_awaited {
            self.ask_for_storage(Extent::All);
        }
    }

    /// Has the storage of pods with limits read, if that is due.
    pub(super) fn read_limited_storage(&mut self, now_ns: u64) {
        let has_limits = self.engine.policy().local_storage_capacity_isolation
            && self.engine.pods().pods().iter().any(|known| !known.limits.is_empty());
        if has_limits && self.storage.reads_directories() && now_ns >= self.storage.limits_due_ns {
            self.ask_for_storage(Extent::Limited);
        }
    }

    /// Has pods read that may exceed a limit by now: the disks have grown by what was left to them.
    /// Returns when to check again.
    pub(super) fn watch_limits(&mut self, now_ns: u64) -> Option<Duration> {
        if !self.storage.reads_directories() || !self.engine.policy().local_storage_capacity_isolation {
            return None;
        }
        let grown = self.node_sampler.disks.grown_bytes();
        let headrooms = &mut self.storage.headrooms;
        let limited = self.pod_index.active().pods().iter().filter(|known| !known.limits.is_empty());
        let left = limited.filter_map(|known| {
            let headroom = headrooms.get(&known.pod.uid).copied().unwrap_or_else(|| {
                let new = LimitHeadroom { grown, left: PodStorage::default().headroom(known) };
                headrooms.insert(known.pod.uid.clone(), new);
                new
            });
            headroom.until_exceeded(grown)
        });
        let left = left.min()?;
        if left > 0 {
            let ns = u128::from(left) * 1_000_000_000 / u128::from(LIMIT_RATE);
            let time = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            return Some(time.clamp(LIMIT_FLOOR, LIMITS));
        }
        if let Some(pause) = self.storage.near_due_ns.checked_sub(now_ns).filter(|pause| *pause > 0) {
            return Some(Duration::from_nanos(pause));
        }
        self.ask_for_storage(Extent::NearLimit);
        Some(LIMIT_FLOOR)
    }

    pub(super) fn ask_for_storage(&mut self, extent: Extent) {
        if self.storage.reader.is_none() || self.storage.pending.is_some() {
            return;
        }
        let counts = match extent {
            Extent::All | Extent::Ahead => self.count_inodes(),
            Extent::Limited | Extent::NearLimit => None,
        };
        if extent == Extent::Ahead && counts.is_none() {
            return;
        }
        let Some(reader) = &self.storage.reader else { return };
        let groups = self.node_sampler.cgroups.pods().pods.iter();
        let known = groups.filter_map(|group| Some((self.pod_index.pod_of(group)?, group)));
        let grown = self.node_sampler.disks.grown_bytes();
        let is_near = |uid: &str| {
            self.storage.headrooms.get(uid).is_some_and(|headroom| headroom.until_exceeded(grown) == Some(0))
        };
        let wanted = known.filter(|(known, _)| match extent {
            Extent::All | Extent::Ahead => true,
            Extent::Limited => !known.limits.is_empty(),
            Extent::NearLimit => is_near(&known.pod.uid),
        });
        let requests = wanted.map(|(known, group)| {
            let of = |it: &Container| (self.pod_index.container_name(&it.id).into(), self.procs_of(it));
            let made_inodes = counts.as_ref().and_then(|counts| counts.made_by(group.cgroup_id));
            StorageRequest::new(known, group.containers.iter().map(of).collect(), made_inodes)
        });
        let urgency = match extent {
            Extent::All | Extent::Ahead | Extent::NearLimit => Urgency::Decision,
            Extent::Limited => Urgency::Routine,
        };
        if reader.ask(requests.collect(), urgency) {
            (self.storage.pending, self.storage.asked_grown) = (Some(extent), grown);
            self.storage.asked_counts = counts.filter(|_| extent == Extent::Ahead);
            if let Some(due_ns) = &mut self.storage.summary_due_ns {
                *due_ns = mono_ns().saturating_add(nanos(stats_summary::EVERY));
            }
        }
    }

    fn procs_of(&self, container: &Container) -> std::path::PathBuf {
        let GroupPaths { memory, .. } = self.node_sampler.cgroups.root().paths_of(&container.path);
        memory.join("cgroup.procs")
    }

    /// Takes what was read. Whether the engine is to see it: pods that were only near their limits, and still are, are
    /// of no interest.
    pub(super) fn take_storage(&mut self, sample: StorageSample) -> bool {
        let (watch, active) = (&mut self.storage, self.pod_index.active());
        let extent = watch.pending.take();
        let not_before = |pause: Duration, pace: u64| {
            let pause = nanos(pause).max(sample.took_ns.saturating_mul(pace));
            sample.began_ns.saturating_add(pause)
        };
        let was_ahead = watch.counts.is_some();
        watch.counts = watch.asked_counts.take();
        if matches!(extent, Some(Extent::All | Extent::Ahead)) {
            // The kubelet's values are older than its answer in any case.
            let took_ns = watch.summary_due_ns.map_or(0, |_| sample.took_ns);
            let read_ns = sample.began_ns.saturating_add(took_ns);
            (watch.all_read_ns, watch.unmeasured) = (Some(read_ns), sample.unmeasured);
        } else if was_ahead {
            // Some pods were read again: the counts do not fit all of them any more.
            watch.all_read_ns = None;
        }
        if extent != Some(Extent::NearLimit) {
            watch.limits_due_ns = not_before(LIMITS, LIMITS_PACE);
        }
        watch.near_due_ns = not_before(LIMIT_FLOOR, LIMITS_PACE);
        watch.ahead_due_ns = not_before(AHEAD, LIMITS_PACE);
        watch.kill_order_due_ns = not_before(KILL_ORDER, KILL_ORDER_PACE);
        let mut is_of_interest = matches!(extent, None | Some(Extent::All | Extent::Limited));
        for (uid, storage) in &sample.pods {
            let known = active.index_of(uid).and_then(|place| active.get(place));
            let Some(known) = known.filter(|known| !known.limits.is_empty()) else { continue };
            let left = storage.headroom(known);
            is_of_interest |= left.is_none();
            watch.headrooms.insert(uid.clone(), LimitHeadroom { grown: watch.asked_grown, left });
        }
        watch.headrooms.retain(|uid, _| active.index_of(uid).is_some());
        watch.is_new |= is_of_interest;
        if extent == Some(Extent::All) {
            self.wait_for_xfs(sample.preallocated(), mono_ns());
        }
        self.node_sampler.take_storage(sample, &self.pod_index);
        is_of_interest
    }

    /// The agent has ended a pod itself: what it has written is still there.
    pub(super) fn let_disks_settle(&mut self, it: &InFlightEviction) {
        let is_of_disk = matches!(it.resource(), Resource::EphemeralStorage | Resource::Inodes);
        if is_of_disk && it.api.is_none() {
            self.storage.settled_ns = mono_ns().saturating_add(nanos(SETTLE));
        }
    }
}
