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

use super::disk_layout::DiskLayout;
use super::pods::{PodSet, RankFacts};
use super::signal::Signal;
use super::snapshot::{NO_STATS, PodStats, Snapshot};
use super::work::step;
use crate::pods::EvictionOrder;
use crate::units::Nanos;

/// A pod with the key it is ranked by. The least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its place among the active pods.
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
    /// The last criterion: the place in the order of uids.
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
    /// The place among the classes that go one after the other.
    pub(crate) const fn class(self) -> u64 {
        match self {
            Self::NoStats => 0,
            Self::Exceeds => 1,
            Self::Within | Self::Unknown | Self::Alike => 2,
        }
    }
}

impl Candidate {
    /// The fields in their order; all before the excess are one number, which is quicker to
    /// compare: turn, class, priority, whether nothing is known, whether it is bare, hint.
    #[inline]
    pub(crate) fn key(&self) -> (u64, Reverse<Nanos>, u32) {
        step();
        // The sign bit turned, so that signed numbers keep their order.
        let priority = u64::from(self.priority.cast_unsigned() ^ (1 << 31));
        let hint = u64::from(self.hint.cast_unsigned() ^ (1 << 7));
        let unknown = u64::from(self.class == OverRequestClass::Unknown);
        let head = (self.order as u64) << 44
            | self.class.class() << 42
            | priority << 10
            | unknown << 9
            | u64::from(self.without_controller) << 8
            | hint;
        (head, Reverse(self.excess), self.uid_rank)
    }
}

/// Writes all pods to `ranked`, the first to go first. `joined` are the places of their statistics.
/// Mirrors `helpers.go: rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc`.
pub(crate) fn rank(
    measure: Measure,
    pods: &PodSet,
    snapshot: &Snapshot,
    joined: &[u32],
    ranked: &mut Vec<Candidate>,
) {
    let candidate = |place: u32, facts: &RankFacts, stats: Option<PodStats<'_>>| {
        let (standing, excess) = measure.key(pods, place, facts, stats);
        Candidate {
            pod: place,
            order: facts.order,
            class: standing,
            priority: facts.priority,
            without_controller: facts.without_controller,
            hint: facts.hint,
            excess,
            uid_rank: pods.uid_order().get(place as usize).copied().unwrap_or(place),
        }
    };
    ranked.clear();
    ranked.extend((0..).zip(pods.facts()).zip(joined).map(|((place, facts), &at)| {
        let stats = if at == NO_STATS { None } else { snapshot.pod(at) };
        candidate(place, facts, stats)
    }));
    if ranked.iter().any(|candidate| candidate.excess.is_saturated()) {
        ranked.sort_unstable_by(|a, b| compare(measure, pods, snapshot, joined, a, b));
    } else {
        ranked.sort_unstable_by_key(Candidate::key);
    }
}

/// The same for a threshold of this signal, whoever asks. `scratch` is room for the places of statistics.
pub(crate) fn rank_for(
    signal: Signal,
    layout: DiskLayout,
    pods: &Arc<PodSet>,
    snapshot: &Snapshot,
    scratch: &mut Vec<u32>,
    ranked: &mut Vec<Candidate>,
) {
    rank(Measure::of(signal, layout), pods, snapshot, snapshot.joined(pods, scratch), ranked);
}

/// The order of candidates, which is that of their keys. Where an excess is beyond what a key
/// can hold, it is worked out to the last digit.
fn compare(
    measure: Measure,
    pods: &PodSet,
    snapshot: &Snapshot,
    joined: &[u32],
    a: &Candidate,
    b: &Candidate,
) -> Ordering {
    let excess = || {
        if a.excess == b.excess && a.excess.is_saturated() {
            let exact = |one: &Candidate| {
                let at = joined.get(one.pod as usize);
                measure.exact_excess(pods, one.pod, at.and_then(|&at| snapshot.pod(at)))
            };
            return exact(b).cmp(&exact(a));
        }
        b.excess.cmp(&a.excess)
    };
    let (a_head, _, a_tie) = a.key();
    let (b_head, _, b_tie) = b.key();
    a_head.cmp(&b_head).then_with(excess).then(a_tie.cmp(&b_tie))
}
