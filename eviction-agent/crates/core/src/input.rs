//! The inputs of the engine. Each carries its own time, which may repeat or go back.

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
use crate::progress::EvictionResult;

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Input {
    /// When.
    pub at: Timestamp,
    /// What.
    pub event: Event,
}

/// What happened. Recordings have their own form of pods and samples.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// What the agent before this one knew, in times of this one's clock. Before all others.
    Restore(Box<EngineState>),
    /// Of the pods terminating out, the uids of those that the API has no more and in whose cgroups
    /// somebody still is: what they hold is not free before they leave this list. Told before the pods.
    Terminating(Vec<Box<str>>),
    /// The active pods are now these: those bound to the node that have not finished.
    #[serde(skip)]
    Pods(Arc<PodSet>),
    /// The answer to how the node's file systems are laid out. Until there is one, samples
    /// decide nothing; after it, further answers are ignored.
    DiskLayout(Result<DiskLayout, UnknownReason>),
    /// A sample of the node: one evaluation of the pipeline.
    #[serde(skip)]
    Sample(Arc<Snapshot>),
    /// There was to be a sample, but it failed: the evaluation ends with nothing changed.
    SampleFailed(UnknownReason),
    /// The node-level reclaim that a decision asked for is over, and this is the node's
    /// second sample, or why there is none. The evaluation goes on.
    #[serde(skip)]
    Reclaimed(Result<Arc<Snapshot>, UnknownReason>),
    /// What came of an eviction that a decision asked for.
    Evicted(EvictionResult),
    /// Whoever evicts has reached a limit of his own: nobody new can go before this time.
    EvictionsPausedUntil(Timestamp),
    /// Whether the API server can be asked for evictions from now on. It can, until this says otherwise.
    ApiServer(ApiReachability),
    /// How far executors have come with an eviction.
    Executing {
        /// By the number of its decision.
        decision: u64,
        /// What is new.
        update: ExecutorUpdate,
    },
    /// The kernel killed a process for want of memory. The time of the input is when this was
    /// learned; the record has its own.
    #[serde(serialize_with = "oom_kill")]
    OomKill(Box<OomKill>),
    /// A container ended, or more became known of an end that was reported before.
    ContainerEnded(Box<ContainerEnded>),
    /// The configuration was changed. The policy that it makes takes effect when it was held
    /// against a sample, see [`ProposalState`](super::decision::ProposalState).
    Propose(Box<Policy>),
    /// Whatever the proposed policy will evict, it is to take effect now.
    ApplyProposed,
    /// May this pod start here?
    #[serde(skip)]
    Admission(Arc<KnownPod>),
}

/// Whether the API server can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiReachability {
    /// It answers.
    #[default]
    Reachable,
    /// It does not, or what it answers is of no use.
    Unreachable,
}

/// An OOM kill as it is read: the form of the event line leaves out what only the engine needs.
fn oom_kill<S: Serializer>(kill: &OomKill, serializer: S) -> Result<S::Ok, S::Error> {
    let value = json!({
        "at": kill.at,
        "tgid": kill.pid,
        "pid": kill.tid,
        "comm": kill.comm,
        "container": kill.container,
        "instance": kill.container_id,
        "pod": kill.pod_uid,
        "owner": kill.limit_scope,
        "inferred": kill.inferred,
        "victim": kill.victim,
        "group": kill.oom_group,
        "usage": kill.usage,
        "limit": kill.limit,
        "nearSince": kill.near_since,
        "anon": kill.anon,
        "file": kill.file,
        "shmem": kill.shmem,
        "swap": kill.swap,
        "oomScoreAdj": kill.oom_score_adj,
        "trigger": kill.trigger_pid,
        "triggerComm": kill.trigger_comm,
    });
    value.serialize(serializer)
}
