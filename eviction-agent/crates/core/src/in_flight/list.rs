//! All evictions in flight.

use std::sync::Arc;

use jiff::SignedDuration;

use super::{
    ApiPhase, Ended, ExecutorUpdate, FAILURE_REMEMBERED, Failure, InFlightEviction, Label, RETRY_AFTER,
    TERMINATION_TIMEOUT,
};
use crate::eviction::{ExpectedRelease, is_negligible};
use crate::pods::{KnownPod, PodSet};
use crate::progress::{EvictionResult, NotEvicted};
use crate::signal::Signal;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// The evictions in flight, in the order of their decisions. Of a pod there is one, and more only while
/// executors still carry out earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightEvictions {
    list: Vec<InFlightEviction>,
    last: Option<Timestamp>,
    /// Nobody new may be chosen before.
    paused_until: Option<Timestamp>,
    /// The uids of those whose objects are gone and in whose cgroups somebody is.
    terminating: Vec<Box<str>>,
}

/// Whether a pod may be chosen, as far as earlier evictions of it have a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Eligibility {
    /// Yes.
    Free,
    /// After all others: it did not go before.
    Last,
    /// No: it is terminating, gone, or failed to go a moment ago.
    Taken,
}

impl InFlightEvictions {
    /// In the order of their decisions; without those of a former agent whose pods are not known yet.
    pub(crate) fn known(&self) -> impl Iterator<Item = &InFlightEviction> {
        self.list.iter().filter(|it| !it.restored)
    }

    /// With those of a former agent whose pods are not known yet.
    pub(crate) fn all(&self) -> &[InFlightEviction] {
        &self.list
    }

    /// Makes room for some more.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.list.reserve(more);
    }

    /// Takes note of the time. What took too long fails, and what is over is forgotten.
    pub(crate) fn advance(&mut self, at: Timestamp, is_sized: bool) {
        let passed = self.last.map_or(GoDuration::ZERO, |last| since(at, last));
        self.last = Some(at);
        if passed < GoDuration::ZERO {
            self.paused_until = self.paused_until.map(|until| later(until, passed));
        }
        for it in &mut self.list {
            // A time that is not known to have begun does not pass.
            if passed < GoDuration::ZERO || (is_sized && it.is_unconfirmed()) {
                it.since = later(it.since, passed);
            }
            if is_sized && !it.restored && it.is_terminating() && it.age(at) >= it.may_take() {
                it.end(Ended::Failed(Failure::Expired), at);
            }
        }
        self.list.retain(|it| {
            let is_known_for = match it.ended {
                _ if it.restored || it.is_executing() => return true,
                None if is_sized => return true,
                None => TERMINATION_TIMEOUT,
                // By the kubelet's rules what is over is forgotten.
                Some(_) if !is_sized => return false,
                Some(Ended::Terminated) => TERMINATION_TIMEOUT,
                Some(Ended::Failed(_)) => FAILURE_REMEMBERED,
            };
            it.age(at) < is_known_for
        });
    }

    /// Takes note of how far executors have come. Of an eviction that nobody knows nothing is noted.
    pub(crate) fn update(&mut self, at: Timestamp, decision: u64, update: ExecutorUpdate, is_sized: bool) {
        if let ExecutorUpdate::Started(started) = update {
            return self.start(decision, *started);
        }
        let Some(index) = self.list.iter().position(|it| it.decision == Some(decision)) else { return };
        let it = &mut self.list[index];
        match update {
            ExecutorUpdate::Started(_) => {}
            ExecutorUpdate::Shortened { grace_period_seconds, killing } => {
                (it.hard, it.grace_period_seconds, it.since) = (true, grace_period_seconds, at);
                it.killing |= killing;
            }
            ExecutorUpdate::ApiUnconfirmed => it.api = Some(ApiPhase::Unconfirmed),
            ExecutorUpdate::ApiAccepted => {
                if is_sized && it.is_unconfirmed() {
                    it.since = at;
                }
                it.api = Some(ApiPhase::Accepted);
            }
            ExecutorUpdate::ApiEnded => it.api = None,
            ExecutorUpdate::KillStarted => it.killing = true,
            ExecutorUpdate::KillEnded { gone } => {
                it.killing = false;
                it.reported_gone |= gone;
            }
            ExecutorUpdate::PodGone => (it.api, it.reported_gone) = (None, true),
        }
        // By the kubelet's rules a victim is waited for as long as it is asked to go.
        let is_over = match update {
            ExecutorUpdate::ApiEnded => !is_sized && !it.killing,
            ExecutorUpdate::PodGone => !is_sized && !it.killing,
            _ => false,
        };
        if is_over {
            self.list.remove(index);
        }
    }

    /// Executors begin with one that was chosen, or, where an evaluation remembers none, with a new one.
    fn start(&mut self, decision: u64, started: InFlightEviction) {
        let is_chosen = |it: &&mut InFlightEviction| {
            it.is_of(&started.pod.uid) && it.is_terminating() && !it.is_executing()
        };
        if let Some(it) = self.list.iter_mut().rfind(is_chosen) {
            (it.decision, it.api, it.killing) = (Some(decision), started.api, started.killing);
            it.decided_at = started.decided_at;
            return;
        }
        self.list.push(InFlightEviction { decision: Some(decision), ..started });
    }

    /// Until when the kubelet waits for its victims before it samples again (`eviction_manager.go:
    /// waitForPodsCleanup`), or for whatever else nobody new may go.
    pub(crate) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        let pending =
            self.known().filter(|it| it.is_terminating()).map(|it| later(it.since, TERMINATION_TIMEOUT));
        pending.chain(self.paused_until).max().filter(|until| *until > now)
    }

    /// Whether nobody knows what came of one of them.
    pub(crate) fn some_are_unconfirmed(&self) -> bool {
        self.known().any(InFlightEviction::is_unconfirmed)
    }

    /// Keeps those alone that executors are at: what the rules of before remembered says nothing
    /// by those of the kubelet.
    pub(crate) fn keep_executing(&mut self) {
        self.list.retain(InFlightEviction::is_executing);
        self.paused_until = None;
    }

    /// The objects of these are gone, and what they hold is not: they are not active pods, but on
    /// their way.
    pub(crate) fn set_terminating(&mut self, uids: Vec<Box<str>>) {
        self.terminating = uids;
    }

    /// Takes note of the active pods: who is not among them is gone, unless he is leaving.
    pub(crate) fn update_pods(&mut self, at: Timestamp, pods: &PodSet) {
        let is_active = |it: &InFlightEviction| pods.index_of(&it.pod.uid).is_some();
        self.list.retain(|it| it.restored || it.is_executing() || !it.has_failed() || is_active(it));
        let leaving = &self.terminating;
        for it in self.list.iter_mut().filter(|it| !it.restored) {
            let is_there = is_active(it) || leaving.contains(&it.pod.uid);
            if it.is_terminating() && !is_there {
                it.end(Ended::Terminated, at);
            }
        }
    }

    /// Takes over those of a former engine. They wait for their pods. What the API server was asked
    /// then may have been done or not.
    pub(crate) fn restore(&mut self, former: Vec<InFlightEviction>) {
        self.list = former;
        for it in &mut self.list {
            it.restored = true;
            if it.api == Some(ApiPhase::Asked) {
                it.api = Some(ApiPhase::Unconfirmed);
            }
        }
    }

    /// Those whose pods are there go on, also without their objects; the others wait for as long as
    /// they could take. Calls back for each that is under way again.
    pub(crate) fn resume(
        &mut self,
        at: Timestamp,
        pods: &PodSet,
        mut resumed: impl FnMut(&InFlightEviction),
    ) {
        let leaving = std::mem::take(&mut self.terminating);
        let mut index = 0;
        while let Some(it) = self.list.get(index) {
            let uid = &it.pod.uid;
            let is_leaving = it.is_terminating() && leaving.contains(uid);
            let is_there = is_leaving || pods.index_of(uid).is_some();
            let matters_for = match it.ended {
                None => it.may_take(),
                Some(Ended::Terminated) => TERMINATION_TIMEOUT,
                Some(Ended::Failed(_)) => FAILURE_REMEMBERED,
            };
            let goes_on = match (it.restored, is_there) {
                (false, _) => true,
                (true, true) => it.is_executing() || self.eligibility(uid) == Eligibility::Free,
                // Without any pods nothing is known of this one either.
                (true, false) if it.is_executing() => pods.is_empty(),
                (true, false) => it.age(at) < matters_for,
            };
            if !goes_on {
                self.list.remove(index);
                continue;
            }
            let it = &mut self.list[index];
            if it.restored && is_there {
                it.restored = false;
                if it.is_terminating() {
                    resumed(it);
                }
            }
            index += 1;
        }
        self.terminating = leaving;
    }

    /// Takes note of what came of an eviction. One that nobody decided changes nothing.
    pub(crate) fn record_result(&mut self, at: Timestamp, outcome: EvictionResult) {
        let EvictionResult { uid, result } = outcome;
        let is_meant = |it: &InFlightEviction| it.is_of(&uid) && !it.restored && it.is_terminating();
        let why = match result {
            Ok(()) => {
                self.list.iter_mut().filter(|it| is_meant(it)).for_each(|it| it.end(Ended::Terminated, at));
                return;
            }
            Err(why) => why,
        };
        // What an executor is at goes on.
        let index = self.list.iter().rposition(|it| is_meant(it) && !it.is_executing());
        let Some(index) = index else { return };
        match why {
            NotEvicted::Failed(why) => self.list[index].end(Ended::Failed(Failure::Reported(why)), at),
            // It has not left.
            NotEvicted::PdbDenied | NotEvicted::NotAsked => drop(self.list.remove(index)),
        }
    }

    /// Nobody new may be chosen before this time, nor before one that was said earlier.
    pub(crate) fn pause_until(&mut self, until: Timestamp) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Until when nobody new may be chosen, if that is so.
    pub(crate) fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until.filter(|until| self.last.is_some_and(|last| *until > last))
    }

    /// Whether nobody new may be chosen.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until().is_some()
    }

    /// Remembers that a pod is evicted, unless it is taken. Whether it is evicted.
    pub(crate) fn begin(
        &mut self,
        pod: &KnownPod,
        label: Label,
        hard: bool,
        grace_period_seconds: i64,
        expected: [ExpectedRelease; Signal::COUNT],
    ) -> bool {
        if self.eligibility(&pod.pod.uid) == Eligibility::Taken {
            return false;
        }
        self.list.retain(|failed| !failed.is_of(&pod.pod.uid) || failed.is_executing());
        let now = self.last.unwrap_or_default();
        let begun = InFlightEviction::new(Arc::clone(&pod.name), label, hard, now, grace_period_seconds);
        self.list.push(InFlightEviction { expected, ..begun });
        true
    }

    /// Whether a pod may be chosen.
    pub(crate) fn eligibility(&self, uid: &str) -> Eligibility {
        let now = self.last.unwrap_or_default();
        let stances = self.known().filter(|it| it.is_of(uid)).map(|it| match it.ended {
            Some(Ended::Failed(_)) if it.age(now) >= RETRY_AFTER => Eligibility::Last,
            _ => Eligibility::Taken,
        });
        stances.max().unwrap_or(Eligibility::Free)
    }

    /// What all of them free, for values of a time. Given the grace period of a hard threshold,
    /// those are left out that it would have to hurry.
    pub(crate) fn expected(
        &self,
        signal: Signal,
        values: Option<Timestamp>,
        hard: Option<GoDuration>,
    ) -> i64 {
        let now = self.last.unwrap_or_default();
        let in_time = |it: &&InFlightEviction| hard.is_none_or(|grace| !it.can_shorten(now, grace));
        let amounts = self.known().filter(in_time).map(|it| it.expected(signal, values));
        amounts.fold(0, i64::saturating_add)
    }

    /// Shortens the grace period of the first that can be and frees more than next to nothing of what is lacking of
    /// a signal. Returns the index of its pod, and what it frees.
    pub(crate) fn shorten_grace(
        &mut self,
        signal: Signal,
        open: i64,
        grace_period_seconds: i64,
        index_of: impl Fn(&str) -> Option<u32>,
    ) -> Option<(u32, ExpectedRelease)> {
        let (now, grace) = (self.last.unwrap_or_default(), GoDuration::from_secs(grace_period_seconds));
        self.list.iter_mut().filter(|it| !it.restored).find_map(|it| {
            let release = it.release(signal);
            if is_negligible(release.amount, open) || !it.can_shorten(now, grace) {
                return None;
            }
            let index = index_of(&it.pod.uid)?;
            it.hard = true;
            it.signal = signal.name();
            it.grace_period_seconds = grace_period_seconds;
            it.since = now;
            Some((index, release))
        })
    }

    /// What pods under way hold by a later sample; of two values the larger one stays. Values of
    /// the node and of its pods are not of one moment: a smaller one may be of a time at which
    /// the node was not seen to be better off yet.
    pub(crate) fn update_growth(&mut self, holds: impl Fn(&str) -> Option<[ExpectedRelease; Signal::COUNT]>) {
        for it in self.list.iter_mut().filter(|it| !it.restored && it.is_terminating()) {
            let Some(now) = holds(&it.pod.uid) else {
                continue;
            };
            for (before, now) in it.expected.iter_mut().zip(now) {
                if now.amount > before.amount {
                    *before = now;
                }
            }
        }
    }
}

fn later(time: Timestamp, by: GoDuration) -> Timestamp {
    time.checked_add(SignedDuration::from_nanos(by.as_nanos())).unwrap_or(time)
}
