//! A terminated container, the cause, and how the container's own status differs from it: parts of decisions
//! and records, and event lines.
//!
//! The cause combines the kernel's kills, the agent's evictions and the pod's status, and waits up to ten
//! seconds for each of them. A status that arrives later does not change the cause, but is still compared.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use super::cause::{AttributedCause, Explanation, OOM_KILLED, TerminationCause};
use super::kill::LimitScope;
use super::pod::KillEntry;
use crate::nullable::is_zero;
use crate::pod::PodRef;
use crate::time::Timestamp;

/// A container, by its pod, name and id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerRef {
    /// The pod of the container, if the engine knows it.
    #[serde(flatten)]
    pub pod: Option<PodRef>,
    /// The UID of the pod.
    pub pod_uid: Box<str>,
    /// The name of the container, or the start of its id.
    #[serde(rename = "container")]
    pub name: Box<str>,
    /// The runtime's id of the container.
    #[serde(rename = "container_id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<str>>,
}

impl fmt::Display for ContainerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, pod_uid, name, id: _ } = self;
        match pod {
            Some(pod) => write!(f, "container {name} of {pod}"),
            None => write!(f, "container {name} of {pod_uid}"),
        }
    }
}

/// A terminated container and the cause. The JSON form is that of the event line `container_terminated`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerTerminated {
    /// The container.
    #[serde(flatten)]
    pub container: ContainerRef,
    /// The cause of the termination.
    pub cause: TerminationCause,
    /// The explanation of the cause.
    #[serde(serialize_with = "write_sentence")]
    pub explanation: Explanation,
    /// Whether the cause was inferred and not observed.
    pub inferred: bool,
    /// What else happened to the container before it terminated, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contributing: Vec<TerminationCause>,
    /// The scope of the memory limit, if an OOM kill is among the causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_scope: Option<LimitScope>,
    /// When the container terminated, as precisely as is known.
    pub finished_at: Timestamp,
    /// The exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the init process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<i32>,
    /// `state.terminated.reason`; empty if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Box<str>,
    /// How the container's status differs from the cause, if the status is known and differs.
    #[serde(flatten)]
    pub mismatch: Option<MismatchKind>,
    /// The evidence of the termination, in order of time: at most [`LISTED`](super::LISTED) observations.
    pub evidence: Vec<Evidence>,
    /// The number of observations that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub evidence_omitted: usize,
}

/// An observation about a termination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The engine decided to evict the pod.
    AgentEvicts {
        /// The time of the decision.
        at: Timestamp,
    },
    /// The kernel killed a process that was, or may have been, in the container.
    KernelKills(Box<KillEntry>),
    /// The eviction of the pod is on record.
    EvictionOnRecord {
        /// The evictor.
        by: Evictor,
        /// Since when the eviction is on record.
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
    },
    /// The termination was observed.
    Ended {
        /// Where it was observed.
        seen: TerminationSource,
    },
}

impl Evidence {
    /// Returns the time of the observation, if it is known.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::AgentEvicts { at } => Some(*at),
            Self::KernelKills(kill) => Some(kill.at),
            Self::EvictionOnRecord { at, .. } => *at,
            Self::Ended { .. } => None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn write_sentence<S: Serializer>(explanation: &Explanation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(explanation.text())
}

impl fmt::Display for ContainerTerminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} terminated: {}", self.container, cause_text(self.cause))?;
        if let Some(scope) = self.limit_scope.filter(|_| self.cause == TerminationCause::OomKilled) {
            write!(f, " at the limit of the {}", scope.name())?;
        }
        write!(f, ", {}", self.explanation.text())?;
        match (self.exit_code, self.exit_signal) {
            (Some(code), _) => write!(f, "; exit code {code}")?,
            (None, Some(signal)) => write!(f, "; signal {signal}")?,
            (None, None) => {}
        }
        if !self.reason.is_empty() {
            write!(f, "; status reason {}", self.reason)?;
        }
        let contributing: Vec<_> = self.contributing.iter().copied().map(cause_text).collect();
        if !contributing.is_empty() {
            write!(f, "; contributing: {}", contributing.join(", "))?;
        }
        match self.mismatch {
            Some(mismatch) => write!(f, "; {}", mismatch.text()),
            None => Ok(()),
        }
    }
}

/// Returns the name of a cause with spaces.
fn cause_text(cause: TerminationCause) -> String {
    cause.name().replace('_', " ")
}

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

/// A container terminated. Several records may be about the same termination, each with what its source
/// knows: the removal of the container's cgroup, and the pod's status some seconds later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerEnded {
    /// When the container terminated, as precisely as the source knows. Times in the API have whole seconds.
    /// If it is not known, the time of the input counts.
    pub at: Option<Timestamp>,
    /// The UID of the pod in the API.
    pub pod_uid: Box<str>,
    /// The name of the container, or the start of its id.
    pub container: Box<str>,
    /// The runtime's id of the container. A restarted container has another id.
    pub container_id: Option<Box<str>>,
    /// Where the termination was observed.
    pub seen: TerminationSource,
    /// `state.terminated.exitCode`. For a process that a signal ended, it is 128 plus the number of the signal.
    pub exit_code: Option<i32>,
    /// The signal that ended the init process.
    pub signal: Option<i32>,
    /// `state.terminated.reason`, such as `OOMKilled`; empty if unknown. The runtime also reports `OOMKilled`
    /// if only a child was killed, long before.
    pub reason: Box<str>,
    /// What has evicted the pod, if that is on record. The engine knows its own decisions anyway.
    pub evicted_by: Option<Evictor>,
    /// Since when the eviction is on record.
    pub evicted_at: Option<Timestamp>,
}

/// Where the termination of a container was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminationSource {
    /// In the pod's status.
    #[default]
    Status,
    /// The container's cgroup was removed.
    Cgroup,
    /// The init process has exited.
    Process,
}

/// What evicted a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evictor {
    /// This agent, possibly before a restart.
    Agent,
    /// The kubelet: the pod's `status.reason` is `Evicted`.
    Kubelet,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminated() -> ContainerTerminated {
        ContainerTerminated {
            container: ContainerRef {
                pod: Some(PodRef::new("shop", "web")),
                pod_uid: "u".into(),
                name: "app".into(),
                id: Some("4f1c".into()),
            },
            cause: TerminationCause::OomKilled,
            explanation: Explanation::InitProcessKilled,
            inferred: false,
            contributing: Vec::new(),
            limit_scope: Some(LimitScope::Pod),
            finished_at: Timestamp::UNIX_EPOCH,
            exit_code: None,
            exit_signal: Some(9),
            reason: "".into(),
            mismatch: None,
            evidence: vec![Evidence::Ended { seen: TerminationSource::Process }],
            evidence_omitted: 0,
        }
    }

    #[test]
    fn termination_is_written_in_one_line() {
        let mut ended = terminated();
        assert_eq!(
            ended.to_string(),
            "container app of shop/web terminated: oom killed at the limit of the pod, the kernel killed its init process; signal 9"
        );
        ended.cause = TerminationCause::EvictedByAgent;
        ended.explanation = Explanation::EvictionInProgress;
        ended.contributing = vec![TerminationCause::OomKilled];
        (ended.exit_code, ended.reason) = (Some(137), "OOMKilled".into());
        assert_eq!(
            ended.to_string(),
            "container app of shop/web terminated: evicted by agent, its eviction was under way; exit code 137; status reason OOMKilled; contributing: oom killed"
        );
        (ended.cause, ended.explanation) = (TerminationCause::Other, Explanation::Exited);
        (ended.contributing, ended.limit_scope) = (Vec::new(), None);
        (ended.exit_code, ended.reason) = (Some(0), "OOMKilled".into());
        ended.mismatch = Some(MismatchKind::OnlyAChildKilled);
        assert_eq!(
            ended.to_string(),
            "container app of shop/web terminated: other, it exited; exit code 0; status reason OOMKilled; the status says OOMKilled, but the kernel had killed only a child, and the main process survived it"
        );
    }

    #[test]
    fn termination_json_matches_the_event_line() {
        let mut ended = terminated();
        let json = serde_json::to_string(&ended).unwrap();
        assert_eq!(
            json,
            r#"{"namespace":"shop","pod":"web","pod_uid":"u","container":"app","container_id":"4f1c","cause":"oom_killed","explanation":"the kernel killed its init process","inferred":false,"limit_scope":"pod","finished_at":"1970-01-01T00:00:00Z","exit_signal":9,"evidence":[{"ended":{"seen":"process"}}]}"#
        );
        ended.container.pod = None;
        ended.mismatch = Some(MismatchKind::NoKillSeen);
        ended.evidence_omitted = 2;
        let json = serde_json::to_value(&ended).unwrap();
        assert_eq!((json.get("pod"), json["mismatch"].as_str()), (None, Some("no_kill_seen")));
        assert_eq!(json["mismatch_explanation"], MismatchKind::NoKillSeen.text());
        assert_eq!(json["evidence_omitted"].as_u64(), Some(2));
    }
}
