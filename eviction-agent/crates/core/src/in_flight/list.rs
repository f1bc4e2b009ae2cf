//! All evictions that are remembered.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::decision::Evaluation;
use crate::deficit::is_next_to_nothing;
use crate::eviction::Eviction;
use crate::eviction_result::{EvictionResult, NotEvicted};
use crate::expected_release::ExpectedRelease;
use crate::pods::{KnownPod, PodSet};
use crate::signal::Signal;
use crate::snapshot::PodStats;
use crate::state::{Ended, EvictionState};
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

use super::{Failure, InFlightEviction, MARGIN, Phase, REMEMBERED, RETRY};

/// The evictions that are remembered, in the order of their decisions; one for a uid at most.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightEvictions {
    list: Vec<InFlightEviction>,
    last: Option<Timestamp>,
    held: GoDuration,
    /// Of a former agent; their pods were not told of yet.
    recalled: Vec<EvictionState>,
    /// Of those under way, the uids of which nobody knows what came of what was asked for.
    open: Vec<Box<str>>,
    /// The uids of those whose objects are gone and in whose cgroups somebody is.
    leaving: Vec<Box<str>>,
}

/// Whether a pod may be chosen, as far as earlier evictions of it have a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    /// Yes.
    Free,
    /// After all others: it did not go before.
    Last,
    /// No: it is on its way, gone, or failed to go a moment ago.
    Taken,
}

impl InFlightEvictions {
    /// In the order of their decisions.
    pub(crate) fn list(&self) -> &[InFlightEviction] {
        &self.list
    }

    /// Makes room for some more.
    pub(crate) fn make_room(&mut self, more: usize) {
        self.list.reserve(more);
    }

    /// The same, in the memory of a list that is empty.
    pub(crate) fn copy_into(&self, mut empty: Vec<InFlightEviction>) -> Vec<InFlightEviction> {
        empty.extend_from_slice(&self.list);
        empty
    }

    /// Takes note of the time. What took too long fails, and what is over is forgotten.
    pub(crate) fn advance(&mut self, at: Timestamp) {
        let passed = self.last.map_or(0, |last| since(at, last).as_nanos().max(0));
        self.last = Some(at);
        self.held = GoDuration::from_nanos(self.held.as_nanos().saturating_sub(passed).max(0));
        for flight in &mut self.list {
            if flight.phase == Phase::UnderWay && self.open.contains(&flight.pod.pod.uid) {
                continue;
            }
            flight.age = plus(flight.age, GoDuration::from_nanos(passed));
            let grace = GoDuration::from_secs(flight.grace_period_seconds.max(0));
            if flight.phase == Phase::UnderWay && flight.age >= plus(grace, MARGIN) {
                flight.end(Phase::Failed(Failure::Expired));
            }
        }
        self.list.retain(|flight| match flight.phase {
            Phase::UnderWay => true,
            Phase::Gone(_) => flight.age < MARGIN,
            Phase::Failed(_) => flight.age < REMEMBERED,
        });
        self.forget_ended();
    }

    /// Nobody knows what came of what was asked for: it takes as long as it takes.
    pub(crate) fn leave_open(&mut self, uid: Box<str>) {
        if !self.open.contains(&uid) {
            self.open.push(uid);
        }
        self.forget_ended();
    }

    /// It is carried out, and its time begins.
    pub(crate) fn accept(&mut self, uid: &str) {
        self.open.retain(|open| **open != *uid);
        let is_meant =
            |flight: &&mut InFlightEviction| *flight.pod.pod.uid == *uid && flight.phase == Phase::UnderWay;
        if let Some(flight) = self.list.iter_mut().find(is_meant) {
            flight.age = GoDuration::ZERO;
        }
    }

    fn forget_ended(&mut self) {
        let Self { list, open, recalled, .. } = self;
        open.retain(|uid| {
            list.iter().any(|flight| flight.pod.pod.uid == *uid && flight.phase == Phase::UnderWay)
                || recalled.iter().any(|aloft| aloft.uid == *uid && aloft.ended.is_none())
        });
    }

    /// The objects of these are gone, and what they hold is not: they are not active pods, but on
    /// their way.
    pub(crate) fn leaving_are(&mut self, uids: Vec<Box<str>>) {
        self.leaving = uids;
    }

    /// Takes note of the active pods: who is not among them is gone, unless he is leaving.
    pub(crate) fn note_pods(&mut self, at: Timestamp, pods: &PodSet) {
        let is_active = |flight: &InFlightEviction| pods.place(&flight.pod.pod.uid).is_some();
        self.list.retain(|flight| !matches!(flight.phase, Phase::Failed(_)) || is_active(flight));
        let leaving = &self.leaving;
        for flight in &mut self.list {
            let is_there = is_active(flight) || leaving.contains(&flight.pod.pod.uid);
            if flight.phase == Phase::UnderWay && !is_there {
                flight.end(Phase::Gone(at));
            }
        }
    }

    /// All of them, as an engine that comes after this one has to know them.
    pub(crate) fn aloft(&self) -> impl Iterator<Item = EvictionState> {
        let last = self.last.unwrap_or_default();
        let aloft = self.list.iter().map(move |flight| EvictionState {
            uid: flight.pod.pod.uid.clone(),
            namespace: flight.pod.pod.namespace.clone(),
            name: flight.pod.pod.name.clone(),
            label: flight.signal,
            hard: flight.hard,
            decided_at: flight.decided_at,
            since: last.checked_sub(SignedDuration::from_nanos(flight.age.as_nanos())).unwrap_or(last),
            grace_period_seconds: flight.grace_period_seconds,
            expected: flight.expected,
            ended: match &flight.phase {
                Phase::UnderWay => None,
                Phase::Gone(_) => Some(Ended::Gone),
                Phase::Failed(why) => Some(Ended::Failed(why.clone())),
            },
        });
        self.recalled.iter().cloned().chain(aloft)
    }

    /// Takes over those of a former engine. They wait for their pods.
    pub(crate) fn recall(&mut self, recalled: Vec<EvictionState>) {
        self.recalled = recalled;
    }

    /// Those whose pods are there go on, also without their objects; the others wait for as long as
    /// they could take. Calls back for each that is under way again.
    pub(crate) fn resume(
        &mut self,
        at: Timestamp,
        pods: &PodSet,
        without_object: impl Fn(&EvictionState) -> Arc<KnownPod>,
        mut resumed: impl FnMut(&InFlightEviction),
    ) {
        for aloft in std::mem::take(&mut self.recalled) {
            let age = since(at, aloft.since).max(GoDuration::ZERO);
            let grace = GoDuration::from_secs(aloft.grace_period_seconds.max(0));
            let (phase, matters_for) = match &aloft.ended {
                None => (Phase::UnderWay, plus(grace, MARGIN)),
                Some(Ended::Gone) => (Phase::Gone(aloft.since), MARGIN),
                Some(Ended::Failed(why)) => (Phase::Failed(why.clone()), REMEMBERED),
            };
            let active = pods.place(&aloft.uid).and_then(|place| pods.pods().get(place as usize));
            let is_leaving = phase == Phase::UnderWay && self.leaving.contains(&aloft.uid);
            let pod = match active {
                Some(pod) => Arc::clone(pod),
                None if is_leaving => without_object(&aloft),
                None => {
                    // Without any pods nothing is known of this one either.
                    let is_open = pods.is_empty() && self.open.contains(&aloft.uid);
                    if age < matters_for || is_open {
                        self.recalled.push(aloft);
                    }
                    continue;
                }
            };
            if self.stance(&aloft.uid) != Eligibility::Free {
                continue;
            }
            let EvictionState { label: signal, hard, decided_at, grace_period_seconds, expected, .. } = aloft;
            let flight = InFlightEviction {
                pod,
                signal,
                hard,
                decided_at,
                grace_period_seconds,
                expected,
                phase,
                age,
            };
            if flight.phase == Phase::UnderWay {
                resumed(&flight);
            }
            self.list.push(flight);
        }
    }

    /// Takes note of what came of an eviction. One that nobody decided changes nothing.
    pub(crate) fn note_outcome(&mut self, at: Timestamp, outcome: EvictionResult) {
        let EvictionResult { uid, result } = outcome;
        let is_meant =
            |flight: &InFlightEviction| flight.pod.pod.uid == uid && flight.phase == Phase::UnderWay;
        let Some(place) = self.list.iter().position(is_meant) else { return };
        match result {
            Ok(()) => self.list[place].end(Phase::Gone(at)),
            Err(NotEvicted::Failed(why)) => self.list[place].end(Phase::Failed(Failure::Reported(why))),
            // It has not left.
            Err(NotEvicted::Budget | NotEvicted::NotAsked) => {
                self.list.remove(place);
            }
        }
    }

    /// Nobody new may be chosen before this time, nor before one that was said earlier.
    pub(crate) fn hold_until(&mut self, at: Timestamp, until: Timestamp) {
        self.held = self.held.max(since(until, at));
    }

    /// Until when nobody new may be chosen, if that is so.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        let held = SignedDuration::from_nanos(self.held.as_nanos());
        self.last.filter(|_| self.is_held())?.checked_add(held).ok()
    }

    /// Whether nobody new may be chosen.
    pub(crate) fn is_held(&self) -> bool {
        self.held > GoDuration::ZERO
    }

    /// Remembers that a pod of a pass goes, unless it is taken. Whether it goes.
    pub(crate) fn begin(
        &mut self,
        pass: &Evaluation,
        eviction: &Eviction,
        hard: bool,
        stats: Option<PodStats<'_>>,
    ) -> bool {
        let &Eviction { place, grace_period_seconds, cause, ignores_budget: _ } = eviction;
        let Some(pod) = pass.pods.pods().get(place as usize) else {
            return false;
        };
        if self.stance(&pod.pod.uid) == Eligibility::Taken {
            return false;
        }
        self.list.retain(|failed| failed.pod.pod.uid != pod.pod.uid);
        self.list.push(InFlightEviction {
            pod: Arc::clone(pod),
            signal: pass.label_of(cause),
            hard,
            decided_at: self.last.unwrap_or_default(),
            grace_period_seconds,
            expected: ExpectedRelease::of_all(pass.layout, &pass.pods, place, stats),
            phase: Phase::UnderWay,
            age: GoDuration::ZERO,
        });
        true
    }

    /// Whether a pod may be chosen.
    pub(crate) fn stance(&self, uid: &str) -> Eligibility {
        let flight = self.list.iter().find(|flight| *flight.pod.pod.uid == *uid);
        match flight.map(|flight| (&flight.phase, flight.age)) {
            None => Eligibility::Free,
            Some((Phase::Failed(_), age)) if age >= RETRY => Eligibility::Last,
            Some(_) => Eligibility::Taken,
        }
    }

    /// What all of them free, for figures of a time. Given the grace period of a hard threshold,
    /// those are left out that it would have to hurry.
    pub(crate) fn expected(
        &self,
        signal: Signal,
        figures: Option<Timestamp>,
        hard: Option<GoDuration>,
    ) -> i64 {
        let in_time = |flight: &&InFlightEviction| hard.is_none_or(|grace| !flight.can_hurry(grace));
        let amounts = self.list.iter().filter(in_time).map(|flight| flight.expected(signal, figures));
        amounts.fold(0, i64::saturating_add)
    }

    /// Hurries the first that can be and frees more than next to nothing of what is open of a
    /// signal. Where its pod is, and what it frees.
    pub(crate) fn hurry(
        &mut self,
        signal: Signal,
        open: i64,
        grace_period_seconds: i64,
        place_of: impl Fn(&str) -> Option<u32>,
    ) -> Option<(u32, i64)> {
        let grace = GoDuration::from_secs(grace_period_seconds);
        self.list.iter_mut().find_map(|flight| {
            let amount = flight.release(signal).amount;
            if is_next_to_nothing(amount, open) || !flight.can_hurry(grace) {
                return None;
            }
            let place = place_of(&flight.pod.pod.uid)?;
            flight.hard = true;
            flight.signal = signal.name();
            flight.grace_period_seconds = grace_period_seconds;
            flight.age = GoDuration::ZERO;
            Some((place, amount))
        })
    }

    /// What pods under way hold by a later look; of two figures the larger one stays. Figures of
    /// the node and of its pods are not of one moment: a smaller one may be of a time at which
    /// the node was not seen to be better off yet.
    pub(crate) fn note_growth(&mut self, holds: impl Fn(&str) -> Option<[ExpectedRelease; Signal::COUNT]>) {
        for flight in self.list.iter_mut().filter(|flight| flight.phase == Phase::UnderWay) {
            let Some(now) = holds(&flight.pod.pod.uid) else {
                continue;
            };
            for (before, now) in flight.expected.iter_mut().zip(now) {
                if now.amount > before.amount {
                    *before = now;
                }
            }
        }
    }
}

impl InFlightEviction {
    fn end(&mut self, phase: Phase) {
        self.phase = phase;
        self.age = GoDuration::ZERO;
    }
}

fn plus(one: GoDuration, other: GoDuration) -> GoDuration {
    GoDuration::from_nanos(one.as_nanos().saturating_add(other.as_nanos()))
}
