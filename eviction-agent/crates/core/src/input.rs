//! The inputs of the engine. Each input has its own time, which may repeat or go back.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use super::disk_layout::DiskLayout;
use super::in_flight::ExecutorUpdate;
use super::oom::{ContainerEnded, OomKill};
use super::pods::{KnownPod, PodSet};
use super::policy::Policy;
use super::reading::UnknownReason;
use super::snapshot::Snapshot;
use super::state::EngineState;
use super::time::Timestamp;
use crate::progress::NotEvicted;

/// An event and its time.
#[derive(Clone, Debug)]
pub struct Input {
    /// The time of the input.
    pub at: Timestamp,
    /// The event.
    pub event: Event,
}

/// What happened. Recordings use another form for pods and samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The state of the former agent, with times of this agent's clock. Must be the first event.
    Restore(Box<EngineState>),
    /// The uids of terminating pods that the API no longer has, but whose cgroups still have processes. Their
    /// resources are not free before they leave this list. Precedes the event with the pods.
    Terminating(Vec<Box<str>>),
    /// The active pods: those bound to the node that have not finished.
    #[serde(skip)]
    Pods(Arc<PodSet>),
    /// The layout of the node's file systems, or why it is unknown. Samples are not evaluated before it is
    /// known. A later one replaces it: file systems may respond only some time after the start.
    DiskLayout(Result<DiskLayout, UnknownReason>),
    /// A sample of the node. It starts an evaluation.
    #[serde(skip)]
    Sample(Arc<Snapshot>),
    /// A sample failed. The evaluation ends without a decision.
    SampleFailed(UnknownReason),
    /// The node-level reclaim of a decision is over. The value is the second sample, or why there is none.
    /// The evaluation resumes.
    #[serde(skip)]
    Reclaimed(Result<Arc<Snapshot>, UnknownReason>),
    /// The result of an eviction that a decision requested.
    Evicted {
        /// The uid of the pod.
        uid: Box<str>,
        /// Whether the pod has terminated, or why it was not evicted.
        result: Result<(), NotEvicted>,
    },
    /// The executor has reached a rate limit: no other pod can be evicted before this time.
    EvictionsPausedUntil(Timestamp),
    /// Whether the API server is available from now on. It is assumed to be until this event.
    ApiServer(ApiReachability),
    /// The progress of executors with an eviction.
    Executing {
        /// The number of the decision.
        decision: u64,
        /// The progress.
        update: ExecutorUpdate,
    },
    /// An OOM kill. The time of the input is when the agent learned of the kill; the record has a time of its own.
    #[serde(serialize_with = "oom_kill")]
    OomKill(Box<OomKill>),
    /// A container terminated, or more became known about an earlier termination.
    ContainerEnded(Box<ContainerEnded>),
    /// The configuration was changed. The new policy takes effect after it was tried on a sample, see
    /// [`ProposalState`](super::decision::ProposalState).
    Propose(Box<Policy>),
    /// The proposed policy takes effect now, whatever it will evict.
    ApplyProposed,
    /// Asks whether this pod may start on the node.
    #[serde(skip)]
    Admission(Arc<KnownPod>),
}

/// Whether the API server is available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiReachability {
    /// The API server answers.
    #[default]
    Reachable,
    /// The API server does not answer, or its answers are of no use.
    Unreachable,
}

/// Serializes an OOM kill in the form that is deserialized. The event line omits what only the engine needs.
fn oom_kill<S: Serializer>(kill: &OomKill, serializer: S) -> Result<S::Ok, S::Error> {
    let value = json!({
        "at": kill.at,
        "pid": kill.pid,
        "tid": kill.tid,
        "comm": kill.comm,
        "container": kill.container,
        "containerId": kill.container_id,
        "podUid": kill.pod_uid,
        "limitScope": kill.limit_scope,
        "inferred": kill.inferred,
        "victim": kill.victim,
        "oomGroup": kill.oom_group,
        "usage": kill.usage,
        "limit": kill.limit,
        "nearSince": kill.near_since,
        "anon": kill.anon,
        "file": kill.file,
        "shmem": kill.shmem,
        "swap": kill.swap,
        "oomScoreAdj": kill.oom_score_adj,
        "triggerPid": kill.trigger_pid,
        "triggerComm": kill.trigger_comm,
    });
    value.serialize(serializer)
}
