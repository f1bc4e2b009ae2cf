//! The format of scenario files: inputs, and the possible outcomes.
//!
//! The format is that of the files in `tests/scenarios/kubelet`, whose outcomes were recorded from
//! the kubelet's eviction manager, with additional fields. `tests/scenarios/README.md` describes
//! it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::expected::ExpectedStep;
use crate::source::summary::Summary;
use eviction_core::nullable::{is_zero, nullable};
use eviction_core::oom::{ContainerEnded, OomKill};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryDetail;
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod;

/// A scenario with its expected outcomes. Other keys are ignored: the oracle adds the text with which the kubelet's
/// code panicked.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// The scenario.
    pub scenario: Scenario,
    /// The possible outcomes.
    #[serde(default)]
    pub expected: Vec<Outcome>,
}

/// The inputs of a node and its pods.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// The name.
    pub name: String,
    /// The problem, and why the outcome is correct.
    #[serde(default)]
    pub description: String,
    /// The KubeletConfiguration of the node.
    #[serde(default)]
    pub kubelet_configuration: Value,
    /// The AgentConfiguration. Null selects the kubelet's profile.
    #[serde(default)]
    pub agent_configuration: Value,
    /// The file systems of the node.
    #[serde(default)]
    pub filesystems: Filesystems,
    /// All pods.
    #[serde(default, deserialize_with = "nullable")]
    pub pods: Vec<Pod>,
    /// The syncs, in order.
    #[serde(default, deserialize_with = "nullable")]
    pub steps: Vec<Step>,
}

/// The file systems of the node.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Filesystems {
    /// Whether images are on a separate file system.
    pub dedicated_image_fs: bool,
    /// Whether writable layers are on another file system than images.
    pub split_image_fs: bool,
}

/// One sync.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// The time of the sync.
    pub at: Timestamp,
    /// The first sample.
    pub summary: Option<Summary>,
    /// The results of evictions since the last step. If absent, every evicted pod that
    /// `active_pods` does not name has terminated.
    pub eviction_results: Option<Vec<EvictedPod>>,
    /// OOM kills since the last step.
    #[serde(default, deserialize_with = "nullable")]
    pub oom_kills: Vec<OomKill>,
    /// Containers that terminated since the last step, or about whose termination there is more information.
    #[serde(default, deserialize_with = "nullable")]
    pub terminated_containers: Vec<ContainerEnded>,
    /// The UIDs of the active pods. If absent, all pods that have not terminated.
    pub active_pods: Option<Vec<Box<str>>>,
    /// The values of the node's memory that the Summary does not have.
    #[serde(default)]
    pub memory: Memory,
    /// A changed configuration.
    pub changed_config: Option<ChangedConfig>,
    /// Whether a pending configuration is applied.
    #[serde(default)]
    pub apply_config_now: bool,
    /// The sample after node reclaim. If absent, the first one.
    pub summary_after_reclaim: Option<Summary>,
    /// The error of the first sample.
    #[serde(default)]
    pub summary_error: String,
    /// The error of the sample after node reclaim.
    #[serde(default)]
    pub summary_after_reclaim_error: String,
    /// The error because of which it is unknown whether images have a separate file system.
    #[serde(default)]
    pub disk_info_error: String,
    /// The error because of which it is unknown whether that file system is split.
    #[serde(default)]
    pub container_fs_info_error: String,
    /// The error of removing images. It has no effect, because only the sample after node reclaim counts.
    #[serde(default)]
    pub image_gc_error: String,
    /// The error of removing containers. It has no effect either.
    #[serde(default)]
    pub container_gc_error: String,
    /// The error of each kill.
    #[serde(default)]
    pub kill_error: String,
    /// The UIDs of the pods that request admission after the sync.
    #[serde(default, deserialize_with = "nullable")]
    pub admit: Vec<Box<str>>,
}

/// The result of an eviction.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictedPod {
    /// The UID of the pod.
    pub uid: Box<str>,
    /// The reason why the pod was not terminated. Empty if it was.
    #[serde(default)]
    pub error: Box<str>,
}

/// The kernel's values of the node's memory that the Summary does not have. Omitted values are
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// `MemAvailable`, bytes.
    pub mem_available: Option<u64>,
    /// Active file pages, bytes.
    pub active_file: Option<u64>,
    /// The share of the last ten seconds in which some task stalled, in percent.
    pub some_avg10: Option<f64>,
    /// The share of the last ten seconds in which all tasks stalled, in percent.
    pub full_avg10: Option<f64>,
    /// Whether tasks stalled as long as the PSI trigger requires.
    pub stalled: Option<bool>,
    /// Swap in use, bytes.
    pub swap_used: Option<u64>,
    /// Total swap, bytes.
    pub swap_total: Option<u64>,
}

impl Memory {
    /// Converts the values to those of a sample.
    pub(super) fn detail(self) -> MemoryDetail {
        let Self { mem_available, active_file, some_avg10, full_avg10, stalled, swap_used, swap_total } =
            self;
        // The conversion of floats saturates at the least and the greatest integer.
        let hundredths =
            |percent: Option<f64>| known(percent.map(|percent| (percent * 100.0).round() as u64));
        MemoryDetail {
            mem_available: known(mem_available),
            active_file: known(active_file),
            some_avg10: hundredths(some_avg10),
            full_avg10: hundredths(full_avg10),
            stalled: known(stalled),
            swap_used: known(swap_used),
            swap_total: known(swap_total),
        }
    }
}

fn known<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Unknown(UnknownReason::Absent), Reading::Known)
}

/// A changed configuration. Omitted parts are those of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ChangedConfig {
    /// The KubeletConfiguration.
    pub kubelet_configuration: Option<Value>,
    /// The AgentConfiguration.
    pub agent_configuration: Option<Value>,
}

/// The outcome of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Outcome {
    /// The name of the scenario.
    pub name: String,
    /// The error because of which there was no manager. Then there are no steps.
    pub config_error: Option<String>,
    /// The stage at which the configuration failed: `decode`, `validate`, `featureGates`,
    /// `thresholds`, or `agent` for the AgentConfiguration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub config_error_stage: String,
    /// The outcomes of the syncs, in order.
    #[serde(deserialize_with = "nullable")]
    pub steps: Vec<StepOutcome>,
}

/// The outcome of one sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StepOutcome {
    /// The time of the sync.
    pub at: String,
    /// The node conditions after the sync, sorted.
    #[serde(deserialize_with = "nullable")]
    pub node_conditions: Vec<String>,
    /// `containers` and `images` in the order of the calls.
    #[serde(deserialize_with = "nullable")]
    pub reclaim: Vec<String>,
    /// The evictions, in the order of the pods.
    #[serde(deserialize_with = "nullable")]
    pub evictions: Vec<EvictionOutcome>,
    /// The events: those of the node, then those of the pods in their order.
    #[serde(deserialize_with = "nullable")]
    pub events: Vec<EventOutcome>,
    /// The answers to admission requests.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub admit: Vec<AdmitOutcome>,
    /// The further results of the engine, in the enhanced profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<ExpectedStep>,
}

/// One call to the function that kills a pod, and the pod's status that goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvictionOutcome {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// The grace period of the pod in seconds.
    pub grace_period_seconds: i64,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// The annotations of the event. Null for a pod above its own limits.
    pub annotations: Option<BTreeMap<String, String>>,
    /// `status.conditions`.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<ConditionOutcome>,
    /// The error of the call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kill_error: String,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConditionOutcome {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `status`.
    pub status: String,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// `observedGeneration`.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EventOutcome {
    /// `Node/node` or `Pod/namespace/name`.
    pub object: String,
    /// `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
}

/// The answer to one admission request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmitOutcome {
    /// The UID of the pod.
    pub uid: String,
    /// Whether the pod is admitted.
    pub admit: bool,
    /// The reason. Empty if the pod is admitted.
    pub reason: String,
    /// The message. Empty if the pod is admitted.
    pub message: String,
}
