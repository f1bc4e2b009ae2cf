//! Ranks the pods for eviction.
//!
//! Every pod gets a [`Candidate`], a key that is compared field by field. The last field is different for
//! each pod, so the order is always strict. The kubelet's sort leaves the order of equal pods to chance; here
//! the pod with the lower uid is evicted first.

#[cfg(test)]
mod enhanced_tests;
#[cfg(test)]
mod tests;
mod usage;

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Serialize;
pub(crate) use usage::Measure;

use super::pods::{KnownPod, PodProtection, PodSet};
use super::snapshot::Snapshot;
use super::work::step;
use crate::pods::EvictionOrder;
use crate::units::Nanos;

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
