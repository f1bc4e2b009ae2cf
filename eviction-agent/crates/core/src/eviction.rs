//! The eviction of a pod, its cause, and how an evaluation ended.

use serde::{Deserialize, Serialize};

/// The eviction of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its place among the pods of the pass.
    pub place: u32,
    /// How long it may take to end. May be zero or negative, as configured.
    pub grace_period_seconds: i64,
    /// Why.
    pub cause: Cause,
    /// Its PodDisruptionBudget said no, and is not asked again.
    pub ignores_budget: bool,
}

/// Why a pod is evicted. Places are those of its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A threshold of the node, by its place.
    Threshold {
        /// Place in `Evaluation::lines`.
        line: u8,
    },
    /// An emptyDir volume above its size limit.
    EmptyDir {
        /// Which volume.
        volume: usize,
    },
    /// Local storage above the limit of all containers together.
    PodStorage,
    /// A container above its own limit of local storage.
    ContainerStorage {
        /// Which main container.
        container: usize,
    },
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluationEnd {
    /// No threshold asks for an eviction.
    #[serde(rename = "calm")]
    NoPressure,
    /// Pods above their own limits go; thresholds are not dealt with.
    LocalStorage,
    /// Node-level reclaim is under way; the pass goes on with the second look.
    AwaitingReclaim,
    /// Node-level reclaim was enough.
    Reclaimed,
    /// Nothing is known about how to rank pods for the signal.
    CannotRank,
    /// There is no pod to evict.
    NoPods,
    /// All pods are critical.
    OnlyCritical,
    /// All pods that are not critical are protected.
    OnlyProtected,
    /// A pod goes.
    Evicted,
    /// Pods on their way will free what is lacking.
    #[serde(rename = "covered")]
    ReleaseInProgress,
    /// No pod may be evicted for now: whoever evicts has reached a limit of his own.
    #[serde(rename = "held")]
    RateLimited,
    /// No pod may be evicted for now: the API server cannot be asked.
    ApiUnreachable,
    /// No pod is left that may go: each is critical, on its way, or failed to go a moment ago.
    #[serde(rename = "nobody_left")]
    NoCandidates,
}

/// What pods go for beside thresholds, as the kubelet's metrics name it:
/// `eviction_manager.go: signalEphemeralContainerFsLimit` and its neighbours.
pub const LABELS: [&str; 3] = ["emptydirfs.limit", "ephemeralpodfs.limit", "ephemeralcontainerfs.limit"];
