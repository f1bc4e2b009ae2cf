//! Tracks OOM kills and the ends of containers: bounded whatever comes, and changed by inputs alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::group::GroupKills;
use super::kill::OomKill;
use super::kill::clipped;
use super::pod::{EndRecord, KillEntry, PodOomHistory, StartedEviction};
use super::status_mismatch::ContainerStatusMismatch;
use super::termination::ContainerTerminated;
use super::termination::{ContainerEnded, EndSeen};
use crate::pod::PodRef;
use crate::pods::{KnownPod, PodSet};
use crate::progress::EvictionResult;
use crate::time::{Timestamp, since};

/// Pods with a history; one more drops the one whose last event is oldest.
const PODS: usize = 1024;

/// Kills by which a repeated record is known.
const RECENT: usize = 1024;

/// Evictions that can be decided on without memory for them until the next record comes.
const ROOM: usize = 64;

/// How long the history of a pod outlives the pod.
const KEEP_NANOS: i64 = 3_600_000_000_000;

/// Completes the records of kills, and finds out why containers ended.
///
/// It remembers a pod until an hour after the pod is gone. A cause waits up to ten seconds for records
/// that are late.
#[derive(Clone, Debug, Default)]
pub struct OomTracker {
    anomalies: AnomalyCounts,
    pods: BTreeMap<Box<str>, PodOomHistory>,
    recent: VecDeque<(Timestamp, u32)>,
    groups: GroupKills,
    /// Evictions that were decided on and not entered yet: that takes memory, which may be short.
    decided: Vec<(Timestamp, Arc<KnownPod>)>,
    /// Causes that were decided early, for want of room.
    early: Vec<ContainerTerminated>,
    /// Evictions are decided on and not carried out.
    dry_run: bool,
    /// When the next cause is due.
    due: Option<Timestamp>,
}

/// Records that made no sense, or came too late to change anything. None does any harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AnomalyCounts {
    /// Kills that were reported before.
    pub repeated_kills: u64,
    /// Kills that came after the cause of the end that they may have caused was decided.
    pub late_kills: u64,
    /// Records of ends whose cause was decided before.
    pub late_ends: u64,
    /// Kills and ends in pods that the engine does not know.
    pub unknown_pods: u64,
    /// Records that were dated later than they were learned.
    pub from_the_future: u64,
    /// Ends without a pod or a container: nothing can be said about them.
    pub nameless_ends: u64,
    /// Pods that were dropped to make room for another.
    pub forgotten: u64,
}

/// The engine's answer to a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomUpdate {
    /// An OOM kill, completed by what the engine knows.
    #[serde(rename = "oom_kill")]
    Kill(Box<OomKill>),
    /// A record of a container's end.
    #[serde(rename = "container_ended")]
    End(EndUpdate),
}

/// The engine's answer to a record of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndUpdate {
    /// UID of the pod.
    pub uid: Box<str>,
    /// Name of the container.
    pub container: Box<str>,
    /// Where it was seen.
    pub seen: EndSeen,
    /// What the record did.
    #[serde(rename = "taken")]
    pub handling: EndHandling,
    /// The record is a status that came after the cause was decided, and differs from it. Reported once.
    #[serde(skip)]
    pub mismatch: Option<Box<ContainerStatusMismatch>>,
}

/// What a record of an end did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndHandling {
    /// It counts; the cause is among those of this decision or follows.
    Noted,
    /// The cause was reported before.
    Late,
    /// It names no pod or no container.
    Nameless,
}

impl OomTracker {
    /// Records that made no sense.
    pub fn anomalies(&self) -> &AnomalyCounts {
        &self.anomalies
    }

    /// When the next cause is due, if one is waited for: an input of that time brings it.
    pub fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Evictions that are decided on are not carried out.
    pub(crate) fn only_advises(&mut self) {
        self.dry_run = true;
    }

    /// Takes in a kill and completes its record.
    pub(crate) fn kill(&mut self, now: Timestamp, mut kill: OomKill, active: &PodSet) -> OomKill {
        self.enter_decided(active);
        let at = self.date(kill.at, now);
        kill.at = Some(at);
        let near_us = |near: Timestamp| since(at, near).as_nanos().max(0).unsigned_abs() / 1_000;
        kill.near_limit_us = kill.near_since.map(near_us);
        kill.repeated = kill.pid != 0 && self.recent.contains(&(at, kill.pid));
        if kill.repeated {
            self.anomalies.repeated_kills += 1;
            return kill;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((at, kill.pid));
        let uid = kill.pod_uid.clone().filter(|uid| !uid.is_empty());
        if let Some(uid) = &uid {
            let known = self.pod_mut(uid, now, active).known.as_ref();
            kill.pod = known.map(|known| PodRef::from(&known.pod));
        }
        kill.group = self.groups.add(&kill, at);
        let Some(uid) = uid else { return kill };
        let pod = self.pod_mut(&uid, now, active);
        let late = pod.kill(KillEntry::new(&kill, at));
        kill.evicting_since = pod.eviction.filter(StartedEviction::is_on).map(|started| started.at);
        kill.kills_in_pod = pod.kills;
        self.anomalies.late_kills += u64::from(late);
        kill
    }

    /// Takes in a record of an end.
    pub(crate) fn end(&mut self, now: Timestamp, end: &ContainerEnded, active: &PodSet) -> EndUpdate {
        self.enter_decided(active);
        let ContainerEnded { pod: uid, container, seen, .. } = end.clone();
        let mut mismatch = None;
        let handling = if uid.is_empty() || (container.is_empty() && end.instance.is_none()) {
            self.anomalies.nameless_ends += 1;
            EndHandling::Nameless
        } else {
            let at = self.date(end.at, now);
            match self.pod_mut(&uid, now, active).end(end, at, now) {
                EndRecord::Noted => EndHandling::Noted,
                EndRecord::Late(differs) => {
                    self.anomalies.late_ends += 1;
                    mismatch = differs;
                    EndHandling::Late
                }
            }
        };
        EndUpdate { uid, container, seen, handling, mismatch }
    }

    /// An eviction was decided on. One that is under way goes on.
    pub(crate) fn evicting(&mut self, now: Timestamp, known: &Arc<KnownPod>, active: &PodSet) {
        let uid = clipped(&known.pod.uid);
        // The same pod may be chosen pass after pass, which is to cost nothing.
        let on = |pod: &PodOomHistory| pod.eviction.as_ref().is_some_and(StartedEviction::is_on);
        let is_entered = || self.decided.iter().any(|(_, decided)| *decided.pod.uid == *known.pod.uid);
        if self.dry_run || self.pods.get(uid).is_some_and(on) || is_entered() {
            return;
        }
        if self.decided.len() >= ROOM {
            self.enter_decided(active);
        }
        self.decided.push((now, Arc::clone(known)));
    }

    /// Enters what was decided on. Whatever asks for the history of a pod comes after it.
    fn enter_decided(&mut self, active: &PodSet) {
        for (at, known) in std::mem::take(&mut self.decided) {
            self.pod_mut(&known.pod.uid, at, active).eviction = Some(StartedEviction { at, until: None });
        }
        self.decided.reserve(ROOM);
    }

    /// An eviction came to an end. One that failed explains no later end of a container.
    pub(crate) fn evicted(&mut self, now: Timestamp, outcome: &EvictionResult, active: &PodSet) {
        self.enter_decided(active);
        let Some(pod) = self.pods.get_mut(clipped(&outcome.uid)) else { return };
        if let (Err(_), Some(started)) = (&outcome.result, pod.eviction.as_mut()) {
            started.until.get_or_insert(now);
        }
    }

    /// The causes that can be decided now.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        touched: Option<&str>,
        active: &PodSet,
    ) -> Vec<ContainerTerminated> {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.enter_decided(active);
        }
        let mut settled = std::mem::take(&mut self.early);
        if is_due {
            for (uid, pod) in &mut self.pods {
                pod.settle(now, uid, &mut settled);
            }
        } else if let Some((uid, pod)) = touched.and_then(|uid| {
            let uid = clipped(uid);
            Some((uid, self.pods.get_mut(uid)?))
        }) {
            pod.settle(now, uid, &mut settled);
        } else if settled.is_empty() {
            return settled;
        }
        self.due = self.pods.values().filter_map(PodOomHistory::due).min();
        settled
    }

    /// The pods are now these: learns their names, and forgets those that are long gone.
    pub(crate) fn pods_are(&mut self, now: Timestamp, active: &PodSet) {
        self.enter_decided(active);
        self.pods.retain(|uid, pod| {
            if let Some(known) = active.index_of(uid).and_then(|index| active.pods().get(index as usize)) {
                pod.known = Some(Arc::clone(known));
                return true;
            }
            pod.open_ends() > 0 || since(now, pod.last_event).as_nanos() < KEEP_NANOS
        });
    }

    /// The instant of a record: nothing is learned before it happens.
    fn date(&mut self, at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        self.anomalies.from_the_future += u64::from(at.is_some_and(|at| at > now));
        at.unwrap_or(now).min(now)
    }

    fn pod_mut(&mut self, uid: &str, now: Timestamp, active: &PodSet) -> &mut PodOomHistory {
        let uid = clipped(uid);
        if !self.pods.contains_key(uid) {
            if self.pods.len() >= PODS {
                self.forget_one(active);
            }
            let index = active.index_of(uid);
            let known = index.and_then(|index| active.pods().get(index as usize)).cloned();
            self.anomalies.unknown_pods += u64::from(known.is_none());
            self.pods.insert(uid.into(), PodOomHistory::new(known));
        }
        let pod = self.pods.entry(uid.into()).or_default();
        pod.last_event = pod.last_event.max(now);
        pod
    }

    /// Drops a pod that is gone before one that is here, and of those the one silent for longest.
    fn forget_one(&mut self, active: &PodSet) {
        let stale =
            self.pods.iter().min_by_key(|(uid, pod)| (active.index_of(uid).is_some(), pod.last_event));
        if let Some(uid) = stale.map(|(uid, _)| uid.clone()) {
            if let Some(mut pod) = self.pods.remove(&uid) {
                pod.settle(Timestamp::MAX, &uid, &mut self.early);
            }
            self.anomalies.forgotten += 1;
        }
    }
}
