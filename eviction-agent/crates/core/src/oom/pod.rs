//! The OOM kills and terminations of one pod.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::pod::{PodName, PodRef};
use crate::time::Timestamp;

use super::cause::{AttributedCause, TrackedEnd, attribute, is_complete, is_sigkill};
use super::kill::{LISTED, LimitScope, OomKill, OomVictimRole, clip};
use super::termination::{
    ContainerEnded, ContainerRef, ContainerStatusMismatch, ContainerTerminated, Evidence, MismatchKind,
    TerminationSource,
};
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
#[derive(Clone, Debug)]
pub(super) struct StartedEviction {
    pub(super) pod: Arc<PodName>,
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
}

/// The history of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodOomHistory {
    /// The name of the pod, if it is known.
    pub(super) name: Option<Arc<PodName>>,
    /// When the last event arrived.
    pub(super) last_event: Timestamp,
    /// The number of processes of the pod that the kernel killed.
    pub(super) kills: u64,
    recent: Vec<KillEntry>,
    /// The terminations whose cause is not decided yet.
    open: Vec<TrackedEnd>,
    /// The terminations whose cause was decided last.
    closed: VecDeque<TrackedEnd>,
}

impl PodOomHistory {
    pub(super) fn new(name: Option<Arc<PodName>>) -> Self {
        Self { name, ..Self::default() }
    }

    /// Adds a kill. Returns true if the cause of the termination that it may have caused was decided before.
    pub(super) fn add_kill(&mut self, mut killed: KillEntry) -> bool {
        self.kills = self.kills.saturating_add(1);
        if self.recent.len() >= MAX_RECENT_KILLS {
            let child = self.recent.iter().position(|kill| kill.victim == OomVictimRole::Child);
            self.recent.remove(child.unwrap_or(0));
        }
        let late = self.closed.iter().any(|closed| closed.contained_victim_of(&killed));
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
        let Some(closed) = self.closed.iter_mut().find(|closed| closed.is_same(end, at)) else {
            self.open.push(TrackedEnd::new(end, at, now));
            return (EndHandling::Noted, None);
        };
        if end.seen != TerminationSource::Status || !closed.seen.insert(TerminationSource::Status) {
            return (EndHandling::Late, None);
        }
        let by_sigkill = is_sigkill(end.exit_code, end.signal);
        let mismatch = MismatchKind::of(&closed.causes, closed.any_kill, &end.reason, by_sigkill);
        let mismatch = mismatch.zip(closed.causes.first()).map(|(mismatch, first)| {
            let container = container_ref(self.name.as_deref(), &end.pod_uid, closed);
            Box::new(ContainerStatusMismatch { container, cause: first.cause, mismatch })
        });
        (EndHandling::Late, mismatch)
    }

    /// Decides the causes that are due, in the order in which the terminations were reported. `eviction`: the last
    /// eviction of the pod.
    pub(super) fn decide_causes(
        &mut self,
        now: Timestamp,
        uid: &str,
        eviction: Option<&StartedEviction>,
        decided: &mut Vec<ContainerTerminated>,
    ) {
        let mut surplus = self.open.len().saturating_sub(MAX_OPEN_ENDS);
        let mut index = 0;
        while let Some(end) = self.open.get(index) {
            if surplus > 0 || end.due <= now || is_complete(end, &self.recent) {
                surplus = surplus.saturating_sub(1);
                let end = self.open.remove(index);
                decided.push(self.decide_cause(end, uid, eviction));
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
    fn decide_cause(
        &mut self,
        mut end: TrackedEnd,
        uid: &str,
        eviction: Option<&StartedEviction>,
    ) -> ContainerTerminated {
        let eviction = eviction.filter(|started| started.covers(end.at, end.latest));
        let mut evidence = self.evidence(&end, eviction);
        end.any_kill = evidence.iter().any(|it| matches!(it, Evidence::KernelKills(_)));
        end.causes = attribute(&end, &mut self.recent, eviction);
        let mismatch = || MismatchKind::of(&end.causes, end.any_kill, &end.reason, end.ended_by_sigkill());
        let evidence_omitted = evidence.len().saturating_sub(LISTED);
        evidence.truncate(LISTED);
        let AttributedCause { cause, explanation, .. } = end.causes[0];
        let terminated = ContainerTerminated {
            container: container_ref(self.name.as_deref(), uid, &end),
            cause,
            explanation,
            inferred: explanation.is_inferred(),
            contributing: end.causes.iter().skip(1).map(|other| other.cause).collect(),
            limit_scope: end.causes.iter().find_map(|cause| cause.limit_scope),
            finished_at: end.at,
            exit_code: end.exit_code,
            exit_signal: end.signal,
            mismatch: end.seen.contains(&TerminationSource::Status).then(mismatch).flatten(),
            reason: end.reason.clone(),
            evidence,
            evidence_omitted,
        };
        if self.closed.len() >= MAX_CLOSED_ENDS {
            self.closed.pop_front();
        }
        self.closed.push_back(end);
        terminated
    }

    /// Returns all evidence of a termination, in order of time. `eviction`: the one that may have ended the container.
    fn evidence(&self, end: &TrackedEnd, eviction: Option<&StartedEviction>) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        evidence.extend(eviction.map(|started| Evidence::AgentEvicts { at: started.at }));
        let kills = self.recent.iter().filter(|kill| !kill.consumed && end.may_contain_victim_of(kill));
        evidence.extend(kills.cloned().map(|kill| Evidence::KernelKills(Box::new(kill))));
        let pid = |it: &Evidence| if let Evidence::KernelKills(kill) = it { Some(kill.pid) } else { None };
        evidence.sort_by_key(|it| (it.at(), pid(it)));
        if let Some(by) = end.evicted_by {
            evidence.push(Evidence::EvictionOnRecord { by, at: end.evicted_at });
        }
        evidence.extend(end.seen.iter().map(|seen| Evidence::Ended { seen: *seen }));
        evidence
    }
}

fn container_ref(name: Option<&PodName>, uid: &str, end: &TrackedEnd) -> ContainerRef {
    ContainerRef {
        pod: name.filter(|name| !name.name.is_empty()).map(PodRef::from),
        pod_uid: uid.into(),
        name: end.container.clone(),
        id: end.container_id.clone(),
    }
}
