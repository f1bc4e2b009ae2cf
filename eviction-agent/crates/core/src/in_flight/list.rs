//! The list of all in-flight evictions.

use std::sync::Arc;

use super::{
    ApiPhase, EvictionEnd, ExecutorUpdate, InFlightEviction, Label, RETRY_AFTER, TERMINATION_TIMEOUT,
};
use crate::eviction::{ExpectedRelease, is_negligible};
use crate::pods::{KnownPod, PodSet};
use crate::progress::NotEvicted;
use crate::signal::Signal;
use crate::time::{Timestamp, later, since};
use crate::units::GoDuration;

/// The in-flight evictions, in the order of their decisions. A pod has at most one, unless executors still
/// carry out earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightEvictions {
    list: Vec<InFlightEviction>,
    last: Option<Timestamp>,
    /// No other pod may be selected before this time.
    paused_until: Option<Timestamp>,
    /// The uids of pods whose objects are deleted, but whose cgroups still have processes.
    terminating: Vec<Box<str>>,
}

impl InFlightEvictions {
    /// Returns the evictions in the order of their decisions, without those of a former agent whose pods are
    /// not known yet.
    pub(crate) fn known(&self) -> impl Iterator<Item = &InFlightEviction> {
        self.list.iter().filter(|it| !it.restored)
    }

    /// Returns all evictions, including those of a former agent whose pods are not known yet.
    pub(crate) fn all(&self) -> &[InFlightEviction] {
        &self.list
    }

    /// Reserves space for more evictions.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.list.reserve(more);
    }

    /// Advances the time. Evictions that took too long fail, and those that are over are removed after some time.
    pub(crate) fn advance(&mut self, at: Timestamp, is_sized: bool) {
        let passed = self.last.map_or(GoDuration::ZERO, |last| since(at, last));
        self.last = Some(at);
        if passed < GoDuration::ZERO {
            self.paused_until = self.paused_until.map(|until| later(until, passed));
        }
        for it in &mut self.list {
            // The time of an unconfirmed eviction does not advance, because its grace period may not have begun.
            if passed < GoDuration::ZERO || (is_sized && it.is_unconfirmed()) {
                it.since = later(it.since, passed);
            }
            if is_sized && !it.restored && it.has_expired(at) {
                it.end(EvictionEnd::Expired, at);
            }
        }
        let retention = |it: &InFlightEviction| match it.ended {
            _ if is_sized => it.retention(),
            None => TERMINATION_TIMEOUT,
            // Under the kubelet's rules, an eviction that is over is removed at once.
            Some(_) => GoDuration::ZERO,
        };
        self.list.retain(|it| it.restored || it.is_executing() || it.age(at) < retention(it));
    }

    /// Records the progress of executors. Progress of an unknown eviction is ignored.
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
            ExecutorUpdate::Api(phase) => {
                if is_sized && it.is_unconfirmed() && phase == Some(ApiPhase::Accepted) {
                    it.since = at;
                }
                it.api = phase;
            }
            ExecutorUpdate::KillStarted => it.killing = true,
            ExecutorUpdate::KillEnded { gone } => {
                it.killing = false;
                it.termination_reported |= gone;
            }
            ExecutorUpdate::PodGone => (it.api, it.termination_reported) = (None, true),
        }
        // Under the kubelet's rules, the wait for a victim ends with its API request, unless its processes
        // are being killed.
        let has_ended = matches!(update, ExecutorUpdate::Api(None) | ExecutorUpdate::PodGone);
        if has_ended && !is_sized && !it.killing {
            self.list.remove(index);
        }
    }

    /// Starts the execution of a selected eviction. Adds a new one if the evaluation did not record it.
    fn start(&mut self, decision: u64, started: InFlightEviction) {
        let is_chosen = |it: &&mut InFlightEviction| {
            it.has_uid(&started.pod.uid) && it.is_terminating() && !it.is_executing()
        };
        if let Some(it) = self.list.iter_mut().rfind(is_chosen) {
            (it.decision, it.api, it.killing) = (Some(decision), started.api, started.killing);
            it.decided_at = started.decided_at;
            return;
        }
        self.list.push(InFlightEviction { decision: Some(decision), ..started });
    }

    /// Returns until when the kubelet waits for its victims before it takes the next sample
    /// (`eviction_manager.go: waitForPodsCleanup`), or until when evictions are paused.
    pub(crate) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        let pending =
            self.known().filter(|it| it.is_terminating()).map(|it| later(it.since, TERMINATION_TIMEOUT));
        pending.chain(self.paused_until).max().filter(|until| *until > now)
    }

    /// Returns whether the result of any eviction is unconfirmed.
    pub(crate) fn some_are_unconfirmed(&self) -> bool {
        self.known().any(InFlightEviction::is_unconfirmed)
    }

    /// Keeps only the evictions that executors are carrying out. Others are based on the former rules and
    /// have no meaning under the kubelet's.
    pub(crate) fn keep_executing(&mut self) {
        self.list.retain(InFlightEviction::is_executing);
        self.paused_until = None;
    }

    /// Sets the pods whose objects are deleted, but which still hold resources. They are not active, but
    /// still terminating.
    pub(crate) fn set_terminating(&mut self, uids: Vec<Box<str>>) {
        self.terminating = uids;
    }

    /// Updates the active pods. A pod that is not among them has terminated, unless it is still in the list
    /// of terminating pods.
    pub(crate) fn update_pods(&mut self, at: Timestamp, pods: &PodSet) {
        let is_active = |it: &InFlightEviction| pods.index_of(&it.pod.uid).is_some();
        self.list.retain(|it| it.restored || it.is_executing() || !it.has_failed() || is_active(it));
        let terminating = &self.terminating;
        for it in self.list.iter_mut().filter(|it| !it.restored) {
            let is_present = is_active(it) || terminating.contains(&it.pod.uid);
            if it.is_terminating() && !is_present {
                it.end(EvictionEnd::Terminated, at);
            }
        }
    }

    /// Restores the evictions of a former engine. They wait for their pods. The result of a request that was
    /// in progress is unknown.
    pub(crate) fn restore(&mut self, former: Vec<InFlightEviction>) {
        self.list = former;
        for it in &mut self.list {
            it.restored = true;
            if it.api == Some(ApiPhase::Requested) {
                it.api = Some(ApiPhase::Unconfirmed);
            }
        }
    }

    /// Resumes the evictions whose pods are present, even without their objects. The others wait for as long
    /// as they could take. Calls `resumed` for each resumed eviction that is terminating.
    pub(crate) fn resume(
        &mut self,
        at: Timestamp,
        pods: &PodSet,
        mut resumed: impl FnMut(&InFlightEviction),
    ) {
        let mut index = 0;
        while let Some(it) = self.list.get(index) {
            let uid = &it.pod.uid;
            let has_only_processes = it.is_terminating() && self.terminating.contains(uid);
            let is_present = has_only_processes || pods.index_of(uid).is_some();
            let is_kept = match (it.restored, is_present) {
                (false, _) => true,
                (true, true) => it.is_executing() || self.of_pod(uid).next().is_none(),
                // Without any pods it is not known whether this one is present.
                (true, false) if it.is_executing() => pods.is_empty(),
                (true, false) => it.age(at) < it.retention(),
            };
            if !is_kept {
                self.list.remove(index);
                continue;
            }
            let it = &mut self.list[index];
            if it.restored && is_present {
                it.restored = false;
                if it.is_terminating() {
                    resumed(it);
                }
            }
            index += 1;
        }
    }

    /// Records the result of an eviction. The result of an unknown eviction is ignored.
    pub(crate) fn record_result(&mut self, at: Timestamp, uid: &str, result: Result<(), NotEvicted>) {
        let is_terminating_pod =
            |it: &InFlightEviction| it.has_uid(uid) && !it.restored && it.is_terminating();
        let Err(why) = result else {
            for it in self.list.iter_mut().filter(|it| is_terminating_pod(it)) {
                it.end(EvictionEnd::Terminated, at);
            }
            return;
        };
        // An eviction that an executor carries out goes on.
        let index = self.list.iter().rposition(|it| is_terminating_pod(it) && !it.is_executing());
        let Some(index) = index else { return };
        match why {
            NotEvicted::Failed(why) => self.list[index].end(EvictionEnd::Failed(why), at),
            // The pod was not evicted.
            NotEvicted::PdbDenied | NotEvicted::NotAsked => drop(self.list.remove(index)),
        }
    }

    /// Pauses evictions until this time, or until the time of an earlier pause if that is later.
    pub(crate) fn pause_until(&mut self, until: Timestamp) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Returns until when evictions are paused, if they are.
    pub(crate) fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until.filter(|until| self.last.is_some_and(|last| *until > last))
    }

    /// Adds the eviction of a pod, unless it may not be selected. Returns whether the eviction was added.
    pub(crate) fn begin(
        &mut self,
        pod: &KnownPod,
        label: Label,
        hard: bool,
        grace_period_seconds: i64,
        expected: [ExpectedRelease; Signal::COUNT],
    ) -> bool {
        if !self.may_select(&pod.pod.uid) {
            return false;
        }
        self.list.retain(|failed| !failed.has_uid(&pod.pod.uid) || failed.is_executing());
        let now = self.last.unwrap_or_default();
        let begun = InFlightEviction::new(Arc::clone(&pod.name), label, hard, now, grace_period_seconds);
        self.list.push(InFlightEviction { expected, ..begun });
        true
    }

    /// Returns the known evictions of a pod.
    fn of_pod(&self, uid: &str) -> impl Iterator<Item = &InFlightEviction> {
        self.known().filter(move |it| it.has_uid(uid))
    }

    /// Returns whether a pod may be selected: it is not terminating, has not terminated, and its eviction did not
    /// fail a moment ago.
    pub(crate) fn may_select(&self, uid: &str) -> bool {
        let now = self.last.unwrap_or_default();
        self.of_pod(uid).all(|it| it.has_failed() && it.age(now) >= RETRY_AFTER)
    }

    /// Returns whether an eviction of a pod failed lately.
    pub(crate) fn has_failed(&self, uid: &str) -> bool {
        self.of_pod(uid).any(InFlightEviction::has_failed)
    }

    /// Returns what all evictions free from now on, for values of a given time. With the grace period of a hard
    /// threshold, evictions that it would have to shorten do not count.
    pub(crate) fn expected(
        &self,
        now: Timestamp,
        signal: Signal,
        values: Option<Timestamp>,
        hard: Option<GoDuration>,
    ) -> i64 {
        let in_time = |it: &&InFlightEviction| {
            // The time of an unconfirmed eviction does not advance.
            let now = if it.is_unconfirmed() { self.last.unwrap_or(now) } else { now };
            !it.has_expired(now) && hard.is_none_or(|grace| !it.can_shorten(now, grace))
        };
        let amounts = self.known().filter(in_time).map(|it| it.expected(signal, values));
        amounts.fold(0, i64::saturating_add)
    }

    /// Shortens the grace period of the first eviction that allows it and frees more than a negligible part
    /// of the remaining deficit. Returns the index of the pod, and what it frees.
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

    /// Updates the expected release of terminating pods by a later sample. The larger value stays. The values
    /// of the node and of its pods are not sampled at the same moment: a smaller pod value may be from a time
    /// that the node's values do not reflect yet.
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
