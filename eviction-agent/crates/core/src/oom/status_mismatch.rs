//! Compares a container's own status with the cause that was found for its termination.
//!
//! The cause joins the kernel's kills, the agent's evictions and the pod's status, and waits for each
//! of them up to ten seconds. A status that comes later changes no cause; it is compared all the same, for ten minutes.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cause::{Explanation, TerminationCause};
use super::container_end::{ContainerEnded, EndSeen};
use super::termination::{ContainerRef, ContainerTerminated, Evidence, words};
use crate::time::{Timestamp, since};

/// Terminations that wait for a status; one more drops the oldest.
const OPEN: usize = 256;

/// How long they do: after that the pod's object is gone, or nothing asks any more.
const WAIT_NANOS: i64 = 600_000_000_000;

/// The reason that runtimes give.
const OOM_KILLED: &str = "OOMKilled";

/// Exit code of a process that died by SIGKILL: 128 + 9.
const EXIT_BY_KILL: i32 = 137;
const SIGKILL: i32 = 9;

/// How a status and a cause differ, or what in the status is easily taken for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MismatchKind {
    /// `OOMKilled`, and no kill was seen.
    NoKillSeen,
    /// `OOMKilled`, but what was killed was a child; the init process survived it.
    OnlyAChildKilled,
    /// The kernel killed it, and the status says something else.
    KillNotInStatus,
    /// A child was killed, of which the status says nothing.
    ChildNotInStatus,
    /// Exit code 137, which was the end of an eviction's grace period and no OOM kill.
    KilledByEviction,
    /// Exit code 137, which was no OOM kill.
    KilledByOtherProcess,
}

/// The two fields that event lines have of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedMismatch {
    mismatch: MismatchKind,
    mismatch_explanation: &'static str,
}

impl MismatchKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 6] = [
        Self::NoKillSeen,
        Self::OnlyAChildKilled,
        Self::KillNotInStatus,
        Self::ChildNotInStatus,
        Self::KilledByEviction,
        Self::KilledByOtherProcess,
    ];

    /// As metrics and lines write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoKillSeen => "no_kill_seen",
            Self::OnlyAChildKilled => "only_a_child_killed",
            Self::KillNotInStatus => "kill_not_in_status",
            Self::ChildNotInStatus => "child_not_in_status",
            Self::KilledByEviction => "killed_by_eviction",
            Self::KilledByOtherProcess => "killed_by_other_process",
        }
    }

    /// As a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoKillSeen => "the status says OOMKilled, but no kill by the kernel was seen",
            Self::OnlyAChildKilled => {
                "the status says OOMKilled, but the kernel had killed only a child, and the main process survived it"
            }
            Self::KillNotInStatus => "the kernel's OOM killer killed it, which the status does not say",
            Self::ChildNotInStatus => {
                "the kernel's OOM killer had killed a child, which the status does not say; the main process survived it"
            }
            Self::KilledByEviction => "exit code 137 is the eviction's SIGKILL and no OOM kill",
            Self::KilledByOtherProcess => {
                "exit code 137 is a SIGKILL that was not sent by the kernel's OOM killer"
            }
        }
    }

    /// With its sentence.
    pub fn explained(self) -> ExplainedMismatch {
        ExplainedMismatch { mismatch: self, mismatch_explanation: self.text() }
    }
}

/// A status that came late and differs. The JSON form is that of the event line `container_status_mismatch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerStatusMismatch {
    /// The container.
    #[serde(flatten)]
    pub container: ContainerRef,
    /// The cause that was found.
    pub cause: TerminationCause,
    /// How the status differs.
    #[serde(flatten, serialize_with = "write_explained")]
    pub mismatch: MismatchKind,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn write_explained<S: serde::Serializer>(mismatch: &MismatchKind, serializer: S) -> Result<S::Ok, S::Error> {
    mismatch.explained().serialize(serializer)
}

impl fmt::Display for ContainerStatusMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (container, cause, text) = (&self.container, words(self.cause), self.mismatch.text());
        write!(f, "{container} terminated: {cause}; its status came later and differs: {text}")
    }
}

/// Terminations whose status has not come yet.
#[derive(Clone, Debug, Default)]
pub struct StatusMismatch {
    open: VecDeque<AwaitedStatus>,
    unmatched: u64,
}

#[derive(Clone, Debug)]
struct AwaitedStatus {
    /// When it began to be awaited.
    at: Timestamp,
    terminated: ContainerTerminated,
}

impl StatusMismatch {
    /// Takes in a termination. Returns how the status differs from its cause, if that is known already.
    pub fn terminated(&mut self, now: Timestamp, terminated: &ContainerTerminated) -> Option<MismatchKind> {
        self.forget(now);
        if terminated.evidence.iter().any(|it| matches!(it, Evidence::Ended { seen: EndSeen::Status })) {
            let ContainerTerminated { reason, exit_code, exit_signal, .. } = terminated;
            return compare(terminated, reason, *exit_code, *exit_signal);
        }
        if self.open.len() >= OPEN {
            self.open.pop_front();
            self.unmatched = self.unmatched.saturating_add(1);
        }
        self.open.push_back(AwaitedStatus { at: now, terminated: terminated.clone() });
        None
    }

    /// Takes in a status that came after the cause was found. Returns how it differs, once for each termination.
    pub fn status(&mut self, now: Timestamp, end: &ContainerEnded) -> Option<ContainerStatusMismatch> {
        self.forget(now);
        if end.seen != EndSeen::Status {
            return None;
        }
        let index = self.open.iter().position(|open| is_of(&open.terminated, end))?;
        let AwaitedStatus { at: _, terminated } = self.open.remove(index)?;
        let mismatch = compare(&terminated, &end.reason, end.exit_code, end.signal)?;
        let cause = terminated.cause();
        Some(ContainerStatusMismatch { container: terminated.container, cause, mismatch })
    }

    /// Terminations to which no status ever came.
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// Terminations that wait for a status.
    pub fn waiting(&self) -> usize {
        self.open.len()
    }

    fn forget(&mut self, now: Timestamp) {
        let before = self.open.len();
        self.open.retain(|open| since(now, open.at).as_nanos() < WAIT_NANOS);
        self.unmatched = self.unmatched.saturating_add((before - self.open.len()) as u64);
    }
}

/// Records of a container without an id are of the same termination if they are no further apart than two seconds,
/// as for the cause itself.
fn is_of(terminated: &ContainerTerminated, end: &ContainerEnded) -> bool {
    const SAME_NANOS: i128 = 2_000_000_000;
    let container = &terminated.container;
    let is_same = match (&container.id, &end.instance) {
        (Some(one), Some(other)) => one == other,
        _ => {
            let distance = end.at.map(|at| at.as_nanosecond() - terminated.finished_at.as_nanosecond());
            container.name == end.container && distance.is_none_or(|it| it.abs() <= SAME_NANOS)
        }
    };
    container.pod_uid == end.pod && is_same
}

/// How a status (`state.terminated`) differs from what was found.
fn compare(
    found: &ContainerTerminated,
    reason: &str,
    exit_code: Option<i32>,
    signal: Option<i32>,
) -> Option<MismatchKind> {
    let says_oom = reason == OOM_KILLED;
    let by_sigkill = signal.map_or(exit_code == Some(EXIT_BY_KILL), |signal| signal == SIGKILL);
    let evicted = [TerminationCause::EvictedByAgent, TerminationCause::EvictedByKubelet];
    let evicted = found.causes.iter().any(|it| evicted.contains(&it.cause));
    let oom_killed = found
        .causes
        .iter()
        .any(|it| it.cause == TerminationCause::OomKilled && it.explanation != Explanation::RuntimeSays);
    let any_kill = found.evidence.iter().any(|it| matches!(it, Evidence::KernelKills(_)));
    match (says_oom, oom_killed, any_kill) {
        (true, true, _) => None,
        (true, false, true) => Some(MismatchKind::OnlyAChildKilled),
        (true, false, false) => Some(MismatchKind::NoKillSeen),
        (false, true, _) => Some(MismatchKind::KillNotInStatus),
        (false, false, _) if by_sigkill && evicted => Some(MismatchKind::KilledByEviction),
        (false, false, _) if by_sigkill => Some(MismatchKind::KilledByOtherProcess),
        (false, false, true) => Some(MismatchKind::ChildNotInStatus),
        (false, false, false) => None,
    }
}
