//! Compares a container's own status with the cause that was found for its termination.
//!
//! The cause combines the kernel's kills, the agent's evictions and the pod's status, and waits up to ten
//! seconds for each of them. A status that arrives later does not change the cause, but is still compared.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::cause::{AttributedCause, Explanation, OOM_KILLED, TerminationCause};
use super::termination::{ContainerRef, cause_text};

crate::named_enum! {
    /// How a status differs from a cause, or what in the status is easily misread.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MismatchKind {
        /// The status is `OOMKilled`, but no kill was seen.
        NoKillSeen = "no_kill_seen",
        /// The status is `OOMKilled`, but only a child was killed, and the init process survived.
        OnlyAChildKilled = "only_a_child_killed",
        /// The kernel killed the container, but the status has another reason.
        KillNotInStatus = "kill_not_in_status",
        /// A child was killed, which the status does not show.
        ChildNotInStatus = "child_not_in_status",
        /// The exit code is 137, but it comes from the end of an eviction's grace period and not from an OOM kill.
        KilledByEviction = "killed_by_eviction",
        /// The exit code is 137, but it does not come from an OOM kill.
        KilledByOtherProcess = "killed_by_other_process",
    }
}

impl MismatchKind {
    /// Returns how a status (`state.terminated`) with this reason differs from the causes that were found.
    /// `any_kill`: whether the kernel was seen to kill any process of the container. `by_sigkill`: whether the
    /// container ended by SIGKILL according to its status.
    pub(super) fn of(
        causes: &[AttributedCause],
        any_kill: bool,
        reason: &str,
        by_sigkill: bool,
    ) -> Option<Self> {
        let is_eviction = |it: &AttributedCause| {
            matches!(it.cause, TerminationCause::EvictedByAgent | TerminationCause::EvictedByKubelet)
        };
        let is_seen_kill = |it: &AttributedCause| {
            it.cause == TerminationCause::OomKilled && it.explanation != Explanation::RuntimeReported
        };
        match (reason == OOM_KILLED, causes.iter().any(is_seen_kill), any_kill) {
            (true, true, _) => None,
            (true, false, true) => Some(Self::OnlyAChildKilled),
            (true, false, false) => Some(Self::NoKillSeen),
            (false, true, _) => Some(Self::KillNotInStatus),
            (false, false, _) if by_sigkill && causes.iter().any(is_eviction) => Some(Self::KilledByEviction),
            (false, false, _) if by_sigkill => Some(Self::KilledByOtherProcess),
            (false, false, true) => Some(Self::ChildNotInStatus),
            (false, false, false) => None,
        }
    }

    /// Returns the mismatch as a sentence.
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
}

/// Writes the name of the mismatch, and the sentence.
impl Serialize for MismatchKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("MismatchKind", 2)?;
        fields.serialize_field("mismatch", self.name())?;
        fields.serialize_field("mismatch_explanation", self.text())?;
        fields.end()
    }
}

/// A status that arrived late and differs from the cause. The JSON form is that of the event line
/// `container_status_mismatch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerStatusMismatch {
    /// The container.
    #[serde(flatten)]
    pub container: ContainerRef,
    /// The cause that was found.
    pub cause: TerminationCause,
    /// How the status differs.
    #[serde(flatten)]
    pub mismatch: MismatchKind,
}

impl fmt::Display for ContainerStatusMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (container, cause, text) = (&self.container, cause_text(self.cause), self.mismatch.text());
        write!(f, "{container} terminated: {cause}; its status came later and differs: {text}")
    }
}
