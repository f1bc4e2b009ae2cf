//! Ranks the pods for eviction.
//!
//! Every pod gets a [`Candidate`], a key that is compared field by field. The last field is different for
//! each pod, so the order is always strict. The kubelet's sort leaves the order of equal pods to chance; here
//! the pod with the lower uid is evicted first.

#[cfg(test)]
mod enhanced_tests;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Serialize;

use crate::disk_layout::{DiskLayout, Parts};
use crate::pod::Volume;
use crate::pods::{KnownPod, PodProtection, PodSet, RankFacts};
use crate::policy::preferences::EvictionOrder;
use crate::signal::{Resource, Signal};
use crate::snapshot::{FsUsage, PodStats, Snapshot};
use crate::units::{Nanos, Quantity};
use crate::work::step;

/// A pod with the key that it is ranked by. The least is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The index of the pod among the active pods.
    pub pod: u32,
    /// The eviction order of the pod, whatever its usage. The same for all pods in the kubelet's profile.
    pub order: EvictionOrder,
    /// The first criterion.
    pub class: OverRequestClass,
    /// The second criterion: lower is evicted first.
    pub priority: i32,
    /// Whether no controller would recreate the pod. Such a pod is evicted after the others of its priority.
    /// Always false in the kubelet's profile.
    pub without_controller: bool,
    /// The hint of the pod's annotation: lower is evicted first. 0 in the kubelet's profile.
    pub hint: i8,
    /// The third criterion, usage less request: more is evicted first.
    pub excess: Nanos,
    /// The last criterion: the index in the order of uids.
    pub uid_rank: u32,
}

/// How the usage of a pod compares with its request, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverRequestClass {
    /// The usage is unknown. The kubelet evicts such a pod before all others.
    NoStats,
    /// The pod uses more than it requested.
    Exceeds,
    /// The pod uses at most what it requested.
    Within,
    /// The usage is unknown. The pod counts as within its request, and is evicted after pods of its priority
    /// with a known usage.
    Unknown,
    /// Requests do not count: process ids cannot be requested.
    NotRequestable,
}

impl OverRequestClass {
    /// Returns the index among the classes that are evicted one after the other.
    pub(crate) const fn class(self) -> u64 {
        match self {
            Self::NoStats => 0,
            Self::Exceeds => 1,
            Self::Within | Self::Unknown | Self::NotRequestable => 2,
        }
    }
}

impl Candidate {
    /// Returns the values to compare, in this order.
    #[inline]
    pub(crate) fn key(&self) -> (impl Ord + use<>, Reverse<Nanos>, u32) {
        step();
        let Self { pod: _, order, class, priority, without_controller, hint, excess, uid_rank } = *self;
        let is_unknown = class == OverRequestClass::Unknown;
        let before_excess = (order, class.class(), priority, is_unknown, without_controller, hint);
        (before_excess, Reverse(excess), uid_rank)
    }
}

/// Writes all pods to `ranked`, the first to be evicted first. The snapshot must be indexed for these pods.
/// Mirrors `helpers.go: rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc`.
pub(crate) fn rank(measure: Measure, pods: &PodSet, snapshot: &Snapshot, ranked: &mut Vec<Candidate>) {
    let candidate = |((index, known), &uid_rank): ((u32, &Arc<KnownPod>), &u32)| {
        let PodProtection { order, without_controller, hint, .. } = known.protection;
        let (class, excess) = measure.key(known, snapshot.stats_of(index));
        let priority = known.rank.priority;
        Candidate { pod: index, order, class, priority, without_controller, hint, excess, uid_rank }
    };
    ranked.clear();
    ranked.extend((0..).zip(pods.pods()).zip(pods.uid_order()).map(candidate));
    ranked.sort_unstable_by_key(Candidate::key);
}

/// What is measured to rank pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// The working set, compared with the memory request.
    Memory,
    /// Bytes of some parts of the pod, compared with the request of ephemeral storage.
    Bytes(Parts),
    /// Inodes of some parts of the pod.
    Inodes(Parts),
    /// The number of processes.
    Processes,
}

impl Measure {
    /// Returns what is measured when a signal is short.
    pub(crate) fn of(signal: Signal, layout: DiskLayout) -> Self {
        match signal.resource() {
            Resource::Memory => Self::Memory,
            Resource::EphemeralStorage => Self::Bytes(layout.parts(signal)),
            Resource::Inodes => Self::Inodes(layout.parts(signal)),
            Resource::Pids => Self::Processes,
        }
    }

    /// Returns the first and the third criterion of a pod.
    fn key(self, known: &KnownPod, stats: Option<PodStats<'_>>) -> (OverRequestClass, Nanos) {
        self.key_at(&known.rank, self.known_usage(known, stats))
    }

    /// Returns the first and the third criterion for a given usage.
    ///
    /// For the kubelet, a pod without statistics is evicted before all others, and for process ids it counts
    /// as using more than any other pod of its priority. In the enhanced profile it counts as using nothing,
    /// and is evicted after similar pods.
    pub(crate) fn key_at(self, facts: &RankFacts, usage: Option<i128>) -> (OverRequestClass, Nanos) {
        let base = self.base(facts);
        let Some(used) = usage.map(Nanos::from_units) else {
            return match self {
                _ if facts.enhanced => (OverRequestClass::Unknown, Nanos::ZERO.minus(base)),
                Self::Processes => (OverRequestClass::NotRequestable, Nanos::MAX),
                _ => (OverRequestClass::NoStats, Nanos::ZERO),
            };
        };
        let bound = match self {
            Self::Memory | Self::Bytes(_) => base,
            Self::Inodes(_) => facts.inodes,
            Self::Processes => return (OverRequestClass::NotRequestable, used),
        };
        let class = if used > bound { OverRequestClass::Exceeds } else { OverRequestClass::Within };
        (class, used.minus(base))
    }

    /// Returns what is subtracted from the usage. The kubelet subtracts requested bytes from inodes:
    /// `helpers.go: disk`.
    pub(crate) fn base(self, facts: &RankFacts) -> Nanos {
        match self {
            Self::Memory => facts.memory,
            Self::Inodes(_) if facts.enhanced => facts.inodes,
            Self::Bytes(_) | Self::Inodes(_) => facts.storage,
            Self::Processes => Nanos::ZERO,
        }
    }

    /// Returns the request that the usage is compared with.
    pub(crate) fn request(self, known: &KnownPod) -> Option<Quantity> {
        let resource = match self {
            Self::Memory => Resource::Memory,
            Self::Inodes(_) if known.rank.enhanced => Resource::Inodes,
            Self::Bytes(_) | Self::Inodes(_) => Resource::EphemeralStorage,
            Self::Processes => return None,
        };
        Some(known.request(resource))
    }

    /// Returns the usage of a pod in bytes, inodes or processes, if it is known. None without statistics. In the
    /// enhanced profile also None if all values that count are absent; for the kubelet absent values are 0.
    pub(crate) fn known_usage(self, known: &KnownPod, stats: Option<PodStats<'_>>) -> Option<i128> {
        let stats = stats?;
        let is_enhanced = known.rank.enhanced;
        let number = |value: Option<u64>| if is_enhanced { plausible(value) } else { Some(signed(value)) };
        match self {
            Self::Memory => number(stats.values().memory_working_set),
            Self::Processes => number(stats.values().process_count),
            Self::Bytes(parts) | Self::Inodes(parts) => {
                let mut sum = (!is_enhanced || parts == Parts::default()).then_some(0);
                self.for_each_value(parts, known, stats, |value| {
                    if let Some(value) = number(value) {
                        sum = Some(sum.unwrap_or(0) + value);
                    }
                });
                sum
            }
        }
    }

    /// Returns whether the removal of a pod certainly frees nothing on the file system that is short: none of
    /// the pod's parts are there, or all of them are known and empty.
    pub(crate) fn frees_nothing(self, known: &KnownPod, stats: Option<PodStats<'_>>) -> bool {
        let (Self::Bytes(parts) | Self::Inodes(parts)) = self else {
            return false;
        };
        let empty = |stats: PodStats<'_>| {
            let (mut seen, mut all_empty) = (false, true);
            self.for_each_value(parts, known, stats, |value| {
                seen = true;
                all_empty &= value == Some(0);
            });
            let measured = |name: &str| stats.volumes().any(|(measured, _)| measured == name);
            let on_disk =
                |volume: &Volume| volume.empty_dir.as_ref().is_some_and(|dir| dir.medium.is_empty());
            let mut volumes = known.pod.volumes.iter().filter(|volume| on_disk(volume));
            let mut all_measured = || volumes.all(|volume| measured(&volume.name));
            seen && all_empty && (!parts.volumes || all_measured())
        };
        parts == Parts::default() || stats.is_some_and(empty)
    }

    /// Passes the values that count to `add`: parts of every container in the statistics, and for each local
    /// volume of the specification the first statistics of its name. Mirrors `helpers.go: podDiskUsage`.
    fn for_each_value(
        self,
        parts: Parts,
        known: &KnownPod,
        stats: PodStats<'_>,
        mut add: impl FnMut(Option<u64>),
    ) {
        let inodes = matches!(self, Self::Inodes(_));
        if parts.rootfs || parts.logs {
            for (_, values) in stats.containers() {
                let (rootfs, logs) = match inodes {
                    true => (values.rootfs_inodes, values.logs_inodes),
                    false => (values.rootfs_used, values.logs_used),
                };
                if parts.rootfs {
                    add(rootfs);
                }
                if parts.logs {
                    add(logs);
                }
            }
        }
        if parts.volumes {
            for local in known.pod.volumes.iter().filter(|volume| volume.is_local()) {
                let volume = stats.volumes().find(|(name, _)| *name == &*local.name);
                if let Some((_, FsUsage { used, inodes: in_use })) = volume {
                    add(if inodes { in_use } else { used });
                }
            }
        }
    }
}

/// Returns a value, if it is plausible. A value beyond 2^63 − 1 is not.
fn plausible(value: Option<u64>) -> Option<i128> {
    i64::try_from(value?).ok().map(i128::from)
}

/// Converts a value as the kubelet does. Values beyond 2^63 − 1 turn negative.
fn signed(value: Option<u64>) -> i128 {
    i128::from(value.unwrap_or(0).cast_signed())
}
