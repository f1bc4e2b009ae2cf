//! The cause of a container's termination.
//!
//! The kernel's record of a kill takes precedence over the runtime's reason: containerd and CRI-O report
//! `OOMKilled` for every container in whose cgroup the kernel ever killed a process, even if that was a child
//! hours ago and the init process ended by itself (containerd#8180).

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

use super::kill::LimitScope;
use super::pending::PendingEnd;
use super::pod::{KillEntry, StartedEviction};
use super::termination::{EndSeen, Evictor};

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

/// Returns the causes of a termination in order of time, never an empty list. Kills among them become
/// *consumed*: they explain no later termination. `eviction`: the one that may have ended the container.
pub(super) fn attribute(
    end: &PendingEnd,
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
pub(super) fn is_complete(end: &PendingEnd, kills: &[KillEntry]) -> bool {
    end.seen.contains(&EndSeen::Status) && kills.iter().any(|kill| end.is_kill_of_init_process(kill))
}

fn evicted_by_agent(end: &PendingEnd, eviction: Option<&StartedEviction>) -> Option<AttributedCause> {
    let (explanation, at) = match eviction {
        Some(started) => (Explanation::EvictionInProgress, Some(started.at)),
        None if end.evicted_by == Some(Evictor::Agent) => (Explanation::EvictionOnRecord, end.evicted_at),
        None => return None,
    };
    Some(AttributedCause::new(TerminationCause::EvictedByAgent, explanation, at))
}

fn oom(end: &PendingEnd, kills: &mut [KillEntry], evicted: bool) -> Option<AttributedCause> {
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

fn other(end: &PendingEnd, kills: &[KillEntry]) -> Explanation {
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
