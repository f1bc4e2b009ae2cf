//! The state of the story: bounded whatever comes, and changed by inputs alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::container_end::ContainerEnded;
use super::counters::{AnomalyCounts, KillCounts, TerminationCounts};
use super::group::{GroupKill, GroupKills};
use super::kill::OomKill;
use super::pod::{KillEntry, KillStored, PodOomHistory, StartedEviction};
use super::termination::EndedContainer;
use super::text::clipped;
use crate::pods::{KnownPod, PodSet};
use crate::progress::EvictionResult;
use crate::time::{Timestamp, since};

/// Pods with a story; one more drops the one of which nothing was heard for longest.
const PODS: usize = 1024;

/// Kills by which a repeated record is known.
const SEEN: usize = 1024;

/// Evictions that can be decided on without memory for them until the next record comes.
const ROOM: usize = 64;

/// How long the story of a pod outlives the pod.
const KEEP_NANOS: i64 = 3_600_000_000_000;

/// Who was killed by the kernel, and why containers ended.
///
/// It keeps figures of the node for ever, those of a pod until an hour after it is gone.
/// Verdicts wait up to ten seconds for records that are late.
#[derive(Clone, Debug, Default)]
pub struct OomTracker {
    kills: KillCounts,
    ends: TerminationCounts,
    oddities: AnomalyCounts,
    pods: BTreeMap<Box<str>, PodOomHistory>,
    seen: VecDeque<(Timestamp, u32)>,
    groups: GroupKills,
    /// Evictions that were decided on and not entered yet: that takes memory, which may be short.
    chosen: Vec<(Timestamp, Arc<KnownPod>)>,
    /// Verdicts that were given early, for want of room.
    early: Vec<EndedContainer>,
    /// Evictions are decided on and not carried out.
    dry_run: bool,
    /// When the next verdict is due.
    due: Option<Timestamp>,
}

/// What the engine says to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OomUpdate {
    /// Of a kill.
    Kill(Box<KillUpdate>),
    /// Of the end of a container.
    End(Box<EndUpdate>),
}

/// What the engine says to a kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillUpdate {
    /// The record.
    pub kill: OomKill,
    /// Its instant, no later than the input's.
    pub at: Timestamp,
    /// It was told before, and counts for nothing.
    pub repeated: bool,
    /// `namespace` and `name` of the pod, if the engine knows it.
    pub pod: Option<(Box<str>, Box<str>)>,
    /// Since when the pod is being evicted by this agent.
    pub evicting_since: Option<Timestamp>,
    /// The others that were killed with it.
    pub group: Option<GroupKill>,
    /// Kills in the pod so far, this one included.
    pub in_pod: u64,
}

/// What the engine says to a record of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndUpdate {
    /// The record.
    pub end: ContainerEnded,
    /// What it did.
    pub taken: EndHandling,
}

/// What a record of an end did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndHandling {
    /// It counts; the verdict is among those of this decision or follows.
    Noted,
    /// The verdict was given before.
    Late,
    /// It names no pod or no container.
    Nameless,
}

impl OomTracker {
    /// Processes that the kernel killed on this node, in pods or not.
    pub fn kills(&self) -> &KillCounts {
        &self.kills
    }

    /// Containers that ended.
    pub fn ends(&self) -> &TerminationCounts {
        &self.ends
    }

    /// Records that made no sense.
    pub fn oddities(&self) -> &AnomalyCounts {
        &self.oddities
    }

    /// The story of a pod, by its uid; none if nothing happened to it.
    pub fn pod(&self, uid: &str) -> Option<&PodOomHistory> {
        self.pods.get(uid)
    }

    /// All pods with a story, by uid.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = (&str, &PodOomHistory)> {
        self.pods.iter().map(|(uid, pod)| (&**uid, pod))
    }

    /// When the kernel last killed in a pod.
    pub fn last_kill(&self, uid: &str) -> Option<Timestamp> {
        self.pods.get(uid)?.last_kill()
    }

    /// When the next verdict is due, if one is waited for: an input of that time brings it.
    pub fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Evictions that are decided on are not carried out.
    pub(crate) fn only_advises(&mut self) {
        self.dry_run = true;
    }

    /// Takes note of a kill.
    pub(crate) fn kill(&mut self, now: Timestamp, kill: OomKill, active: &PodSet) -> KillUpdate {
        self.enter_chosen(active);
        let at = self.date(kill.at, now);
        let repeated = kill.tgid != 0 && self.seen.contains(&(at, kill.tgid));
        let mut note =
            KillUpdate { kill, at, repeated, pod: None, evicting_since: None, group: None, in_pod: 0 };
        if repeated {
            self.oddities.repeated_kills += 1;
            return note;
        }
        if self.seen.len() >= SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back((at, note.kill.tgid));
        let killed = KillEntry::new(&note.kill, at);
        let (first, first_in_pod) = match self.groups.add(&note.kill, &killed) {
            Some(part) => {
                note.group = Some(part.story);
                (part.first, part.first_in_pod)
            }
            None => (false, false),
        };
        self.kills.count(&note.kill, first);
        let Some(uid) = note.kill.pod.clone().filter(|uid| !uid.is_empty()) else { return note };
        let pod = self.pod_mut(&uid, now, active);
        let KillStored { late, has_room } = pod.kill(&note.kill, killed, first_in_pod);
        note.pod = pod.known.as_ref().map(|known| (known.pod.namespace.clone(), known.pod.name.clone()));
        note.evicting_since = pod.eviction.filter(StartedEviction::is_on).map(|begun| begun.at);
        note.in_pod = pod.kills().total();
        self.oddities.forgotten += u64::from(!has_room);
        self.oddities.late_kills += u64::from(late);
        note
    }

    /// Takes note of a record of an end.
    pub(crate) fn end(&mut self, now: Timestamp, end: ContainerEnded, active: &PodSet) -> EndUpdate {
        self.enter_chosen(active);
        if end.pod.is_empty() || (end.container.is_empty() && end.instance.is_none()) {
            self.oddities.nameless_ends += 1;
            return EndUpdate { end, taken: EndHandling::Nameless };
        }
        let at = self.date(end.at, now);
        let uid = end.pod.clone();
        let is_new = self.pod_mut(&uid, now, active).end(&end, at, now);
        self.oddities.late_ends += u64::from(!is_new);
        EndUpdate { end, taken: if is_new { EndHandling::Noted } else { EndHandling::Late } }
    }

    /// An eviction was decided on. One that is under way goes on.
    pub(crate) fn evicting(&mut self, now: Timestamp, known: &Arc<KnownPod>, active: &PodSet) {
        let uid = clipped(&known.pod.uid);
        // The same pod may be chosen pass after pass, which is to cost nothing.
        let on = |pod: &PodOomHistory| pod.eviction.as_ref().is_some_and(StartedEviction::is_on);
        let is_chosen = || self.chosen.iter().any(|(_, chosen)| *chosen.pod.uid == *known.pod.uid);
        if self.dry_run || self.pods.get(uid).is_some_and(on) || is_chosen() {
            return;
        }
        if self.chosen.len() >= ROOM {
            self.enter_chosen(active);
        }
        self.chosen.push((now, Arc::clone(known)));
    }

    /// Enters what was decided on. Whatever asks for the story of a pod comes after it.
    fn enter_chosen(&mut self, active: &PodSet) {
        for (at, known) in std::mem::take(&mut self.chosen) {
            self.pod_mut(&known.pod.uid, at, active).eviction = Some(StartedEviction { at, until: None });
        }
        self.chosen.reserve(ROOM);
    }

    /// An eviction came to an end. One that failed explains no later end of a container.
    pub(crate) fn evicted(&mut self, now: Timestamp, outcome: &EvictionResult, active: &PodSet) {
        self.enter_chosen(active);
        let Some(pod) = self.pods.get_mut(clipped(&outcome.uid)) else { return };
        if let (Err(_), Some(begun)) = (&outcome.result, pod.eviction.as_mut()) {
            begun.until.get_or_insert(now);
        }
    }

    /// The verdicts that can be given now.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        touched: Option<&str>,
        active: &PodSet,
    ) -> Vec<EndedContainer> {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.enter_chosen(active);
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
        for ended in &settled {
            self.ends.count(ended.verdict());
        }
        self.due = self.pods.values().filter_map(PodOomHistory::due).min();
        settled
    }

    /// The pods are now these: learns their names, and forgets those that are long gone.
    pub(crate) fn pods_are(&mut self, now: Timestamp, active: &PodSet) {
        self.enter_chosen(active);
        self.pods.retain(|uid, pod| {
            if let Some(known) = active.place(uid).and_then(|place| active.pods().get(place as usize)) {
                pod.known = Some(Arc::clone(known));
                return true;
            }
            pod.open_ends() > 0 || since(now, pod.heard).as_nanos() < KEEP_NANOS
        });
    }

    /// The instant of a record: nothing is learned before it happens.
    fn date(&mut self, at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        self.oddities.from_the_future += u64::from(at.is_some_and(|at| at > now));
        at.unwrap_or(now).min(now)
    }

    fn pod_mut(&mut self, uid: &str, now: Timestamp, active: &PodSet) -> &mut PodOomHistory {
        let uid = clipped(uid);
        if !self.pods.contains_key(uid) {
            if self.pods.len() >= PODS {
                self.forget_one(active);
            }
            let place = active.place(uid);
            let known = place.and_then(|place| active.pods().get(place as usize)).cloned();
            self.oddities.unknown_pods += u64::from(known.is_none());
            self.pods.insert(uid.into(), PodOomHistory::new(known));
        }
        let pod = self.pods.entry(uid.into()).or_default();
        pod.heard = pod.heard.max(now);
        pod
    }

    /// Drops a pod that is gone before one that is here, and of those the one silent for longest.
    fn forget_one(&mut self, active: &PodSet) {
        let stale = self.pods.iter().min_by_key(|(uid, pod)| (active.place(uid).is_some(), pod.heard));
        if let Some(uid) = stale.map(|(uid, _)| uid.clone()) {
            if let Some(mut pod) = self.pods.remove(&uid) {
                pod.settle(Timestamp::MAX, &uid, &mut self.early);
            }
            self.oddities.forgotten += 1;
        }
    }
}
