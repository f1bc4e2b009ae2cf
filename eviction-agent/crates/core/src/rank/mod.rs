//! Who goes first.
//!
//! Every pod gets a [`Candidate`], a key that is compared field by field and ends in a number
//! no other pod has, so the order is strict whatever the pods. The kubelet's sort leaves full
//! ties to chance; here the lower uid goes first.

#[cfg(test)]
mod enhanced_tests;
#[cfg(test)]
mod tests;
mod usage;

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use serde::Serialize;
pub(crate) use usage::Measure;

use super::pods::{KnownPod, PodSet, RankFacts};
use super::snapshot::Snapshot;
use super::work::step;
use crate::pods::EvictionOrder;
use crate::units::{Nanos, Quantity};

/// A pod with the key it is ranked by. The least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its index among the active pods.
    pub pod: u32,
    /// When its turn is, whatever it uses. The same for all pods in the kubelet's profile.
    pub order: EvictionOrder,
    /// The first criterion.
    pub class: OverRequestClass,
    /// The second criterion: lower goes first.
    pub priority: i32,
    /// Nothing would bring it back: goes after the others of its priority. Never so in the
    /// kubelet's profile.
    pub without_controller: bool,
    /// What its annotation asks for among these: lower goes first. 0 in the kubelet's profile.
    pub hint: i8,
    /// The third criterion, usage less request: more goes first.
    pub excess: Nanos,
    /// The last criterion: the index in the order of uids.
    pub uid_rank: u32,
}

/// How a pod stands to what it requested, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverRequestClass {
    /// Nothing is known of its usage, for which the kubelet lets it go before all others.
    NoStats,
    /// It uses more than it requested.
    Exceeds,
    /// It uses at most what it requested.
    Within,
    /// Nothing is known of its usage. It counts as within its request, and goes after those of
    /// its priority of which more is known.
    Unknown,
    /// Nobody asks: process ids cannot be requested.
    Alike,
}

impl OverRequestClass {
    /// The index among the classes that go one after the other.
    pub(crate) const fn class(self) -> u64 {
        match self {
            Self::NoStats => 0,
            Self::Exceeds => 1,
            Self::Within | Self::Unknown | Self::Alike => 2,
        }
    }
}

impl Candidate {
    /// What is compared, in this order.
    #[inline]
    pub(crate) fn key(&self) -> (impl Ord + use<>, Reverse<Nanos>, u32) {
        step();
        let Self { pod: _, order, class, priority, without_controller, hint, excess, uid_rank } = *self;
        let is_unknown = class == OverRequestClass::Unknown;
        let before_excess = (order, class.class(), priority, is_unknown, without_controller, hint);
        (before_excess, Reverse(excess), uid_rank)
    }

    /// The order of eviction. Where both excesses are beyond what [`Nanos`] can hold, `exact` works them out.
    fn compare(&self, other: &Self, exact: impl Fn(&Self) -> Quantity) -> Ordering {
        let ((a, a_excess, a_uid), (b, b_excess, b_uid)) = (self.key(), other.key());
        let by_exact_excess = || match self.excess == other.excess && self.excess.is_saturated() {
            true => exact(other).cmp(&exact(self)),
            false => Ordering::Equal,
        };
        a.cmp(&b).then(a_excess.cmp(&b_excess)).then_with(by_exact_excess).then(a_uid.cmp(&b_uid))
    }
}

/// Writes all pods to `ranked`, the first to go first. The snapshot is indexed for these pods.
/// Mirrors `helpers.go: rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc`.
pub(crate) fn rank(measure: Measure, pods: &PodSet, snapshot: &Snapshot, ranked: &mut Vec<Candidate>) {
    let candidate = |((index, known), &uid_rank): ((u32, &Arc<KnownPod>), &u32)| {
        let RankFacts { order, priority, without_controller, hint, .. } = known.rank;
        let (class, excess) = measure.key(known, snapshot.stats_of(index));
        Candidate { pod: index, order, class, priority, without_controller, hint, excess, uid_rank }
    };
    ranked.clear();
    ranked.extend((0..).zip(pods.pods()).zip(pods.uid_order()).map(candidate));
    if ranked.iter().any(|candidate| candidate.excess.is_saturated()) {
        let exact = exact_excess(measure, pods, snapshot);
        ranked.sort_unstable_by(|a, b| a.compare(b, &exact));
    } else {
        ranked.sort_unstable_by_key(Candidate::key);
    }
}

/// The excess of a candidate, however large.
fn exact_excess(measure: Measure, pods: &PodSet, snapshot: &Snapshot) -> impl Fn(&Candidate) -> Quantity {
    move |candidate| {
        let known = pods.get(candidate.pod);
        known.map_or(Quantity::ZERO, |known| measure.exact_excess(known, snapshot.stats_of(candidate.pod)))
    }
}
