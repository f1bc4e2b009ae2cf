//! Evictions that are sized: who is on the way already, and who else it takes.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::decision::{Action, Evaluation};
use crate::deficit::Deficit;
use crate::eviction::{Cause, EvaluationEnd, Eviction};
use crate::expected_release::ExpectedRelease;
use crate::in_flight::Eligibility;
use crate::milli_units::Nanos;
use crate::policy::VictimsPerPass;
use crate::signal_filter::observe;
use crate::snapshot::NodeStats;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::Engine;
use super::evaluation::announce;
use super::evict::IMMEDIATE_GRACE_SECONDS;
use super::select::Selection;

/// The grace period of a hard threshold.
const IMMEDIATE: GoDuration = GoDuration::from_secs(IMMEDIATE_GRACE_SECONDS);

/// What a single victim of a hard threshold takes: its grace period, and as long again until
/// the kernel has freed what it held.
const SINGLE: GoDuration = GoDuration::from_secs(2 * IMMEDIATE_GRACE_SECONDS);

impl Engine {
    /// Whether a pass over figures of the node may need those of its pods: whether they meet a
    /// threshold that those on their way do not make up for. Figures that were doubted until now
    /// may be believed by that pass, and who is to be hurried may not be among the pods any more:
    /// neither counts here.
    pub fn wants_pods(&self, node: &NodeStats) -> bool {
        let seen = observe(node, self.policy.rules.memory.measure);
        self.policy.rules.victims == VictimsPerPass::One
            || self.thresholds.met_by(&seen).any(|(place, line)| {
                let signal = line.threshold.signal;
                seen.get(signal).is_some_and(|seen| {
                    let hard = line.threshold.is_hard().then_some(IMMEDIATE);
                    let expected = self.flights.expected(signal, seen.time, hard);
                    Deficit::of(place, line, &seen).lacking() > expected
                })
            })
    }

    /// Whether those on their way free what the threshold lacks. A hard threshold hurries those
    /// that go for a soft one, as many as it takes.
    pub(super) fn is_covered(&mut self, pass: &mut Evaluation, line: u8, actions: &mut Vec<Action>) -> bool {
        if self.policy.rules.victims == VictimsPerPass::One {
            return false;
        }
        let Some(deficit) = self.deficit(pass, line, actions) else {
            return false;
        };
        let is_covered = deficit.open() <= 0;
        pass.deficits.push(deficit);
        is_covered
    }

    /// What a threshold lacks, by the last look of the pass.
    fn deficit(&mut self, pass: &Evaluation, place: u8, actions: &mut Vec<Action>) -> Option<Deficit> {
        let line = pass.line(place)?;
        let (signal, hard) = (line.threshold.signal, line.threshold.is_hard());
        let after_reclaim = pass.seen_after_reclaim.as_ref().and_then(|seen| seen.get(signal));
        let seen = after_reclaim.or_else(|| pass.seen.get(signal))?;
        let mut deficit = self.spare.deficit(Deficit::of(place, line, &seen));
        self.note_growth(pass);
        deficit.in_flight = self.flights.expected(signal, seen.time, hard.then_some(IMMEDIATE));
        let cause = Cause::Threshold { line: place };
        while hard && deficit.open() > 0 && !self.is_paused(hard) {
            let place_of = |uid: &str| pass.pods.place(uid);
            let hurried = self.flights.hurry(signal, deficit.open(), IMMEDIATE_GRACE_SECONDS, place_of);
            let Some((place, amount)) = hurried else {
                break;
            };
            deficit.in_flight = deficit.in_flight.saturating_add(amount);
            deficit.hurried.push(place);
            announce(signal.resource(), actions);
            let grace_period_seconds = IMMEDIATE_GRACE_SECONDS;
            // It was allowed to go before.
            let hastened = Eviction { place, grace_period_seconds, cause, ignores_budget: false };
            actions.push(Action::ShortenGrace(hastened));
        }
        Some(deficit)
    }

    /// Those on their way may hold more by now than when they were chosen.
    fn note_growth(&mut self, pass: &Evaluation) {
        if self.flights.known().next().is_none() {
            return;
        }
        let joined = pass.snapshot.joined(&pass.pods, &mut self.joined);
        self.flights.note_growth(|uid| {
            let place = pass.pods.place(uid)?;
            let stats = pass.snapshot.pod(*joined.get(place as usize)?)?;
            Some(ExpectedRelease::of_all(pass.layout, &pass.pods, place, Some(stats)))
        });
    }

    /// Evicts by rank until what the threshold lacks is made up for, or nobody else may go: at
    /// most `most` at a time, unless the node would be exhausted before a single one is gone.
    ///
    /// Within a class, that is among pods of one standing and priority, those that free next to
    /// nothing wait for those that free more. Pods that did not go lately wait for all others.
    pub(super) fn evict_as_many_as_needed(
        &mut self,
        at: Timestamp,
        pass: &mut Evaluation,
        line: u8,
        most: u32,
        actions: &mut Vec<Action>,
    ) {
        // It was made a moment ago, unless there was a second look since.
        let made = pass.deficits.pop_if(|_| pass.seen_after_reclaim.is_none());
        let Some(deficit) = made.or_else(|| self.deficit(pass, line, actions)) else {
            pass.end = EvaluationEnd::NoCandidates;
            return;
        };
        let (open, hard) = (deficit.open(), pass.line(line).is_some_and(|line| line.threshold.is_hard()));
        let runs_out = pass.signal_of(line).is_some_and(|signal| {
            let eta = pass.sight.slopes[signal as usize]
                .and_then(|slope| slope.time_to_lose(Nanos::from_units(deficit.available.into())));
            eta.is_some_and(|eta| eta.expected < SINGLE)
        });
        pass.deficits.push(deficit);
        pass.end = match open {
            ..=0 => EvaluationEnd::ReleaseInProgress,
            _ if self.is_paused(hard) => EvaluationEnd::ApiUnreachable,
            _ if self.flights.is_held() => EvaluationEnd::RateLimited,
            _ => {
                let ranked = std::mem::take(&mut pass.ranked);
                let mut scratch = std::mem::take(&mut self.joined);
                let snapshot = Arc::clone(&pass.snapshot);
                let joined = snapshot.joined(&pass.pods, &mut scratch);
                let room = if hard && runs_out { u32::MAX } else { most };
                let mut walk = Selection { engine: self, at, pass, joined, line, hard, open, room, actions };
                let end = walk.through(&ranked);
                self.joined = scratch;
                pass.ranked = ranked;
                end
            }
        };
    }

    /// Whether a candidate may go, before it is asked what it frees. None for one that never may.
    pub(super) fn stance(&self, pass: &mut Evaluation, place: u32) -> Option<Eligibility> {
        let known = pass.pods.get(place)?;
        if known.critical {
            pass.spared.push(place);
            return None;
        }
        // Pods may have gone while garbage was collected.
        self.pods.place(&known.pod.uid)?;
        Some(self.flights.stance(&known.pod.uid))
    }
}
