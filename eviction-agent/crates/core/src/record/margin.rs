//! How little would have had to be different for another pod to go.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::pod::PodName;
use crate::pods::RankFacts;
use crate::rank::{Candidate, Measure};
use crate::record::candidate::RankedPods;
use crate::units::Nanos;

/// By how much a candidate missed the other side of the choice: for one that goes, what would
/// have left it alone; for one that stays, what would have made it go. Each value is the
/// smallest change of that value alone, in whole units, all others being as they are; less is
/// negative. Absent where no change of that value would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MarginRecord {
    /// Against whom: the index in the list of candidates of the first that stays, or of the
    /// last that goes.
    pub against: usize,
    /// Change of what it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    /// Change of what it requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    /// Change of its priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Evictions are sized: what each pod frees counts as well, so that the changes tell where it
    /// would have ranked, and not yet who would have gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sized: bool,
}

/// The smallest change of what a single pod uses with which another pod had gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestRecord {
    /// Whose usage.
    pub pod: PodName,
    /// The change in whole units; less is negative.
    pub usage: i64,
    /// Who would have stayed.
    #[serde(rename = "stays")]
    pub kept: PodName,
    /// Who would have gone instead.
    #[serde(rename = "goes")]
    pub evicted: PodName,
}

/// The choice between the pods that are evicted and those that could have been.
impl RankedPods<'_> {
    /// The last that is evicted and the first that stays, by their indices in the ranking.
    pub(super) fn border(&self) -> Option<(usize, usize)> {
        let is_evicted = |candidate: &Candidate| self.evicted.contains(&candidate.pod);
        let stays = |candidate: &Candidate| {
            let may_be = self.may_be_evicted(candidate.pod) && self.skipped(candidate.pod).is_none();
            may_be && !is_evicted(candidate)
        };
        self.ranked.iter().rposition(is_evicted).zip(self.ranked.iter().position(stays))
    }

    /// What would have put a candidate on the other side.
    pub(super) fn margin(&self, (last, first): (usize, usize), rank: usize) -> Option<MarginRecord> {
        let candidate = *self.ranked.get(rank)?;
        let is_evicted = self.evicted.contains(&candidate.pod);
        if !is_evicted && self.skipped(candidate.pod).is_some() {
            return None;
        }
        let known = self.pods.get(candidate.pod)?;
        let (measure, facts) = (self.measure, known.rank);
        let usage = measure.known_usage(known, self.snapshot.stats_of(candidate.pod));
        let against = if is_evicted { first } else { last };
        let what_if = WhatIf { measure, candidate, facts, usage };
        let Changes { usage, request, priority } = what_if.changes_to_pass(self.ranked.get(against)?);
        Some(MarginRecord { against, usage, request, priority, sized: self.is_sized })
    }
}

/// The highest priority that a user's priority class can have; above are the system's own.
const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;

/// A ranked pod with the values that its key was made of.
#[derive(Clone, Copy, Debug)]
struct WhatIf {
    /// How it was measured.
    measure: Measure,
    /// Its key.
    candidate: Candidate,
    /// What it is known for.
    facts: RankFacts,
    /// What it uses, if that is known.
    usage: Option<i128>,
}

/// The smallest change of one value, all others as they are, by which a pod changes sides
/// with a rival. In whole units; `None` where no change of that value would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Of what it uses.
    usage: Option<i64>,
    /// Of what it requests.
    request: Option<i64>,
    /// Of its priority.
    priority: Option<i64>,
}

impl WhatIf {
    /// What takes it to the other side of its rival: behind it if it ranks before it, and
    /// before it otherwise. More usage, a lower request and a lower priority never move a pod
    /// back, so the smallest change is found by halving, with the very keys that rank.
    ///
    /// There is none where the keys of both cannot hold what they request.
    fn changes_to_pass(&self, rival: &Candidate) -> Changes {
        let is_beyond =
            |candidate: &Candidate| self.measure != Measure::Processes && candidate.excess.is_saturated();
        if is_beyond(&self.candidate) && is_beyond(rival) {
            return Changes::default();
        }
        let is_before = self.candidate.key() < rival.key();
        let towards_the_front = !is_before;
        let crosses = |changed: Candidate| (changed.key() < rival.key()) != is_before;
        Changes {
            usage: self.usage.and_then(|usage| {
                let room = if towards_the_front { i128::from(i64::MAX) - usage } else { usage };
                let changed = |by: i64| self.with(self.facts, Some(usage + i128::from(by)));
                least(room, towards_the_front, |by| crosses(changed(by)))
            }),
            request: self.request().and_then(|request| {
                let room = if towards_the_front { request } else { i128::from(i64::MAX) - request };
                let changed = |by: i64| self.with(self.requesting(by), self.usage);
                least(room, !towards_the_front, |by| crosses(changed(by)))
            }),
            priority: {
                let (now, most) = (i128::from(self.facts.priority), i128::from(HIGHEST_USER_PRIORITY));
                let room = if towards_the_front { now - i128::from(i32::MIN) } else { most - now };
                let changed = |by: i64| {
                    let sum = i64::from(self.facts.priority).saturating_add(by);
                    let priority = i32::try_from(sum).unwrap_or(self.facts.priority);
                    self.with(RankFacts { priority, ..self.facts }, self.usage)
                };
                least(room, !towards_the_front, |by| crosses(changed(by)))
            },
        }
    }

    fn with(&self, facts: RankFacts, usage: Option<i128>) -> Candidate {
        let (standing, excess) = self.measure.key_at(&facts, usage);
        Candidate { class: standing, excess, priority: facts.priority, ..self.candidate }
    }

    /// The whole units of the request, if requests have a say.
    fn request(&self) -> Option<i128> {
        let request = match self.measure {
            Measure::Processes => return None,
            measure => measure.base(&self.facts),
        };
        Some(request.get().div_euclid(Nanos::from_units(1).get()))
    }

    fn requesting(&self, more: i64) -> RankFacts {
        let mut facts = self.facts;
        let request = match self.measure {
            Measure::Memory => &mut facts.memory,
            Measure::Inodes(_) if facts.enhanced => &mut facts.inodes,
            Measure::Bytes(_) | Measure::Inodes(_) | Measure::Processes => &mut facts.storage,
        };
        *request = request.plus(Nanos::from_units(i128::from(more)));
        facts
    }
}

/// The least change of at most `room`, upwards or downwards, for which `holds`, which stays
/// true beyond it.
fn least(room: i128, upwards: bool, holds: impl Fn(i64) -> bool) -> Option<i64> {
    let signed = |size: i64| if upwards { size } else { -size };
    let room = i64::try_from(room).unwrap_or(i64::MAX);
    if room < 1 || !holds(signed(room)) {
        return None;
    }
    // Most are small, so the search begins there.
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
