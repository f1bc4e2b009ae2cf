//! Scenario files as they are written: inputs, and every outcome that may come of them.
//!
//! The form is that of the files in `tests/scenarios/kubelet`, whose outcomes the kubelet's own
//! eviction manager was seen to give, and more of our own; `tests/scenarios/README.md` has it all.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::expected::ExpectedStep;
use super::inputs::{Evicted, Memory, Proposed};
use crate::source::summary::Summary;
use eviction_core::oom::{ContainerEnded, OomKill};
use eviction_core::time::Timestamp;
use eviction_kube::pods::Pod;

/// A scenario with the outcomes to expect.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// What happens.
    pub scenario: Scenario,
    /// What may come of it.
    #[serde(default)]
    pub expected: Vec<Outcome>,
}

/// What happens to a node and its pods.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scenario {
    /// The name.
    pub name: String,
    /// The node's own configuration.
    #[serde(default)]
    pub kubelet_configuration: Value,
    /// The agent's own configuration; null is the kubelet's profile.
    #[serde(default)]
    pub agent_configuration: Value,
    /// How disks are laid out.
    #[serde(default)]
    pub filesystems: Filesystems,
    /// Every pod there is.
    #[serde(default, deserialize_with = "nullable")]
    pub pods: Vec<Pod>,
    /// Syncs, one after the other.
    #[serde(default, deserialize_with = "nullable")]
    pub steps: Vec<Step>,
}

/// How disks are laid out.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filesystems {
    /// Images are on a file system of their own.
    #[serde(default)]
    pub dedicated_image_fs: bool,
    /// Writable layers are not on the file system of the images.
    #[serde(default)]
    pub split_image_fs: bool,
}

/// One sync.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The time of the sync.
    pub at: Timestamp,
    /// The first sample.
    pub summary: Option<Summary>,
    /// What came of evictions since the last step; else every pod that was evicted and is not
    /// named by `active_pods` is gone.
    pub evicted: Option<Vec<Evicted>>,
    /// Kills by the kernel since the last step.
    #[serde(default, deserialize_with = "nullable")]
    pub oom_kills: Vec<OomKill>,
    /// Containers that ended since the last step, or of whose end more became known.
    #[serde(default, deserialize_with = "nullable")]
    pub containers_ended: Vec<ContainerEnded>,
    /// Uids of the active pods; else all that are not gone.
    pub active_pods: Option<Vec<Box<str>>>,
    /// The node's memory in the samples beside the Summary.
    #[serde(default)]
    pub memory: Memory,
    /// The configuration was changed.
    pub propose: Option<Proposed>,
    /// A pending configuration is applied.
    #[serde(default)]
    pub accept: bool,
    /// The sample after node reclaim, else the first one.
    pub summary_after_reclaim: Option<Summary>,
    /// Why the first sample fails.
    #[serde(default)]
    pub summary_error: String,
    /// Why the sample after node reclaim fails.
    #[serde(default)]
    pub summary_after_reclaim_error: String,
    /// Why it is not known whether images have a file system of their own.
    #[serde(default)]
    pub disk_info_error: String,
    /// Why it is not known whether it is split.
    #[serde(default)]
    pub container_fs_info_error: String,
    /// Why each kill fails.
    #[serde(default)]
    pub kill_error: String,
    /// Uids of the pods that ask for admission after the pass.
    #[serde(default, deserialize_with = "nullable")]
    pub admit: Vec<Box<str>>,
}

/// The outcome of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    /// Of which scenario.
    #[serde(default)]
    pub name: String,
    /// Why there was no manager at all; then there are no steps.
    #[serde(default)]
    pub config_error: Option<String>,
    /// When the configuration failed: `decode`, `validate`, `featureGates`, `thresholds`; and
    /// `agent` for the agent's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config_error_stage: String,
    /// Sync by sync.
    #[serde(default, deserialize_with = "nullable")]
    pub steps: Vec<StepOutcome>,
}

/// The outcome of one sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepOutcome {
    /// When it was.
    #[serde(default)]
    pub at: String,
    /// The conditions after it, sorted.
    #[serde(default, deserialize_with = "nullable")]
    pub node_conditions: Vec<String>,
    /// `containers` and `images` in the order of the calls.
    #[serde(default, deserialize_with = "nullable")]
    pub reclaim: Vec<String>,
    /// In the order of the pods.
    #[serde(default, deserialize_with = "nullable")]
    pub evictions: Vec<EvictionOutcome>,
    /// The node's, then the pods' in their order.
    #[serde(default, deserialize_with = "nullable")]
    pub events: Vec<EventOutcome>,
    /// Answers to questions for admission.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub admit: Vec<AdmitOutcome>,
    /// What else the engine has to say, in the enhanced profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// How long the pod may take to end.
    pub grace_period_seconds: i64,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Of the event. Null for a pod above its own limits.
    pub annotations: Option<BTreeMap<String, String>>,
    /// `status.conditions`.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<ConditionOutcome>,
    /// Why the call failed.
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

/// The answer to one question for admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmitOutcome {
    /// The UID of the pod.
    pub uid: String,
    /// The answer.
    pub admit: bool,
    /// Empty if it was yes.
    pub reason: String,
    /// Empty if it was yes.
    pub message: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn nullable<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
