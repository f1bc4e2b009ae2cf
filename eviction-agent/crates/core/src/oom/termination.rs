//! A terminated container and the cause: a part of decisions and records, and an event line.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::cause::{Explanation, TerminationCause};
use super::kill::LimitScope;
use super::pod::KillEntry;
use super::status_mismatch::MismatchKind;
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
        seen: EndSeen,
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
pub(super) fn cause_text(cause: TerminationCause) -> String {
    cause.name().replace('_', " ")
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
    pub seen: EndSeen,
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
pub enum EndSeen {
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
            evidence: vec![Evidence::Ended { seen: EndSeen::Process }],
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
