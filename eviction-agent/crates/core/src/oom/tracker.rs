//! Tracks OOM kills and terminations of containers. Its size is bounded, and only inputs change it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::kill::{GroupKill, OomKill, clipped};
use super::pod::{KillEntry, PodOomHistory, StartedEviction};
use super::termination::{ContainerEnded, ContainerStatusMismatch, ContainerTerminated, TerminationSource};
use crate::pod::{PodName, PodRef};
use crate::pods::PodSet;
use crate::progress::NotEvicted;
use crate::time::{Timestamp, later, since};
use crate::units::GoDuration;

/// The number of pods with a history, and of evictions. One more drops that of another pod.
const MAX_PODS: usize = 1024;

/// The number of kills by which a repeated record is recognized.
const MAX_RECENT_KILLS: usize = 1024;

/// The number of group kills that are kept.
const MAX_GROUPS: usize = 32;

/// The longest time between two records of one group kill. The kernel kills all processes at once.
const SAME_GROUP_NANOS: i64 = 1_000_000_000;

/// The number of evictions that can be added without an allocation until the pods are updated.
const FREE_EVICTIONS: usize = 64;

/// How long after an eviction the end of a container may be noticed. If no event reports it, the next full sample
/// does, after at most 11 s.
const NOTICE_DELAY: GoDuration = GoDuration::from_secs(12);

/// How long after its last event the history of an inactive pod is kept: one hour.
const RETENTION_NANOS: i64 = 3_600_000_000_000;

/// Completes the records of kills, and finds out why containers terminated.
///
/// The history of a pod is kept while the pod is active, and for an hour after its last event. A cause waits
/// up to ten seconds for late records.
#[derive(Clone, Debug, Default)]
pub struct OomTracker {
    anomalies: AnomalyCounts,
    pods: BTreeMap<Box<str>, PodOomHistory>,
    recent: VecDeque<(Timestamp, u32)>,
    /// The most recent group kills, each with the id of its cgroup, in the order of their first records.
    groups: VecDeque<(u64, GroupKill)>,
    /// The last eviction of each pod. They are not in the histories, because an eviction must not allocate memory.
    evictions: Vec<StartedEviction>,
    /// Causes that were decided early, because the history of their pod was dropped.
    early: Vec<ContainerTerminated>,
    /// Whether evictions are decided but not carried out.
    dry_run: bool,
}

/// Counts of records that were inconsistent, or too late to change anything. None of them does any harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AnomalyCounts {
    /// Kills that were reported before.
    pub repeated_kills: u64,
    /// Kills that arrived after the cause of the termination that they may have caused was decided.
    pub late_kills: u64,
    /// Records of terminations whose cause was decided before.
    pub late_ends: u64,
    /// Kills and terminations in pods that the engine does not know.
    pub unknown_pods: u64,
    /// Records that were dated later than they arrived.
    pub from_the_future: u64,
    /// Terminations without a pod or a container. No cause can be found for them.
    pub nameless_ends: u64,
    /// Pods whose history was dropped to make room for another.
    pub forgotten: u64,
}

/// The engine's result for a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomUpdate {
    /// An OOM kill, completed with what the engine knows.
    #[serde(rename = "oom_kill")]
    Kill(Box<OomKill>),
    /// A record of a container's termination.
    #[serde(rename = "container_termination")]
    End {
        /// The UID of the pod.
        uid: Box<str>,
        /// The name of the container.
        container: Box<str>,
        /// Where the termination was observed.
        seen: TerminationSource,
        /// How the record was handled.
        handling: EndHandling,
        /// The mismatch, if the record is a status that arrived after the cause was decided and differs from
        /// it. Reported once.
        #[serde(skip)]
        mismatch: Option<Box<ContainerStatusMismatch>>,
    },
}

/// How a record of a termination was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndHandling {
    /// The record counts. The cause is part of this decision or of a later one.
    Noted,
    /// The cause was reported before.
    Late,
    /// The record names no pod or no container.
    Nameless,
}

impl OomTracker {
    /// Returns the counts of inconsistent records.
    pub fn anomalies(&self) -> &AnomalyCounts {
        &self.anomalies
    }

    /// Returns when the next cause is due, if one is pending. An input with that time leads to the decision.
    pub fn due(&self) -> Option<Timestamp> {
        self.pods.values().filter_map(PodOomHistory::due).min()
    }

    /// Marks the tracker as a dry run: evictions are decided but not carried out.
    pub(crate) fn set_dry_run(&mut self) {
        self.dry_run = true;
    }

    /// Adds a kill and completes its record.
    pub(crate) fn add_kill(&mut self, now: Timestamp, mut kill: OomKill, active: &PodSet) -> OomKill {
        let at = self.record_time(kill.at, now);
        kill.at = Some(at);
        let near_us = |near: Timestamp| since(at, near).as_nanos().max(0).unsigned_abs() / 1_000;
        kill.near_limit_us = kill.near_since.map(near_us);
        kill.repeated = kill.pid != 0 && self.recent.contains(&(at, kill.pid));
        if kill.repeated {
            self.anomalies.repeated_kills += 1;
            return kill;
        }
        if self.recent.len() >= MAX_RECENT_KILLS {
            self.recent.pop_front();
        }
        self.recent.push_back((at, kill.pid));
        if let Some(uid) = kill.pod_uid.clone().filter(|uid| !uid.is_empty()) {
            let in_progress = eviction_of(&self.evictions, &uid).filter(|it| it.until.is_none());
            kill.evicting_since = in_progress.map(|it| it.at);
            let pod = self.pod_mut(&uid, now, active);
            let late = pod.add_kill(KillEntry::new(&kill, at));
            kill.pod = pod.name.as_deref().map(PodRef::from);
            kill.kills_in_pod = pod.kills;
            self.anomalies.late_kills += u64::from(late);
        }
        kill.group = self.add_to_group(&kill, at);
        kill
    }

    /// Adds a record of this time to the group kill that it is part of. Returns the group so far.
    fn add_to_group(&mut self, kill: &OomKill, at: Timestamp) -> Option<GroupKill> {
        let cgroup = kill.oom_group?;
        let is_near = |latest| since(at, latest).as_nanos().saturating_abs() <= SAME_GROUP_NANOS;
        let is_same =
            |(id, group): &&mut (u64, GroupKill)| *id == cgroup && group.latest.is_some_and(is_near);
        let (_, group) = match self.groups.iter_mut().rev().find(is_same) {
            Some(known) => known,
            None => {
                if self.groups.len() >= MAX_GROUPS {
                    self.groups.pop_front();
                }
                self.groups.push_back_mut((cgroup, GroupKill::default()))
            }
        };
        group.add(kill);
        Some(group.clone())
    }

    /// Adds a record of a termination.
    pub(crate) fn add_end(&mut self, now: Timestamp, end: &ContainerEnded, active: &PodSet) -> OomUpdate {
        let ContainerEnded { pod_uid: uid, container, seen, .. } = end.clone();
        let (handling, mismatch) = if uid.is_empty() || (container.is_empty() && end.container_id.is_none()) {
            self.anomalies.nameless_ends += 1;
            (EndHandling::Nameless, None)
        } else {
            let at = self.record_time(end.at, now);
            self.pod_mut(&uid, now, active).add_end(end, at, now)
        };
        self.anomalies.late_ends += u64::from(handling == EndHandling::Late);
        OomUpdate::End { uid, container, seen, handling, mismatch }
    }

    /// Adds an eviction that was decided. One that is in progress or has just ended is not replaced: the same pod
    /// may be selected in each evaluation.
    pub(crate) fn add_eviction(&mut self, now: Timestamp, pod: &Arc<PodName>) {
        if self.dry_run {
            return;
        }
        let started = StartedEviction { pod: Arc::clone(pod), at: now, until: None };
        match self.evictions.iter_mut().find(|it| it.pod.uid == pod.uid) {
            Some(before) if before.until.is_none_or(|until| now < until) => {}
            Some(before) => *before = started,
            None => {
                if self.evictions.len() >= MAX_PODS {
                    self.evictions.remove(0);
                }
                self.evictions.push(started);
            }
        }
    }

    /// Records the result of an eviction. Later terminations are not attributed to it: a pod that was killed by
    /// signals stays, and its containers are restarted.
    pub(crate) fn record_result(&mut self, now: Timestamp, uid: &str, result: &Result<(), NotEvicted>) {
        let Some(started) = self.evictions.iter_mut().find(|it| *it.pod.uid == *uid) else { return };
        let until = if result.is_ok() { later(now, NOTICE_DELAY) } else { now };
        started.until.get_or_insert(until);
    }

    /// Returns the causes that can be decided now.
    pub(crate) fn decide_causes(
        &mut self,
        now: Timestamp,
        changed_pod: Option<&str>,
    ) -> Vec<ContainerTerminated> {
        let is_due = self.due().is_some_and(|due| due <= now);
        let mut decided = std::mem::take(&mut self.early);
        let changed_pod = changed_pod.map(clipped);
        for (uid, pod) in &mut self.pods {
            if is_due || changed_pod == Some(&**uid) {
                pod.decide_causes(now, uid, eviction_of(&self.evictions, uid), &mut decided);
            }
        }
        decided
    }

    /// Updates the active pods: stores their names, and drops what is known of pods that have been inactive for long.
    pub(crate) fn update_pods(&mut self, now: Timestamp, active: &PodSet) {
        self.pods.retain(|uid, pod| {
            if let Some(known) = active.find(uid) {
                pod.name = Some(Arc::clone(&known.name));
                return true;
            }
            pod.due().is_some() || since(now, pod.last_event).as_nanos() < RETENTION_NANOS
        });
        self.evictions.retain(|it| {
            active.index_of(&it.pod.uid).is_some()
                || self.pods.contains_key(clipped(&it.pod.uid))
                || since(now, it.at).as_nanos() < RETENTION_NANOS
        });
        self.evictions.reserve(FREE_EVICTIONS);
    }

    /// Returns the time of a record, at most the present: nothing is learned before it happens.
    fn record_time(&mut self, at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        self.anomalies.from_the_future += u64::from(at.is_some_and(|at| at > now));
        at.unwrap_or(now).min(now)
    }

    fn pod_mut(&mut self, uid: &str, now: Timestamp, active: &PodSet) -> &mut PodOomHistory {
        let uid = clipped(uid);
        if self.pods.len() >= MAX_PODS && !self.pods.contains_key(uid) {
            self.drop_oldest_history(active);
        }
        let pod = self.pods.entry(uid.into()).or_insert_with(|| {
            let of_eviction = || eviction_of(&self.evictions, uid).map(|it| &it.pod);
            let name = active.find(uid).map(|known| &known.name).or_else(of_eviction);
            self.anomalies.unknown_pods += u64::from(name.is_none());
            PodOomHistory::new(name.cloned())
        });
        pod.last_event = pod.last_event.max(now);
        pod
    }

    /// Drops the history of one pod: of an inactive one before an active one, and among those the one with
    /// the oldest event.
    fn drop_oldest_history(&mut self, active: &PodSet) {
        let stale =
            self.pods.iter().min_by_key(|(uid, pod)| (active.index_of(uid).is_some(), pod.last_event, *uid));
        if let Some(uid) = stale.map(|(uid, _)| uid.clone()) {
            if let Some(mut pod) = self.pods.remove(&uid) {
                let eviction = eviction_of(&self.evictions, &uid);
                pod.decide_causes(Timestamp::MAX, &uid, eviction, &mut self.early);
            }
            self.anomalies.forgotten += 1;
        }
    }
}

/// Returns the last eviction of a pod.
fn eviction_of<'a>(evictions: &'a [StartedEviction], uid: &str) -> Option<&'a StartedEviction> {
    evictions.iter().find(|it| clipped(&it.pod.uid) == clipped(uid))
}
