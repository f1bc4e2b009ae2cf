//! Where a pod would stand if a figure of it were another.

use crate::milli_units::Nanos;
use crate::pods::RankFacts;

use super::{Candidate, Measure};

/// The highest priority that a user's priority class can have; above are the system's own.
const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;

/// A ranked pod with the figures that its key was made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WhatIf {
    /// How it was measured.
    pub(crate) measure: Measure,
    /// Its key.
    pub(crate) candidate: Candidate,
    /// What it is known for.
    pub(crate) facts: RankFacts,
    /// What it uses, if that is known.
    pub(crate) usage: Option<i128>,
}

/// The smallest change of one figure, all others as they are, by which a pod changes sides
/// with a rival. In whole units; `None` where no change of that figure would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Of what it uses.
    pub(crate) usage: Option<i64>,
    /// Of what it requests.
    pub(crate) request: Option<i64>,
    /// Of its priority.
    pub(crate) priority: Option<i64>,
}

impl WhatIf {
    /// What takes it to the other side of its rival: behind it if it ranks before it, and
    /// before it otherwise. More usage, a lower request and a lower priority never move a pod
    /// back, so the smallest change is found by halving, with the very keys that rank.
    ///
    /// Nothing is told where the keys of both cannot hold what they request.
    pub(crate) fn changes_to_pass(&self, rival: &Candidate) -> Changes {
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
        Candidate { standing, excess, priority: facts.priority, ..self.candidate }
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
            Measure::Inodes(_) if facts.inodes_alone => &mut facts.inodes,
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
