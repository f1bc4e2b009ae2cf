//! The smallest changes with which another pod would have been evicted.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::pod::PodName;
use crate::pods::RankFacts;
use crate::rank::{Candidate, Measure};
use crate::record::candidate::{CandidateOutcome, CandidateRecord, RankedPods};
use crate::units::Nanos;

/// How far a candidate is from the opposite outcome: for a pod that is evicted, what would have spared it;
/// for one that stays, what would have led to its eviction. Each value is the smallest change of that value
/// alone, in whole units, with all others unchanged; a decrease is negative. Absent if no change of that
/// value would have been enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MarginRecord {
    /// The rival: the index in the list of candidates of the first pod that stays, or of the last pod that is
    /// evicted.
    pub against: usize,
    /// The change of the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// The change of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    /// The change of the priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Whether pods are selected by what each one frees. If so, the changes only show where the pod would
    /// have ranked, and not which pod would have been evicted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sized: bool,
}

/// The smallest change of a single pod's usage with which another pod would have been evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestRecord {
    /// The pod whose usage changes.
    pub pod: PodName,
    /// The change in whole units. A decrease is negative.
    pub usage: i64,
    /// The pod that would have stayed.
    pub kept: PodName,
    /// The pod that would have been evicted instead.
    pub evicted: PodName,
}

impl NearestRecord {
    /// Returns the smallest change of usage among all margins. Of equal changes, that of the pod which ranks
    /// first counts.
    pub(super) fn of(candidates: &[CandidateRecord]) -> Option<Self> {
        let margins = candidates.iter().filter_map(|one| Some((one, one.margin?, one.margin?.usage?)));
        let (candidate, margin, usage) = margins.min_by_key(|(.., usage)| usage.unsigned_abs())?;
        let pod = candidate.pod.clone();
        let rival = candidates.get(margin.against)?.pod.clone();
        let (kept, evicted) = match candidate.result {
            CandidateOutcome::Evicted => (pod.clone(), rival),
            _ => (rival, pod.clone()),
        };
        Some(Self { pod, usage, kept, evicted })
    }
}

/// The choice between the pods that are evicted and those that could have been.
impl RankedPods<'_> {
    /// Returns the last pod that is evicted and the first that stays, by their indices in the ranking.
    pub(super) fn border(&self) -> Option<(usize, usize)> {
        let is_evicted = |candidate: &Candidate| self.is_evicted(candidate.pod);
        let stays = |candidate: &Candidate| {
            let may_be = self.may_be_evicted(candidate.pod) && !self.skipped.contains_key(&candidate.pod);
            may_be && !is_evicted(candidate)
        };
        self.ranked.iter().rposition(is_evicted).zip(self.ranked.iter().position(stays))
    }

    /// Returns what would have led to the opposite outcome for a candidate: the smallest changes that each move it
    /// to the other side of its rival. `position` is its index in the ranking.
    ///
    /// More usage, a lower request and a lower priority never move a pod back, so the smallest change is found by
    /// bisection, with the same keys as in the ranking.
    pub(super) fn margin(&self, (last, first): (usize, usize), position: usize) -> Option<MarginRecord> {
        let candidate = *self.ranked.get(position)?;
        let is_evicted = self.is_evicted(candidate.pod);
        if !is_evicted && self.skipped.contains_key(&candidate.pod) {
            return None;
        }
        let known = self.pods.get(candidate.pod)?;
        let against = if is_evicted { first } else { last };
        let rival = self.ranked.get(against)?;
        let (measure, facts) = (self.measure, known.rank);
        let margin =
            MarginRecord { against, usage: None, request: None, priority: None, sized: self.is_sized };
        let usage = measure.known_usage(known, self.snapshot.stats_of(candidate.pod));
        let is_before = candidate.key() < rival.key();
        let moves_forward = !is_before;
        let passes = |facts: RankFacts, usage: Option<i128>| {
            let (class, excess) = measure.key_at(&facts, usage);
            let changed = Candidate { class, excess, priority: facts.priority, ..candidate };
            (changed.key() < rival.key()) != is_before
        };
        let more_usage = usage.and_then(|usage| {
            let room = if moves_forward { i128::from(i64::MAX) - usage } else { usage };
            smallest_change(room, moves_forward, |by| passes(facts, Some(usage + i128::from(by))))
        });
        let request = (measure != Measure::Processes).then(|| measure.base(&facts).units_rounded_down());
        let more_request = request.and_then(|request| {
            let room = if moves_forward { request } else { i128::from(i64::MAX) - request };
            smallest_change(room, !moves_forward, |by| passes(with_request_change(measure, facts, by), usage))
        });
        let (now, most) = (i128::from(facts.priority), i128::from(HIGHEST_USER_PRIORITY));
        let room = if moves_forward { now - i128::from(i32::MIN) } else { most - now };
        let more_priority = smallest_change(room, !moves_forward, |by| {
            let sum = i64::from(facts.priority).saturating_add(by);
            let priority = i32::try_from(sum).unwrap_or(facts.priority);
            passes(RankFacts { priority, ..facts }, usage)
        });
        Some(MarginRecord { usage: more_usage, request: more_request, priority: more_priority, ..margin })
    }
}

/// The highest priority of a user's priority class. Higher ones are reserved for the system.
const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;

fn with_request_change(measure: Measure, mut facts: RankFacts, more: i64) -> RankFacts {
    let request = match measure {
        Measure::Memory => &mut facts.memory,
        Measure::Inodes(_) if facts.enhanced => &mut facts.inodes,
        Measure::Bytes(_) | Measure::Inodes(_) | Measure::Processes => &mut facts.storage,
    };
    *request = request.plus(Nanos::from_units(i128::from(more)));
    facts
}

/// Returns the smallest change of at most `room`, upwards or downwards, for which `holds` is true. Beyond it
/// `holds` must stay true.
fn smallest_change(room: i128, upwards: bool, holds: impl Fn(i64) -> bool) -> Option<i64> {
    let signed = |size: i64| if upwards { size } else { -size };
    let room = i64::try_from(room).unwrap_or(i64::MAX);
    if room < 1 || !holds(signed(room)) {
        return None;
    }
    // Most changes are small, so the search starts there.
    let (mut low, mut high) = (0, 1);
    while high < room && !holds(signed(high)) {
        (low, high) = (high, high.saturating_mul(2).min(room));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(signed(middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(signed(high))
}
