//! How little would have had to be different for another pod to go.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::decision::Evaluation;
use crate::rank::{Candidate, Measure, WhatIf};
use crate::snapshot::NO_STATS;

use crate::pod::PodName;

/// By how much a candidate missed the other side of the choice: for one that goes, what would
/// have left it alone; for one that stays, what would have made it go. Each figure is the
/// smallest change of that figure alone, in whole units, all others being as they are; less is
/// negative. Absent where no change of that figure would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MarginRecord {
    /// Against whom: the place in the list of candidates of the first that stays, or of the
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
    pub stays: PodName,
    /// Who would have gone instead.
    pub goes: PodName,
}

/// The choice between the pods that go and those that could have.
pub(super) struct Choice<'a> {
    evaluation: &'a Evaluation,
    measure: Measure,
    joined: &'a [u32],
    /// The last that goes and the first that stays, by their places in the ranking.
    border: Option<(usize, usize)>,
}

impl<'a> Choice<'a> {
    /// `goes` and `barred` tell of a place among the pods whether it was chosen, and whether
    /// it could not have been.
    pub(super) fn new(
        evaluation: &'a Evaluation,
        measure: Measure,
        joined: &'a [u32],
        goes: impl Fn(u32) -> bool,
        barred: impl Fn(u32) -> bool,
    ) -> Self {
        let last = evaluation.ranked.iter().rposition(|candidate| goes(candidate.place));
        let stays = |candidate: &Candidate| {
            let place = candidate.place;
            !goes(place) && !barred(place) && !is_passed_over(evaluation, place)
        };
        let first = evaluation.ranked.iter().position(stays);
        Self { evaluation, measure, joined, border: last.zip(first) }
    }

    /// What would have put a candidate on the other side.
    pub(super) fn margin(&self, place: usize, goes: bool) -> Option<MarginRecord> {
        let (last, first) = self.border?;
        let own = self.evaluation.ranked.get(place)?;
        if !goes && is_passed_over(self.evaluation, own.place) {
            return None;
        }
        let against = if goes { first } else { last };
        let changes = self.what_if(place)?.changes_to_pass(self.evaluation.ranked.get(against)?);
        Some(MarginRecord {
            against,
            usage: changes.usage,
            request: changes.request,
            priority: changes.priority,
            sized: !self.evaluation.deficits.is_empty(),
        })
    }

    fn what_if(&self, place: usize) -> Option<WhatIf> {
        let candidate = *self.evaluation.ranked.get(place)?;
        let at = self.joined.get(candidate.place as usize).filter(|&&at| at != NO_STATS);
        let stats = at.and_then(|&at| self.evaluation.snapshot.pod(at));
        let facts = self.evaluation.pods.facts().get(candidate.place as usize)?;
        Some(WhatIf {
            measure: self.measure,
            candidate,
            facts: *facts,
            usage: self.measure.known_usage(&self.evaluation.pods, candidate.place, facts, stats),
        })
    }
}

/// Whether one that ranks behind it was taken for what it frees, or since it did not go before.
fn is_passed_over(evaluation: &Evaluation, place: u32) -> bool {
    let mut passed_over = evaluation.deficits.iter().flat_map(|deficit| &deficit.passed_over);
    passed_over.any(|one| one.place == place)
}
