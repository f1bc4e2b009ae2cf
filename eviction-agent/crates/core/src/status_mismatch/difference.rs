//! By what a container's status and the verdict on its end differ.

use serde::{Deserialize, Serialize};

/// The reason that runtimes give.
const OOM_KILLED: &str = "OOMKilled";

/// Exit code of a process that died by SIGKILL: 128 + 9.
const EXIT_BY_KILL: i32 = 137;
const SIGKILL: i32 = 9;

/// By what they differ, or what in the status is easily taken for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MismatchKind {
    /// `OOMKilled`, and no kill was seen.
    NoKillSeen,
    /// `OOMKilled`, but what was killed was a child; the main process survived it.
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

impl MismatchKind {
    /// All of them, in the order of their places.
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

    /// For people.
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

/// What the verdict stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CauseBasis {
    /// An eviction had a part in the end.
    pub(super) evicted: bool,
    /// A kill by the kernel that was seen had.
    pub(super) oom_killed: bool,
    /// The kernel killed something of it, whether it ended by that or not.
    pub(super) any_kill: bool,
}

/// What the status says: `state.terminated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminatedStatus {
    says_oom: bool,
    by_kill: bool,
}

impl TerminatedStatus {
    pub(super) fn of(reason: &str, exit_code: Option<i32>, signal: Option<i32>) -> Self {
        let by_kill = match signal {
            Some(signal) => signal == SIGKILL,
            None => exit_code == Some(EXIT_BY_KILL),
        };
        Self { says_oom: reason == OOM_KILLED, by_kill }
    }
}

impl CauseBasis {
    /// By what the status differs.
    pub(super) fn compare(self, word: &TerminatedStatus) -> Option<MismatchKind> {
        let Self { evicted, oom_killed, any_kill } = self;
        match (word.says_oom, oom_killed, any_kill) {
            (true, true, _) => None,
            (true, false, true) => Some(MismatchKind::OnlyAChildKilled),
            (true, false, false) => Some(MismatchKind::NoKillSeen),
            (false, true, _) => Some(MismatchKind::KillNotInStatus),
            (false, false, _) if word.by_kill && evicted => Some(MismatchKind::KilledByEviction),
            (false, false, _) if word.by_kill => Some(MismatchKind::KilledByOtherProcess),
            (false, false, true) => Some(MismatchKind::ChildNotInStatus),
            (false, false, false) => None,
        }
    }
}
