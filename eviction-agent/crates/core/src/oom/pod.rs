//! The OOM kills and terminations of one pod.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::pod::PodRef;
use crate::pods::KnownPod;
use crate::time::Timestamp;

use super::cause::{AttributedCause, attribute, is_complete};
use super::group::LISTED;
use super::kill::{LimitScope, OomKill, OomVictimRole, clip};
use super::pending::PendingEnd;
use super::status_mismatch::{ContainerStatusMismatch, FoundCause};
use super::termination::{ContainerEnded, ContainerRef, ContainerTerminated, EndSeen, Evidence};
use super::tracker::EndHandling;

/// The number of kills that are kept for the cause of the next termination. One more drops the oldest kill of
/// a child. The kill of an init process is only dropped if there is no kill of a child.
const MAX_RECENT_KILLS: usize = 64;

/// The number of terminations whose cause is not decided yet. With one more, the cause of the oldest is
/// decided.
const MAX_OPEN_ENDS: usize = 16;

/// The number of decided terminations that are kept, so that a late record of one of them is recognized.
const MAX_CLOSED_ENDS: usize = 32;

/// What the engine stores of a kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KillEntry {
    /// The time of the kill.
    pub at: Timestamp,
    /// The victim's process id.
    pub pid: u32,
    /// The victim's name.
    pub comm: Box<str>,
    /// The victim's container, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<str>>,
    /// The runtime's id of the container, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<Box<str>>,
    /// The scope of the memory limit.
    pub limit_scope: LimitScope,
    /// Whether the scope was inferred.
    pub inferred: bool,
    /// The role of the victim in its container.
    pub victim: OomVictimRole,
    /// The id of the cgroup that was killed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_group: Option<u64>,
    /// Whether the kill belongs to a termination that was already reported.
    #[serde(skip)]
    pub(super) consumed: bool,
}

impl KillEntry {
    pub(crate) fn new(kill: &OomKill, at: Timestamp) -> Self {
        Self {
            at,
            pid: kill.pid,
            comm: clip(&kill.comm),
            container: kill.container.as_deref().map(clip),
            container_id: kill.container_id.as_deref().map(clip),
            limit_scope: kill.limit_scope,
            inferred: kill.inferred,
            victim: kill.victim,
            oom_group: kill.oom_group,
            consumed: false,
        }
    }
}

/// An eviction that the engine decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartedEviction {
    /// When the eviction was decided.
    pub(super) at: Timestamp,
    /// The latest time at which the end of a container is attributed to the eviction: when it failed, or some
    /// time after it succeeded. None while the eviction is in progress.
    pub(super) until: Option<Timestamp>,
}

impl StartedEviction {
    /// Returns whether the eviction may have ended a container from `at` to `latest`.
    pub(super) fn covers(&self, at: Timestamp, latest: Timestamp) -> bool {
        self.at <= latest && self.until.is_none_or(|until| at <= until && self.at < until)
    }

    /// Returns whether the eviction is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        self.until.is_none()
    }
}

/// The history of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodOomHistory {
    pub(super) known: Option<Arc<KnownPod>>,
    /// When the last event arrived.
    pub(super) last_event: Timestamp,
    pub(super) eviction: Option<StartedEviction>,
    /// The number of processes of the pod that the kernel killed.
    pub(super) kills: u64,
    recent: Vec<KillEntry>,
    open: Vec<PendingEnd>,
    /// Terminations whose cause is decided, each with the cause that was found while the container's status is
    /// still missing.
    closed: VecDeque<(PendingEnd, Option<FoundCause>)>,
}

impl PodOomHistory {
    pub(super) fn new(known: Option<Arc<KnownPod>>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Adds a kill. Returns true if the cause of the termination that it may have caused was decided before.
    pub(super) fn add_kill(&mut self, mut killed: KillEntry) -> bool {
        self.kills = self.kills.saturating_add(1);
        if self.recent.len() >= MAX_RECENT_KILLS {
            let child = self.recent.iter().position(|kill| kill.victim == OomVictimRole::Child);
            self.recent.remove(child.unwrap_or(0));
        }
        let late = self.closed.iter().any(|(end, _)| end.contained_victim_of(&killed));
        killed.consumed = late;
        self.recent.push(killed);
        late
    }

    /// Adds a record of a termination. If the cause was decided before and the record is the container's
    /// status, also returns how it differs from the cause.
    pub(super) fn add_end(
        &mut self,
        end: &ContainerEnded,
        at: Timestamp,
        now: Timestamp,
    ) -> (EndHandling, Option<Box<ContainerStatusMismatch>>) {
        if let Some(open) = self.open.iter_mut().find(|open| open.is_same(end, at)) {
            open.add_record(end, at);
            return (EndHandling::Noted, None);
        }
        let mut closed = self.closed.iter_mut();
        let Some((closed, awaits_status)) = closed.find(|(closed, _)| closed.is_same(end, at)) else {
            self.open.push(PendingEnd::new(end, at, now));
            return (EndHandling::Noted, None);
        };
        if end.seen != EndSeen::Status {
            return (EndHandling::Late, None);
        }
        let found = awaits_status.take();
        let (name, id) = (closed.container.clone(), closed.container_id.clone());
        let mismatch = found.and_then(|found| {
            let mismatch = found.compare(&end.reason, end.exit_code, end.signal)?;
            let container = self.container_ref(&end.pod_uid, name, id);
            Some(Box::new(ContainerStatusMismatch { container, cause: found.cause, mismatch }))
        });
        (EndHandling::Late, mismatch)
    }

    fn container_ref(&self, uid: &str, name: Box<str>, id: Option<Box<str>>) -> ContainerRef {
        let known = self.known.as_deref().filter(|known| !known.pod.name.is_empty());
        ContainerRef { pod: known.map(|known| PodRef::from(&known.pod)), pod_uid: uid.into(), name, id }
    }

    /// Decides the causes that are due, in the order in which the terminations were reported.
    pub(super) fn decide_causes(
        &mut self,
        now: Timestamp,
        uid: &str,
        decided: &mut Vec<ContainerTerminated>,
    ) {
        let mut surplus = self.open.len().saturating_sub(MAX_OPEN_ENDS);
        let mut index = 0;
        while let Some(end) = self.open.get(index) {
            if surplus > 0 || end.due <= now || is_complete(end, &self.recent) {
                surplus = surplus.saturating_sub(1);
                let end = self.open.remove(index);
                decided.push(self.decide_cause(end, uid));
            } else {
                index += 1;
            }
        }
    }

    /// Returns when the next cause is decided at the latest. None if every cause is decided.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.open.iter().map(|end| end.due).min()
    }

    /// Decides the cause of a termination.
    fn decide_cause(&mut self, end: PendingEnd, uid: &str) -> ContainerTerminated {
        let mut evidence = self.evidence(&end);
        let causes = attribute(&end, &mut self.recent, self.eviction);
        let found = FoundCause::of(&causes, &evidence);
        let has_status = end.seen.contains(&EndSeen::Status);
        let mismatch = || found.compare(&end.reason, end.exit_code, end.signal);
        let evidence_omitted = evidence.len().saturating_sub(LISTED);
        evidence.truncate(LISTED);
        let AttributedCause { cause, explanation, .. } = causes[0];
        let terminated = ContainerTerminated {
            container: self.container_ref(uid, end.container.clone(), end.container_id.clone()),
            cause,
            explanation,
            inferred: explanation.is_inferred(),
            contributing: causes.iter().skip(1).map(|other| other.cause).collect(),
            limit_scope: causes.iter().find_map(|cause| cause.limit_scope),
            finished_at: end.at,
            exit_code: end.exit_code,
            exit_signal: end.signal,
            mismatch: has_status.then(mismatch).flatten(),
            reason: end.reason.clone(),
            evidence,
            evidence_omitted,
        };
        if self.closed.len() >= MAX_CLOSED_ENDS {
            self.closed.pop_front();
        }
        self.closed.push_back((end, (!has_status).then_some(found)));
        terminated
    }

    /// Returns all evidence of a termination, in order of time.
    fn evidence(&self, end: &PendingEnd) -> Vec<Evidence> {
        let started = self.eviction.filter(|started| started.covers(end.at, end.latest));
        let mut evidence = Vec::new();
        evidence.extend(started.map(|started| Evidence::AgentEvicts { at: started.at }));
        let kills = self.recent.iter().filter(|kill| !kill.consumed && end.may_contain_victim_of(kill));
        evidence.extend(kills.cloned().map(|kill| Evidence::KernelKills(Box::new(kill))));
        evidence.sort_by_key(Evidence::at);
        if let Some(by) = end.evicted_by {
            evidence.push(Evidence::EvictionOnRecord { by, at: end.evicted_at });
        }
        evidence.extend(end.seen.iter().map(|seen| Evidence::Ended { seen: *seen }));
        evidence
    }
}
