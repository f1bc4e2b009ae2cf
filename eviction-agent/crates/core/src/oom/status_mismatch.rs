//! Compares a container's own status with the cause that was found for its termination.
//!
//! The cause joins the kernel's kills, the agent's evictions and the pod's status, and waits for each
//! of them up to ten seconds. A status that comes later changes no cause; it is compared all the same.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cause::{AttributedCause, Explanation, OOM_KILLED, TerminationCause};
use super::pending::{EXIT_BY_KILL, SIGKILL};
use super::termination::{ContainerRef, Evidence, words};

crate::named_enum! {
    /// How a status and a cause differ, or what in the status is easily taken for something else.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MismatchKind {
        /// `OOMKilled`, and no kill was seen.
        NoKillSeen = "no_kill_seen",
        /// `OOMKilled`, but what was killed was a child; the init process survived it.
        OnlyAChildKilled = "only_a_child_killed",
        /// The kernel killed it, and the status says something else.
        KillNotInStatus = "kill_not_in_status",
        /// A child was killed, of which the status says nothing.
        ChildNotInStatus = "child_not_in_status",
        /// Exit code 137, which was the end of an eviction's grace period and no OOM kill.
        KilledByEviction = "killed_by_eviction",
        /// Exit code 137, which was no OOM kill.
        KilledByOtherProcess = "killed_by_other_process",
    }
}

/// The two fields that event lines have of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedMismatch {
    mismatch: MismatchKind,
    mismatch_explanation: &'static str,
}

impl MismatchKind {
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

/// What was found about a termination, as far as its status is compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundCause {
    /// The cause.
    pub(super) cause: TerminationCause,
    /// An eviction had a part in it.
    evicted: bool,
    /// The kernel was seen to kill it.
    oom_killed: bool,
    /// The kernel was seen to kill any process of it.
    any_kill: bool,
}

impl FoundCause {
    pub(super) fn of(causes: &[AttributedCause], evidence: &[Evidence]) -> Self {
        let any = |is_it: fn(&AttributedCause) -> bool| causes.iter().any(is_it);
        Self {
            cause: causes.first().map_or(TerminationCause::Other, |first| first.cause),
            evicted: any(|it| {
                matches!(it.cause, TerminationCause::EvictedByAgent | TerminationCause::EvictedByKubelet)
            }),
            oom_killed: any(|it| {
                it.cause == TerminationCause::OomKilled && it.explanation != Explanation::RuntimeSays
            }),
            any_kill: evidence.iter().any(|it| matches!(it, Evidence::KernelKills(_))),
        }
    }

    /// How a status (`state.terminated`) differs from what was found.
    pub(super) fn compare(
        self,
        reason: &str,
        exit_code: Option<i32>,
        signal: Option<i32>,
    ) -> Option<MismatchKind> {
        let says_oom = reason == OOM_KILLED;
        let by_sigkill = signal.map_or(exit_code == Some(EXIT_BY_KILL), |signal| signal == SIGKILL);
        match (says_oom, self.oom_killed, self.any_kill) {
            (true, true, _) => None,
            (true, false, true) => Some(MismatchKind::OnlyAChildKilled),
            (true, false, false) => Some(MismatchKind::NoKillSeen),
            (false, true, _) => Some(MismatchKind::KillNotInStatus),
            (false, false, _) if by_sigkill && self.evicted => Some(MismatchKind::KilledByEviction),
            (false, false, _) if by_sigkill => Some(MismatchKind::KilledByOtherProcess),
            (false, false, true) => Some(MismatchKind::ChildNotInStatus),
            (false, false, false) => None,
        }
    }
}
