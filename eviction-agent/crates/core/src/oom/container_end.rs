//! The end of a container: an input of the engine.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A container ended. Several records may be about the same end, each with what its source knows:
/// the container's cgroup that went away, and the pod's status some seconds later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerEnded {
    /// When it ended, as near as the source knows; the API keeps whole seconds. If not known,
    /// when it was learned.
    pub at: Option<Timestamp>,
    /// Uid of the pod as the API has it.
    pub pod: Box<str>,
    /// Name of the container, else the start of its id.
    pub container: Box<str>,
    /// The runtime's id of it: a restarted container has another.
    pub instance: Option<Box<str>>,
    /// Where it was seen.
    pub seen: EndSeen,
    /// `state.terminated.exitCode`. A process that died by a signal has 128 and its number.
    pub exit_code: Option<i32>,
    /// The signal that its main process died by.
    pub signal: Option<i32>,
    /// `state.terminated.reason`, such as `OOMKilled`; empty if not known. It is the runtime's
    /// word, which says so as well when a child was killed long before.
    pub reason: Box<str>,
    /// What is on record to have evicted the pod. What the engine decided itself it knows anyway.
    pub evicted_by: Option<Evictor>,
    /// Since when that is on record.
    pub evicted_at: Option<Timestamp>,
}

/// Where the end of a container was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndSeen {
    /// The pod's status says so.
    #[default]
    Status,
    /// Its cgroup is gone.
    Cgroup,
    /// Its main process is gone.
    Process,
}

/// What evicted a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evictor {
    /// This agent, maybe before it was started anew.
    Agent,
    /// The kubelet: the pod's `status.reason` is `Evicted`.
    Kubelet,
}
