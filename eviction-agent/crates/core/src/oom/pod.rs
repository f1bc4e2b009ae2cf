//! The kills and ends of one pod.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::pod::PodRef;
use crate::pods::KnownPod;
use crate::time::Timestamp;

use super::cause::{attribute, is_complete};
use super::kill::clip;
use super::kill::{LimitScope, OomKill, OomVictimRole};
use super::pending::{PendingEnd, is_same};
use super::status_mismatch::{ContainerStatusMismatch, FoundCause};
use super::termination::{ContainerEnded, EndSeen};
use super::termination::{ContainerRef, ContainerTerminated, Evidence};

/// Kills remembered for the cause of the next end. A container in which children are killed
/// over and over pushes out the oldest of them, never a main process while there is a child.
const RECENT: usize = 64;

/// Ends whose cause is not decided yet; one more settles the oldest.
const OPEN: usize = 16;

/// Settled ends that are remembered, so that a late record of the same end is known as such.
const CLOSED: usize = 32;

/// What the engine keeps of a kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KillEntry {
    /// When.
    pub at: Timestamp,
    /// The victim's process.
    #[serde(rename = "tgid")]
    pub pid: u32,
    /// Its name.
    pub comm: Box<str>,
    /// Its container, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// The runtime's id of that, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Box<str>>,
    /// Whose limit it was.
    #[serde(rename = "limit_owner")]
    pub limit_scope: LimitScope,
    /// Whether that was concluded.
    pub inferred: bool,
    /// What the victim was.
    pub victim: OomVictimRole,
    /// The group that was killed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// It explains an end that was reported before.
    #[serde(skip)]
    pub(super) spent: bool,
}

impl KillEntry {
    pub(crate) fn new(kill: &OomKill, at: Timestamp) -> Self {
        Self {
            at,
            pid: kill.pid,
            comm: clip(&kill.comm),
            container: kill.container.as_deref().map(clip),
            instance: kill.container_id.as_deref().map(clip),
            limit_scope: kill.limit_scope,
            inferred: kill.inferred,
            victim: kill.victim,
            group: kill.oom_group,
            spent: false,
        }
    }
}

/// An eviction that the engine decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartedEviction {
    /// When it was decided.
    pub(super) at: Timestamp,
    /// When it was given up, if it was: what ended before that may well have ended by it.
    pub(super) until: Option<Timestamp>,
}

impl StartedEviction {
    /// Whether it was under way at some instant from `at` to `latest`.
    pub(super) fn covers(&self, at: Timestamp, latest: Timestamp) -> bool {
        self.at <= latest && self.until.is_none_or(|until| at <= until && self.at < until)
    }

    /// Whether it is under way.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_none()
    }
}

/// What happened to one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodOomHistory {
    pub(super) known: Option<Arc<KnownPod>>,
    /// When its last event came.
    pub(super) last_event: Timestamp,
    pub(super) eviction: Option<StartedEviction>,
    /// Processes that the kernel killed in it.
    pub(super) kills: u64,
    recent: Vec<KillEntry>,
    open: Vec<PendingEnd>,
    closed: VecDeque<ClosedEnd>,
}

/// An end with a cause.
#[derive(Clone, Debug)]
struct ClosedEnd {
    container: Box<str>,
    instance: Option<Box<str>>,
    at: Timestamp,
    /// What was found, until the container's status comes.
    awaits_status: Option<FoundCause>,
}

/// What a record of an end was to what is known.
pub(super) enum EndRecord {
    /// It is part of an end whose cause is not decided yet.
    Noted,
    /// The cause was decided before. How the container's status differs from it, if this is the status.
    Late(Option<Box<ContainerStatusMismatch>>),
}

impl ClosedEnd {
    /// Whether the victim was in what ended.
    fn had(&self, kill: &KillEntry) -> bool {
        match (&self.instance, &kill.instance) {
            (Some(own), Some(victims)) => own == victims,
            _ => kill.at <= self.at && kill.container.as_deref() == Some(&*self.container),
        }
    }
}

impl PodOomHistory {
    pub(super) fn new(known: Option<Arc<KnownPod>>) -> Self {
        Self { known, ..Self::default() }
    }

    /// How many ends wait for a cause.
    pub(super) fn open_ends(&self) -> usize {
        self.open.len()
    }

    /// Takes in a kill. True if the cause of the end that it may have caused was decided before.
    pub(super) fn kill(&mut self, mut killed: KillEntry) -> bool {
        self.kills = self.kills.saturating_add(1);
        if self.recent.len() >= RECENT {
            let child = self.recent.iter().position(|kill| kill.victim == OomVictimRole::Child);
            self.recent.remove(child.unwrap_or(0));
        }
        let late = self.closed.iter().any(|closed| closed.had(&killed));
        killed.spent = late;
        self.recent.push(killed);
        late
    }

    /// Takes in a record of an end.
    pub(super) fn end(&mut self, end: &ContainerEnded, at: Timestamp, now: Timestamp) -> EndRecord {
        if let Some(open) = self.open.iter_mut().find(|open| open.is_same(end, at)) {
            open.learn(end, at);
            return EndRecord::Noted;
        }
        let is_same = |closed: &&mut ClosedEnd| {
            is_same(&closed.container, closed.instance.as_deref(), closed.at, end, at)
        };
        let Some(closed) = self.closed.iter_mut().find(is_same) else {
            self.open.push(PendingEnd::new(end, at, now));
            return EndRecord::Noted;
        };
        if end.seen != EndSeen::Status {
            return EndRecord::Late(None);
        }
        let found = closed.awaits_status.take();
        let (name, id) = (closed.container.clone(), closed.instance.clone());
        EndRecord::Late(found.and_then(|found| {
            let mismatch = found.compare(&end.reason, end.exit_code, end.signal)?;
            let container = self.container_ref(&end.pod, name, id);
            Some(Box::new(ContainerStatusMismatch { container, cause: found.cause, mismatch }))
        }))
    }

    fn container_ref(&self, uid: &str, name: Box<str>, id: Option<Box<str>>) -> ContainerRef {
        let known = self.known.as_deref().filter(|known| !known.pod.name.is_empty());
        ContainerRef { pod: known.map(|known| PodRef::from(&known.pod)), pod_uid: uid.into(), name, id }
    }

    /// Decides the causes that are due, in the order in which the ends came.
    pub(super) fn settle(&mut self, now: Timestamp, uid: &str, settled: &mut Vec<ContainerTerminated>) {
        let mut surplus = self.open.len().saturating_sub(OPEN);
        let mut index = 0;
        while let Some(end) = self.open.get(index) {
            if surplus > 0 || end.due <= now || is_complete(end, &self.recent) {
                surplus = surplus.saturating_sub(1);
                let end = self.open.remove(index);
                settled.push(self.close(end, uid));
            } else {
                index += 1;
            }
        }
    }

    /// When the next cause is decided, whatever comes.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.open.iter().map(|end| end.due).min()
    }

    /// Decides the cause.
    fn close(&mut self, end: PendingEnd, uid: &str) -> ContainerTerminated {
        let evidence = self.evidence(&end);
        let causes = attribute(&end, &mut self.recent, self.eviction);
        let found = FoundCause::of(&causes, &evidence);
        let has_status = end.seen.contains(&EndSeen::Status);
        let mismatch = || found.compare(&end.reason, end.exit_code, end.signal);
        let terminated = ContainerTerminated {
            container: self.container_ref(uid, end.container.clone(), end.instance.clone()),
            causes,
            finished_at: end.at,
            exit_code: end.exit_code,
            exit_signal: end.signal,
            mismatch: has_status.then(mismatch).flatten(),
            reason: end.reason,
            evidence,
        };
        if self.closed.len() >= CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(ClosedEnd {
            container: end.container,
            instance: end.instance,
            at: end.at,
            awaits_status: (!has_status).then_some(found),
        });
        terminated
    }

    /// All that speaks of this end, in order of time.
    fn evidence(&self, end: &PendingEnd) -> Vec<Evidence> {
        let started = self.eviction.filter(|started| started.covers(end.at, end.latest));
        let mut evidence = Vec::new();
        evidence.extend(started.map(|started| Evidence::AgentEvicts { at: started.at }));
        let kills = self.recent.iter().filter(|kill| !kill.spent && end.may_be_of_it(kill));
        evidence.extend(kills.cloned().map(|kill| Evidence::KernelKills(Box::new(kill))));
        evidence.sort_by_key(Evidence::at);
        if let Some(by) = end.evicted_by {
            evidence.push(Evidence::EvictionOnRecord { by, at: end.evicted_at });
        }
        evidence.extend(end.seen.iter().map(|seen| Evidence::Ended { seen: *seen }));
        evidence
    }
}
