//! The event lines that `run` prints, as text or JSON. docs/reference/events.md is the contract.
#![expect(missing_docs, reason = "docs/reference/events.md is the one place that describes the fields")]

mod cgroups;
mod line;
mod node_reclaim;
mod status;
mod text;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use eviction_core::input::ApiReachability;
use eviction_core::nullable::is_zero;
use eviction_core::record::{EvaluationRecord, ThresholdRecord};
use eviction_core::signal::Signal;
use eviction_node::backend::BackendInfo;
use eviction_node::cgroup::pods::Pods;
use eviction_node::pod_index::PodIndex;

use eviction_bpf::attach_methods::ATTACH_METHODS;

pub use cgroups::{CgroupOwner, MemoryLimit, TaskAlarmEvent};
pub use eviction_core::oom::{ContainerStatusMismatch, ContainerTerminated, OomKill, Victim};
pub use eviction_core::pod::PodRef;
pub use line::{Line, Severity};
pub use node_reclaim::NodeReclaimEvent;
pub(crate) use node_reclaim::RESULTS as RECLAIM_RESULTS;
pub(crate) use status::ReportedStatus;
pub use status::ThresholdStatus;

/// The maximum number of printed items of a list. Further items are only counted.
pub(crate) const LISTED: usize = eviction_core::oom::LISTED;

/// Returns the first items and the number of omitted items.
pub(crate) fn bounded<T>(mut items: impl Iterator<Item = T>) -> (Vec<T>, usize) {
    let listed = items.by_ref().take(LISTED).collect();
    (listed, items.count())
}

/// The states of [`Event::PodFreeze`].
pub(crate) const FREEZE_STATES: [&str; 4] = ["frozen", "thawed", "dry_run", "failed"];

/// The backend name of a source without a backend.
pub const NO_BACKEND: &str = "none";

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Everything is attached and the node was sampled for the first time.
    Started(Started),
    /// A source changed to another backend.
    Backend(Backend),
    /// The pods or their cgroups changed, or cannot be read.
    Pods(PodsEvent),
    /// A threshold is newly met, cleared or unknown.
    Threshold(ThresholdEvent),
    /// A node condition changed.
    Condition { condition: &'static str, status: &'static str },
    /// A pod was selected for eviction.
    EvictionDecision(Box<EvictionDecision>),
    /// A step of carrying out an eviction decision.
    EvictionProgress(EvictionProgress),
    /// A BPF program killed a process by an armed kill order.
    KernelKill(KernelKillEvent),
    /// The kernel's OOM killer killed a process.
    OomKill(Box<OomKill>),
    /// A container terminated, with the cause.
    ContainerTerminated(Box<ContainerTerminated>),
    /// A container's status came late and differs from the cause of the termination that the agent found.
    ContainerStatusMismatch(Box<ContainerStatusMismatch>),
    /// A signal cannot be read.
    SignalReadError { signal: &'static str, error: String },
    /// A signal has been unknown for many samples, or is known again.
    SignalUnavailable { signal: &'static str, state: &'static str },
    /// A reading of a signal is implausible and was rejected.
    ReadingRejected { signal: &'static str, reason: &'static str, available: i64, capacity: i64 },
    /// The configuration changed.
    ConfigChange(ConfigChange),
    /// Events of BPF programs were lost or invalid.
    BpfEventsLost { lost: u64, invalid: u64, map_full: u64 },
    /// A cgroup forks too fast, or is near its limit of tasks.
    TaskAlarm(TaskAlarmEvent),
    /// A cgroup is near its memory limit, or no longer.
    MemoryLimit(MemoryLimit),
    /// Images and containers were removed before pods are evicted, or the kubelet is expected to remove
    /// them.
    NodeReclaim(NodeReclaimEvent),
    /// The API server became unreachable, or reachable again.
    KubeApi { state: &'static str },
    /// A pod was frozen because the API server is unavailable, or was thawed.
    PodFreeze {
        #[serde(flatten)]
        pod: PodRef,
        pod_uid: String,
        state: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The agent stops.
    Stopped { reason: String },
}

/// See [`Event::Started`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Started {
    pub version: &'static str,
    pub action: &'static str,
    pub dry_run: &'static str,
    pub profile: &'static str,
    pub cgroup_root: String,
    pub memory_capacity: u64,
    pub pid_capacity: u64,
    pub sources: Vec<Backend>,
    pub pods_known: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_address: Option<String>,
}

/// See [`Event::Backend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    pub source: String,
    pub backend: String,
    pub reason: String,
}

impl Backend {
    pub(crate) fn new(source: &str, backend: &str, reason: String) -> Self {
        Self { source: source.to_owned(), backend: backend.to_owned(), reason }
    }

    /// Returns the preferred backend of the source, if it is not the one in use.
    pub fn preferred(&self) -> Option<&'static str> {
        let best = ATTACH_METHODS.iter().find(|method| method.class.name() == self.source)?;
        (best.name != self.backend).then_some(best.name)
    }
}

impl From<BackendInfo> for Backend {
    fn from(info: BackendInfo) -> Self {
        let backend = if info.backend.is_empty() { NO_BACKEND } else { info.backend };
        Self::new(info.source, backend, info.reason)
    }
}

/// See [`Event::Pods`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodsEvent {
    pub pods_known: usize,
    pub with_cgroup: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_cgroup: Vec<PodRef>,
    #[serde(skip_serializing_if = "is_zero")]
    pub without_cgroup_omitted: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_cgroups: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub unknown_cgroups_omitted: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undecodable: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub undecodable_omitted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PodsEvent {
    /// Counts and lists pods without a cgroup and cgroups without a pod.
    pub(crate) fn of(index: &PodIndex, tree: &Pods) -> Self {
        let unknown = tree.pods.iter().filter(|cgroup| !index.contains(&cgroup.uid));
        let missing = index.without_cgroup();
        let missing = missing.map(|known| PodRef::from(&known.pod));
        let (without_cgroup, without_cgroup_omitted) = bounded(missing);
        let (unknown_cgroups, unknown_cgroups_omitted) =
            bounded(unknown.map(|cgroup| cgroup.uid.as_str().to_owned()));
        let (undecodable, undecodable_omitted) = bounded(index.unreadable().iter().cloned());
        Self {
            pods_known: index.known().len(),
            with_cgroup: index.active().len(),
            without_cgroup,
            without_cgroup_omitted,
            unknown_cgroups,
            unknown_cgroups_omitted,
            undecodable,
            undecodable_omitted,
            error: None,
        }
    }
}

/// See [`Event::Threshold`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThresholdEvent {
    pub signal: &'static str,
    pub threshold: &'static str,
    pub state: ThresholdStatus,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    pub detected_by: &'static str,
}

impl ThresholdEvent {
    /// Returns the event for the new state of a threshold of this evaluation.
    pub(crate) fn of(
        threshold: &ThresholdRecord,
        evaluation: &EvaluationRecord,
        state: ThresholdStatus,
        detected_by: &'static str,
    ) -> Self {
        let reading = evaluation.signal(threshold.signal).filter(|reading| reading.available.is_some());
        Self {
            signal: threshold.signal.name(),
            threshold: threshold.kind(),
            state,
            // A percentage of an unknown capacity counts as 0.
            value: threshold.quantity.clone().unwrap_or_default().to_string(),
            available: reading.and_then(|reading| reading.available),
            capacity: reading.and_then(|reading| reading.capacity),
            detected_by,
        }
    }
}

/// See [`Event::EvictionDecision`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionDecision {
    pub id: u64,
    pub decision_id: String,
    pub signal: &'static str,
    pub threshold: &'static str,
    #[serde(flatten)]
    pub pod: PodRef,
    pub pod_uid: String,
    pub grace_seconds: i64,
    pub eviction_message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<&'static str, String>>,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
    pub detected_by: &'static str,
    pub sample_age_us: u64,
    pub candidates: Vec<Candidate>,
    #[serde(skip_serializing_if = "is_zero")]
    pub candidates_omitted: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_mono_ns: Option<u64>,
    pub sampled_mono_ns: u64,
    pub decided_mono_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crossed_to_decided_us: Option<u64>,
}

/// One of the ranked pods; the first one is evicted first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    #[serde(flatten)]
    pub pod: PodRef,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_elsewhere: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_stall_ratio: Option<f64>,
}

/// See [`Event::EvictionProgress`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvictionProgress {
    pub id: u64,
    pub decision_id: String,
    #[serde(flatten)]
    pub pod: PodRef,
    pub pod_uid: String,
    pub result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub mono_ns: u64,
    pub since_decision_us: u64,
}

/// See [`Event::ConfigChange`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigChange {
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_evict: Vec<PodRef>,
    #[serde(skip_serializing_if = "is_zero")]
    pub would_evict_omitted: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub errors_omitted: usize,
}

impl ConfigChange {
    /// Returns the event of a changed configuration that cannot be used, with its errors.
    pub(crate) fn invalid(errors: Vec<String>) -> Self {
        let (errors, errors_omitted) = bounded(errors.into_iter());
        Self { state: "invalid", errors, errors_omitted, ..Self::default() }
    }
}

/// See [`Event::KernelKill`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelKillEvent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<String>,
    #[serde(flatten)]
    pub pod: PodRef,
    pub pod_uid: String,
    pub pid: u32,
    pub comm: String,
    pub signal: Signal,
    pub threshold_bytes: u64,
    pub available: u64,
    pub growth: u64,
    pub usage: u64,
    pub armed_mono_ns: u64,
    pub killed_mono_ns: u64,
    pub received_mono_ns: u64,
}

impl Event {
    /// Returns the event for the new reachability of the API server.
    pub(crate) fn kube_api(reachability: ApiReachability) -> Self {
        let state = match reachability {
            ApiReachability::Reachable => "reachable",
            ApiReachability::Unreachable => "unreachable",
        };
        Self::KubeApi { state }
    }
}
