//! A termination, the kills and evictions that can have caused it, and its cause. They are matched by container,
//! instance and time.
//!
//! The kernel's record of a kill takes precedence over the runtime's reason: containerd and CRI-O report
//! `OOMKilled` for every container in whose cgroup the kernel ever killed a process, even if that was a child
//! hours ago and the init process ended by itself (containerd#8180).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::kill::{LimitScope, OomVictimRole, clip, clipped};
use super::pod::{KillEntry, StartedEviction};
use super::termination::{ContainerEnded, Evictor, TerminationSource};
use crate::time::{Timestamp, later};
use crate::units::GoDuration;

/// The reason that runtimes report.
pub(super) const OOM_KILLED: &str = "OOMKilled";

crate::named_enum! {
    /// What terminated a container. Each termination has exactly one cause.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TerminationCause {
        /// This agent evicted the pod.
        EvictedByAgent = "evicted_by_agent",
        /// The kubelet evicted the pod.
        EvictedByKubelet = "evicted_by_kubelet",
        /// The kernel's OOM killer killed the container.
        OomKilled = "oom_killed",
        /// Neither: the container ended by itself, or something else ended it.
        Other = "other",
    }
}

/// The explanation of a cause. Of those by a kill, an earlier one takes precedence over a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Explanation {
    /// The kernel killed the container's init process.
    InitProcessKilled,
    /// The kernel killed all processes of the container's group together.
    GroupKilled,
    /// The kernel had just killed a process of the container, and it is unknown whether it was the init process.
    ProcessKilled,
    /// The container failed just after the kernel had killed a child of its init process.
    ChildKilled,
    /// The runtime reports it, and no kill was seen. The kill may have happened before the agent started.
    RuntimeReported,
    /// The eviction was in progress.
    EvictionInProgress,
    /// The pod's status records the eviction.
    EvictionOnRecord,
    /// The runtime reports `OOMKilled`, but the kernel only killed a child, long before.
    OnlyAChildLongBefore,
    /// The container was ended by SIGKILL, and the kernel did not send it.
    KilledByOtherProcess,
    /// The container exited.
    Exited,
    /// The container has terminated, and no source reports how.
    Unexplained,
}

impl Explanation {
    /// Returns whether the cause was inferred and not observed.
    pub fn is_inferred(self) -> bool {
        matches!(self, Self::ProcessKilled | Self::ChildKilled | Self::RuntimeReported)
    }

    /// Returns the explanation as a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::InitProcessKilled => "the kernel killed its init process",
            Self::GroupKilled => "the kernel killed all processes of its group together",
            Self::ProcessKilled => {
                "the kernel had just killed a process of it, and it is unknown whether it was the init process"
            }
            Self::ChildKilled => "it failed just after the kernel had killed a child of its init process",
            Self::RuntimeReported => "the runtime says so; no kill was seen",
            Self::EvictionInProgress => "its eviction was under way",
            Self::EvictionOnRecord => "the pod's status says so",
            Self::OnlyAChildLongBefore => {
                "the runtime says OOMKilled, but the kernel had killed only a child, long before"
            }
            Self::KilledByOtherProcess => "it died by SIGKILL, which was not sent by the kernel's OOM killer",
            Self::Exited => "it exited",
            Self::Unexplained => "it is gone, and no cause is known",
        }
    }
}

/// One possible cause of a container's termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributedCause {
    /// The cause.
    pub(super) cause: TerminationCause,
    /// The explanation of the cause.
    pub(super) explanation: Explanation,
    /// When the cause began, if known.
    pub(super) at: Option<Timestamp>,
    /// The scope of the memory limit, for an OOM kill.
    pub(super) limit_scope: Option<LimitScope>,
}

impl AttributedCause {
    fn new(cause: TerminationCause, explanation: Explanation, at: Option<Timestamp>) -> Self {
        Self { cause, explanation, at, limit_scope: None }
    }

    fn oom_killed(explanation: Explanation, at: Option<Timestamp>, limit_scope: LimitScope) -> Self {
        let limit_scope = Some(limit_scope);
        Self { limit_scope, ..Self::new(TerminationCause::OomKilled, explanation, at) }
    }
}

/// How long a cause waits for late records: the kubelet writes a status one to three seconds after a
/// termination, and kills can be reported after that.
const DECISION_DELAY: GoDuration = GoDuration::from_secs(10);

/// Times in the API have whole seconds.
const API_RESOLUTION: GoDuration = GoDuration::from_secs(1);

/// Records without an instance belong to the same termination if they are at most this far apart.
const SAME_NANOS: i128 = 2_000_000_000;

/// All that is known about one termination, before and after its cause is decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TrackedEnd {
    pub(super) container: Box<str>,
    pub(super) container_id: Option<Box<str>>,
    /// The earliest time that a record names.
    pub(super) at: Timestamp,
    /// The time by which the termination was over.
    pub(super) latest: Timestamp,
    pub(super) seen: BTreeSet<TerminationSource>,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) reason: Box<str>,
    pub(super) evicted_by: Option<Evictor>,
    pub(super) evicted_at: Option<Timestamp>,
    /// When the cause is decided, even if records are missing.
    pub(super) due: Timestamp,
    /// The causes in order of time: empty until they are decided, then at least one.
    pub(super) causes: Vec<AttributedCause>,
    /// Whether the kernel was seen to kill any process of the container before the cause was decided.
    pub(super) any_kill: bool,
}

impl TrackedEnd {
    /// Creates a termination from its first record, which is dated `at` and was received at `now`.
    pub(super) fn new(end: &ContainerEnded, at: Timestamp, now: Timestamp) -> Self {
        let mut open = Self {
            container: clip(&end.container),
            at,
            latest: latest(end, at),
            due: later(now, DECISION_DELAY),
            ..Self::default()
        };
        open.add_record(end, at);
        open
    }

    /// Adds another record of the same termination. Known values stay.
    pub(super) fn add_record(&mut self, end: &ContainerEnded, at: Timestamp) {
        self.at = self.at.min(at);
        self.latest = self.latest.min(latest(end, at)).max(self.at);
        self.seen.insert(end.seen);
        self.exit_code = self.exit_code.or(end.exit_code);
        self.signal = self.signal.or(end.signal);
        if self.reason.is_empty() {
            self.reason = clip(&end.reason);
        }
        if self.evicted_by.is_none() {
            (self.evicted_by, self.evicted_at) = (end.evicted_by, end.evicted_at);
        }
        if self.container_id.is_none() {
            self.container_id = end.container_id.as_deref().map(clip);
        }
    }

    /// Returns whether a record dated `at` belongs to this termination.
    pub(super) fn is_same(&self, end: &ContainerEnded, at: Timestamp) -> bool {
        match (self.container_id.as_deref(), end.container_id.as_deref()) {
            (Some(known), Some(other)) => known == clipped(other),
            _ => {
                let distance = (at.as_nanosecond() - self.at.as_nanosecond()).abs();
                *self.container == *clipped(&end.container) && distance <= SAME_NANOS
            }
        }
    }
}

fn latest(end: &ContainerEnded, at: Timestamp) -> Timestamp {
    match end.seen {
        TerminationSource::Status => later(at, API_RESOLUTION),
        TerminationSource::Cgroup | TerminationSource::Process => at,
    }
}

/// How long before a termination a kill may have been its cause, if no record names the container's instance
/// or the victim's role.
const NEAR_NANOS: i128 = 10_000_000_000;

/// As [`NEAR_NANOS`], for an init process: with much memory to free, it takes long to exit.
const INIT_NEAR_NANOS: i128 = 30_000_000_000;

/// The tolerance for a change of the clock between a kill and the termination that it caused.
const SKEW_NANOS: i128 = 1_000_000_000;

/// The exit code of a process that SIGKILL ended: 128 + 9.
const EXIT_BY_KILL: i32 = 137;
const SIGKILL: i32 = 9;

/// Returns whether a process with this exit code or signal ended by SIGKILL, as far as that is known.
pub(super) fn is_sigkill(exit_code: Option<i32>, signal: Option<i32>) -> bool {
    signal.map_or(exit_code == Some(EXIT_BY_KILL), |signal| signal == SIGKILL)
}

impl TrackedEnd {
    /// Returns how a kill can have ended the container, if it can.
    fn explanation_by(&self, kill: &KillEntry) -> Option<Explanation> {
        if self.is_kill_of_init_process(kill) {
            return Some(Explanation::InitProcessKilled);
        }
        if kill.consumed || !self.is_near(kill, NEAR_NANOS) {
            return None;
        }
        let is_inside = self.contains_victim_of(kill);
        match kill.victim {
            _ if is_inside && kill.oom_group.is_some() => Some(Explanation::GroupKilled),
            OomVictimRole::Unknown if self.may_contain_victim_of(kill) => Some(Explanation::ProcessKilled),
            OomVictimRole::Child if is_inside => Some(Explanation::ChildKilled),
            _ => None,
        }
    }

    /// Returns whether the kill is that of the init process that ended.
    fn is_kill_of_init_process(&self, kill: &KillEntry) -> bool {
        let named = self.container_id.is_some() && self.container_id == kill.container_id;
        kill.victim == OomVictimRole::Init
            && !kill.consumed
            && self.contains_victim_of(kill)
            && (named && self.is_not_before_kill(kill) || self.is_near(kill, INIT_NEAR_NANOS))
    }

    /// Returns whether the victim was in this container, and in this instance of it as far as that is known.
    fn contains_victim_of(&self, kill: &KillEntry) -> bool {
        match (&self.container_id, &kill.container_id) {
            (Some(own), Some(victims)) => own == victims,
            _ => kill.container.as_deref() == Some(&*self.container),
        }
    }

    /// Returns whether the victim of a kill that is reported after the termination was in this container.
    pub(super) fn contained_victim_of(&self, kill: &KillEntry) -> bool {
        let are_instances_known = self.container_id.is_some() && kill.container_id.is_some();
        self.contains_victim_of(kill) && (are_instances_known || kill.at <= self.at)
    }

    fn contains_any_victim_of(&self, kills: &[KillEntry]) -> bool {
        kills.iter().any(|kill| !kill.consumed && self.contains_victim_of(kill))
    }

    /// As [`Self::contains_victim_of`]. In addition, a victim whose container is unknown may have been in this
    /// one if the container ended by SIGKILL.
    pub(super) fn may_contain_victim_of(&self, kill: &KillEntry) -> bool {
        let is_unlocated = kill.container.is_none() && kill.container_id.is_none();
        self.contains_victim_of(kill) || (is_unlocated && self.ended_by_sigkill())
    }

    /// Returns whether the init process ended by SIGKILL, as far as that is known.
    pub(super) fn ended_by_sigkill(&self) -> bool {
        is_sigkill(self.exit_code, self.signal)
    }

    fn is_not_before_kill(&self, kill: &KillEntry) -> bool {
        kill.at.as_nanosecond() <= self.latest.as_nanosecond() + SKEW_NANOS
    }

    fn is_near(&self, kill: &KillEntry, nanos: i128) -> bool {
        self.is_not_before_kill(kill) && self.at.as_nanosecond() - kill.at.as_nanosecond() <= nanos
    }
}

/// Returns the causes of a termination in order of time, never an empty list. Kills among them become
/// *consumed*: they explain no later termination. `eviction`: the one that may have ended the container.
pub(super) fn attribute(
    end: &TrackedEnd,
    kills: &mut [KillEntry],
    eviction: Option<&StartedEviction>,
) -> Vec<AttributedCause> {
    let mut causes = Vec::new();
    causes.extend(evicted_by_agent(end, eviction));
    if end.evicted_by == Some(Evictor::Kubelet) {
        let (cause, explanation) = (TerminationCause::EvictedByKubelet, Explanation::EvictionOnRecord);
        causes.push(AttributedCause::new(cause, explanation, end.evicted_at));
    }
    let evicted = !causes.is_empty();
    causes.extend(oom(end, kills, evicted));
    // A cause without a time, the kubelet's record, goes last.
    causes.sort_by_key(|cause| (cause.at.is_none(), cause.at, cause.cause));
    if causes.is_empty() {
        causes.push(AttributedCause::new(TerminationCause::Other, other(end, kills), None));
    }
    // Kills in the terminated container are no cause of later terminations.
    for kill in kills.iter_mut().filter(|kill| end.contains_victim_of(kill) && kill.at <= end.latest) {
        kill.consumed = true;
    }
    causes
}

/// Returns whether no further record of a termination has to be waited for.
pub(super) fn is_complete(end: &TrackedEnd, kills: &[KillEntry]) -> bool {
    end.seen.contains(&TerminationSource::Status)
        && kills.iter().any(|kill| end.is_kill_of_init_process(kill))
}

fn evicted_by_agent(end: &TrackedEnd, eviction: Option<&StartedEviction>) -> Option<AttributedCause> {
    let (explanation, at) = match eviction {
        Some(started) => (Explanation::EvictionInProgress, Some(started.at)),
        None if end.evicted_by == Some(Evictor::Agent) => (Explanation::EvictionOnRecord, end.evicted_at),
        None => return None,
    };
    Some(AttributedCause::new(TerminationCause::EvictedByAgent, explanation, at))
}

fn oom(end: &TrackedEnd, kills: &mut [KillEntry], evicted: bool) -> Option<AttributedCause> {
    // An eviction explains a failure. A simultaneous kill of a child is reported, but did not end the container.
    let failed = end.exit_code != Some(0);
    let counts = |explanation: &Explanation| match explanation {
        Explanation::ProcessKilled => failed,
        Explanation::ChildKilled => failed && !evicted,
        _ => true,
    };
    let explained =
        kills.iter_mut().rev().filter_map(|kill| Some((end.explanation_by(kill).filter(counts)?, kill)));
    // Of several kills with the same explanation, the last one counts.
    if let Some((explanation, kill)) = explained.min_by_key(|(explanation, _)| *explanation) {
        kill.consumed = true;
        return Some(AttributedCause::oom_killed(explanation, Some(kill.at), kill.limit_scope));
    }
    let status_says_oom = &*end.reason == OOM_KILLED && !end.contains_any_victim_of(kills);
    status_says_oom
        .then(|| AttributedCause::oom_killed(Explanation::RuntimeReported, None, LimitScope::Unknown))
}

fn other(end: &TrackedEnd, kills: &[KillEntry]) -> Explanation {
    if &*end.reason == OOM_KILLED && end.contains_any_victim_of(kills) {
        return Explanation::OnlyAChildLongBefore;
    }
    if end.ended_by_sigkill() {
        Explanation::KilledByOtherProcess
    } else if end.signal.is_some() || end.exit_code.is_some() {
        Explanation::Exited
    } else {
        Explanation::Unexplained
    }
}
