//! Why a container ended.
//!
//! The kernel's own record of a kill goes before what a runtime says: containerd and CRI-O
//! report `OOMKilled` for every container in whose cgroup the kernel ever killed a process, also
//! when it was a child hours ago and the main process ended of itself (containerd#8180).

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

use super::kill::LimitScope;
use super::pending::PendingEnd;
use super::pod::{KillEntry, StartedEviction};
use super::termination::{EndSeen, Evictor};

/// The reason that runtimes give.
pub(super) const OOM_KILLED: &str = "OOMKilled";

crate::named_enum! {
    /// What ended a container. Each end has exactly one cause.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TerminationCause {
        /// This agent evicted its pod.
        EvictedByAgent = "evicted_by_agent",
        /// The kubelet evicted its pod.
        EvictedByKubelet = "evicted_by_kubelet",
        /// The kernel killed it for want of memory.
        OomKilled = "oom_killed",
        /// Neither: it ended of itself, or somebody else ended it.
        Other = "other",
    }
}

/// Why a cause is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Explanation {
    /// The kernel killed its main process.
    MainProcessKilled,
    /// The kernel killed all processes of its group together.
    GroupKilled,
    /// Just before, the kernel killed a process of it, and it is unknown whether it was the init process.
    ProcessKilled,
    /// It failed just after the kernel had killed a child of its init process.
    ChildKilled,
    /// The runtime says so, and no kill was seen: it may have been before the agent came.
    RuntimeSays,
    /// The eviction was under way.
    EvictionUnderWay,
    /// The pod's status says so.
    EvictionOnRecord,
    /// The runtime says `OOMKilled`, but all that the kernel killed in it was a child, long before.
    OnlyAChildLongBefore,
    /// It died by SIGKILL, and it was not the kernel that sent it.
    KilledBySomebodyElse,
    /// It exited.
    Exited,
    /// It is gone, and no source says how.
    Unexplained,
}

impl Explanation {
    /// Whether it is a conclusion and not an observation.
    pub fn is_inferred(self) -> bool {
        matches!(self, Self::ProcessKilled | Self::ChildKilled | Self::RuntimeSays)
    }

    /// As a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::MainProcessKilled => "the kernel killed its init process",
            Self::GroupKilled => "the kernel killed all processes of its group together",
            Self::ProcessKilled => {
                "the kernel had just killed a process of it, and it is unknown whether it was the init process"
            }
            Self::ChildKilled => "it failed just after the kernel had killed a child of its init process",
            Self::RuntimeSays => "the runtime says so; no kill was seen",
            Self::EvictionUnderWay => "its eviction was under way",
            Self::EvictionOnRecord => "the pod's status says so",
            Self::OnlyAChildLongBefore => {
                "the runtime says OOMKilled, but the kernel had killed only a child, long before"
            }
            Self::KilledBySomebodyElse => "it died by SIGKILL, which was not sent by the kernel's OOM killer",
            Self::Exited => "it exited",
            Self::Unexplained => "it is gone, and no cause is known",
        }
    }
}

/// One reason why a container may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributedCause {
    /// Which.
    pub cause: TerminationCause,
    /// Why that is believed.
    pub explanation: Explanation,
    /// When it began, if known.
    pub at: Option<Timestamp>,
    /// Whose limit it was, for a kill.
    pub limit_scope: Option<LimitScope>,
}

impl AttributedCause {
    fn other(explanation: Explanation) -> Self {
        Self { cause: TerminationCause::Other, explanation, at: None, limit_scope: None }
    }
}

/// The causes of an end, the first one first; never none. Kills that were one are *spent*: they
/// explain no later end.
pub(super) fn attribute(
    end: &PendingEnd,
    kills: &mut [KillEntry],
    eviction: Option<StartedEviction>,
) -> Vec<AttributedCause> {
    let mut causes = Vec::new();
    causes.extend(evicted_by_agent(end, eviction));
    if end.evicted_by == Some(Evictor::Kubelet) {
        causes.push(on_record(TerminationCause::EvictedByKubelet, end));
    }
    let evicted = !causes.is_empty();
    causes.extend(oom(end, kills, evicted));
    // What is not dated, the kubelet's record, goes last.
    causes.sort_by_key(|cause| (cause.at.is_none(), cause.at));
    if causes.is_empty() {
        causes.push(AttributedCause::other(other(end, kills)));
    }
    // Whatever was killed in what has ended is no cause of what comes after.
    for kill in kills.iter_mut().filter(|kill| end.is_of_it(kill) && kill.at <= end.latest) {
        kill.spent = true;
    }
    causes
}

/// Whether the records of an end leave nothing to wait for.
pub(super) fn is_complete(end: &PendingEnd, kills: &[KillEntry]) -> bool {
    end.seen.contains(&EndSeen::Status) && kills.iter().any(|kill| end.main_killed(kill))
}

fn evicted_by_agent(end: &PendingEnd, eviction: Option<StartedEviction>) -> Option<AttributedCause> {
    if let Some(started) = eviction.filter(|started| started.covers(end.at, end.latest)) {
        let (cause, explanation) = (TerminationCause::EvictedByAgent, Explanation::EvictionUnderWay);
        return Some(AttributedCause { cause, explanation, at: Some(started.at), limit_scope: None });
    }
    (end.evicted_by == Some(Evictor::Agent)).then(|| on_record(TerminationCause::EvictedByAgent, end))
}

fn on_record(cause: TerminationCause, end: &PendingEnd) -> AttributedCause {
    let explanation = Explanation::EvictionOnRecord;
    AttributedCause { cause, explanation, at: end.evicted_at, limit_scope: None }
}

fn oom(end: &PendingEnd, kills: &mut [KillEntry], evicted: bool) -> Option<AttributedCause> {
    // An eviction explains a failure; a child's kill beside it is reported, but ended nothing.
    let failed = end.exit_code != Some(0);
    let explanations = [
        (Explanation::MainProcessKilled, true),
        (Explanation::GroupKilled, true),
        (Explanation::ProcessKilled, failed),
        (Explanation::ChildKilled, failed && !evicted),
    ];
    for (explanation, _) in explanations.into_iter().filter(|(_, may)| *may) {
        if let Some(kill) = kills.iter_mut().rev().find(|kill| end.is_by(kill, explanation)) {
            kill.spent = true;
            return Some(AttributedCause {
                cause: TerminationCause::OomKilled,
                explanation,
                at: Some(kill.at),
                limit_scope: Some(kill.limit_scope),
            });
        }
    }
    let says_so = &*end.reason == OOM_KILLED && !end.any_of_it(kills);
    says_so.then_some(AttributedCause {
        cause: TerminationCause::OomKilled,
        explanation: Explanation::RuntimeSays,
        at: None,
        limit_scope: Some(LimitScope::Unknown),
    })
}

fn other(end: &PendingEnd, kills: &[KillEntry]) -> Explanation {
    if &*end.reason == OOM_KILLED && end.any_of_it(kills) {
        return Explanation::OnlyAChildLongBefore;
    }
    if end.died_by_kill() {
        Explanation::KilledBySomebodyElse
    } else if end.signal.is_some() || end.exit_code.is_some() {
        Explanation::Exited
    } else {
        Explanation::Unexplained
    }
}
