//! What pods use of the disks: when it is read, and for how long that counts.

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
use eviction_node::fs::{StoragePaths, StorageReader, StorageRequest, StorageSample, Urgency};
use tokio::sync::mpsc::{Receiver, channel};

use super::ControlLoop;

/// Pods are ranked by readings that are no older.
const FRESH: Duration = Duration::from_secs(1);

/// How often pods with limits of their own are read, and how many times as long as that takes is waited at least.
const LIMITS: Duration = Duration::from_secs(10);
const LIMITS_PACE: u64 = 50;

/// How long nobody goes for a disk after a pod that the agent has killed for it: its files are the kubelet's to
/// remove, or somebody else's.
const SETTLE: Duration = Duration::from_secs(30);

/// The reading of pods' storage.
#[derive(Debug)]
pub(crate) struct PodStorageWatch {
    reader: Option<StorageReader>,
    pub(super) samples: Receiver<StorageSample>,
    /// What is being read: all pods, or those with limits.
    pending: Option<Extent>,
    /// When the last reading of all pods began, and what could not be read.
    all_read_ns: Option<u64>,
    unmeasured: Parts,
    /// When pods with limits are read next.
    limits_due_ns: u64,
    settled_ns: u64,
    /// The next sync is to hold the pods to their limits.
    pub(super) is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    Limited,
}

impl PodStorageWatch {
    /// Starts the reader where there is something to be read.
    pub(crate) fn new(paths: StoragePaths) -> Self {
        let (sender, samples) = channel(1);
        let is_readable = paths != StoragePaths::default();
        let reader = is_readable.then(|| StorageReader::start(paths, sender)).and_then(|started| {
            started
                .inspect_err(|error| tracing::error!(%error, "start the thread that reads pods' storage"))
                .ok()
        });
        Self {
            reader,
            samples,
            pending: None,
            all_read_ns: None,
            unmeasured: Parts::ALL,
            limits_due_ns: 0,
            settled_ns: 0,
            is_new: false,
        }
    }

    /// Whether all pods were read lately.
    fn is_fresh(&self, now_ns: u64) -> bool {
        self.all_read_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= nanos(FRESH))
    }

    /// Parts of pods whose usage is not known now.
    pub(super) fn unmeasured(&self, now_ns: u64) -> Parts {
        if self.is_fresh(now_ns) && now_ns >= self.settled_ns { self.unmeasured } else { Parts::ALL }
    }
}

impl ControlLoop {
    /// Has the storage of all pods read if the decision lacks it. What could not be read a moment ago is not
    /// read again at once.
    pub(super) fn read_storage_for(&mut self, decision: &Decision) {
        let cannot_rank =
            decision.evaluation().is_some_and(|evaluation| evaluation.end == EvaluationEnd::CannotRank);
        let now_ns = mono_ns();
        let is_due = now_ns >= self.storage.settled_ns && !self.storage.is_fresh(now_ns);
        if cannot_rank && !self.reclaim.is_awaited && is_due {
            self.ask_for_storage(Extent::All);
        }
    }

    /// Has the storage of pods with limits read, if that is due.
    pub(super) fn read_limited_storage(&mut self, now_ns: u64) {
        let has_limits = self.engine.policy().local_storage_capacity_isolation
            && self.engine.pods().pods().iter().any(|known| !known.limits.is_empty());
        if has_limits && now_ns >= self.storage.limits_due_ns {
            self.ask_for_storage(Extent::Limited);
        }
    }

    fn ask_for_storage(&mut self, extent: Extent) {
        let Some(reader) = self.storage.reader.as_ref().filter(|_| self.storage.pending.is_none()) else {
            return;
        };
        let groups = self.node_sampler.cgroups.pods().pods.iter();
        let known = groups.filter_map(|group| Some((self.pod_index.pod_of(group)?, &group.containers)));
        let wanted = known.filter(|(known, _)| extent == Extent::All || !known.limits.is_empty());
        let requests = wanted.map(|(known, containers)| {
            let of = |it: &Container| (self.pod_index.container_name(&it.id).into(), self.procs_of(it));
            StorageRequest::new(known, containers.iter().map(of).collect())
        });
        let urgency = match extent {
            Extent::All => Urgency::Decision,
            Extent::Limited => Urgency::Routine,
        };
        if reader.ask(requests.collect(), urgency) {
            self.storage.pending = Some(extent);
        }
    }

    fn procs_of(&self, container: &Container) -> std::path::PathBuf {
        let GroupPaths { memory, .. } = self.node_sampler.cgroups.root().paths_of(&container.path);
        memory.join("cgroup.procs")
    }

    /// Takes what was read.
    pub(super) fn take_storage(&mut self, sample: StorageSample) {
        let watch = &mut self.storage;
        if watch.pending.take() == Some(Extent::All) {
            (watch.all_read_ns, watch.unmeasured) = (Some(sample.began_ns), sample.unmeasured);
        }
        let pause = nanos(LIMITS).max(sample.took_ns.saturating_mul(LIMITS_PACE));
        watch.limits_due_ns = sample.began_ns.saturating_add(pause);
        watch.is_new = true;
        self.node_sampler.take_storage(sample, &self.pod_index);
    }

    /// The agent has ended a pod itself: what it has written is still there.
    pub(super) fn let_disks_settle(&mut self, it: &InFlightEviction) {
        let is_of_disk = matches!(it.resource(), Resource::EphemeralStorage | Resource::Inodes);
        if is_of_disk && it.api.is_none() {
            self.storage.settled_ns = mono_ns().saturating_add(nanos(SETTLE));
        }
    }
}
