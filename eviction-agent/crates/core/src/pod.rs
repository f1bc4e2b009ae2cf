//! The parts of a pod (`v1.Pod`) that decisions depend on.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::nullable::nullable;
use super::sorted_map::SortedMap;
use super::time::Timestamp;
use super::units::Quantity;

/// Amounts by resource name: `v1.ResourceList`.
pub type ResourceList = SortedMap<Quantity>;

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = BTreeMap::<Box<str>, JsonQuantity>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|(name, JsonQuantity(quantity))| (name, quantity)).collect())
    }
}

/// A quantity that is deserialized inside of its list, so that an error names the resource.
struct JsonQuantity(Quantity);

impl<'de> Deserialize<'de> for JsonQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json_quantity(&Box::<RawValue>::deserialize(deserializer)?).map(Self)
    }
}

/// Parses a quantity as `Quantity.UnmarshalJSON` does: the raw characters without quotes and the blanks inside
/// them, so that a number keeps its digits. Null is zero.
fn json_quantity<E: Error>(raw: &RawValue) -> Result<Quantity, E> {
    let text = raw.get();
    if text == "null" {
        return Ok(Quantity::ZERO);
    }
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let quantity = Quantity::parse(quoted.unwrap_or(text).trim());
    quantity.map_err(|error| E::custom(format_args!("{text:.100}: {error}")))
}

/// Deserializes a quantity that may be null.
fn optional_quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    raw.as_deref().map(json_quantity).transpose()
}

/// Returns the id of a text in the form `containerd://ID`.
pub fn without_runtime(container_id: &str) -> Option<&str> {
    container_id.split_once("://").map(|(_, id)| id)
}

/// Deserializes the id of a text in the form `containerd://ID`. A text in another form has none: the id is empty.
fn id_without_runtime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    let id: Box<str> = nullable(deserializer)?;
    Ok(without_runtime(&id).unwrap_or_default().into())
}

/// The namespace, name and uid of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
}

impl PodName {
    /// Returns the name of a pod.
    pub fn of(pod: &Pod) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }

    /// Returns whether `name` is the pod's `namespace/name`, or its name alone.
    pub fn matches(&self, name: &str) -> bool {
        match name.split_once('/') {
            Some((namespace, name)) => *self.namespace == *namespace && *self.name == *name,
            None => *self.name == *name,
        }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod. The values are not validated; names may contain any characters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// `metadata.uid`, the key of statistics.
    pub uid: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.generation`, 0 if absent.
    pub generation: i64,
    /// `metadata.labels`.
    pub labels: SortedMap<Box<str>>,
    /// `metadata.annotations`, as far as decisions depend on them.
    pub annotations: SortedMap<Box<str>>,
    /// The owner that is the pod's controller, or the first owner.
    pub owner: Option<Owner>,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// `spec.priorityClassName`, empty if absent.
    pub priority_class: Box<str>,
    /// `spec.terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: Option<i64>,
    /// `spec.containers`, in order.
    pub containers: Vec<Container>,
    /// `spec.initContainers`, in order.
    pub init_containers: Vec<Container>,
    /// `spec.resources`; present but empty is not the same as absent.
    pub resources: Option<Resources>,
    /// `spec.overhead`, empty if absent.
    pub overhead: ResourceList,
    /// `spec.volumes`, in order.
    pub volumes: Vec<Volume>,
    /// `spec.tolerations`, in order.
    pub tolerations: Vec<Toleration>,
    /// `status.qosClass`, empty if absent.
    pub qos_class: Box<str>,
    /// The id and the name of each container in the status. The id has no runtime prefix.
    pub container_ids: Vec<(Box<str>, Box<str>)>,
    /// The names and ids of the pod's images, as its containers and volumes request them and as its statuses
    /// report them.
    pub images: Vec<Box<str>>,
    /// `status.phase` is `Succeeded` or `Failed`: none of its containers will run again.
    pub finished: bool,
    /// `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// `status.conditions`, in order.
    pub conditions: Vec<PodCondition>,
    /// `status.reason`, empty if absent; `Evicted` after an eviction by the kubelet.
    pub reason: Box<str>,
    /// Terminated containers: `terminated` in `state` and `lastState` of each status.
    pub ended: Vec<ContainerStateTerminated>,
}

/// `v1.ContainerStateTerminated`, with the name of the container. Empty or 0 where absent or null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateTerminated {
    /// The name of the container, which is not part of its state.
    #[serde(skip)]
    pub container: Box<str>,
    /// The id of the container without the runtime's prefix. A restarted container has another id.
    #[serde(rename = "containerID", deserialize_with = "id_without_runtime")]
    pub instance: Box<str>,
    /// `exitCode`.
    #[serde(deserialize_with = "nullable")]
    pub exit_code: i32,
    /// `signal`.
    #[serde(deserialize_with = "nullable")]
    pub signal: i32,
    /// `reason`, such as `OOMKilled`.
    #[serde(deserialize_with = "nullable")]
    pub reason: Box<str>,
    /// `finishedAt`.
    pub finished_at: Option<Timestamp>,
}

/// `metav1.OwnerReference`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The kind, for example `ReplicaSet`.
    pub kind: Box<str>,
    /// The name of the owner.
    pub name: Box<str>,
    /// The uid of the owner.
    pub uid: Box<str>,
}

/// A container or init container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// `name`.
    pub name: Box<str>,
    /// `resources`.
    pub resources: Resources,
    /// `restartPolicy: Always`: an init container that keeps running (a sidecar).
    pub restartable: bool,
}

/// `v1.ResourceRequirements`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// `requests`, empty if absent or null.
    #[serde(deserialize_with = "nullable")]
    pub requests: ResourceList,
    /// `limits`, empty if absent or null.
    #[serde(deserialize_with = "nullable")]
    pub limits: ResourceList,
}

/// A volume: its name, and which of the relevant sources it has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    /// `name`.
    pub name: Box<str>,
    /// `hostPath` is present.
    pub host_path: bool,
    /// `gitRepo` is present.
    pub git_repo: bool,
    /// `configMap` is present.
    pub config_map: bool,
    /// `emptyDir`.
    pub empty_dir: Option<EmptyDir>,
}

/// `v1.EmptyDirVolumeSource`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// `medium`, empty for the node's disk.
    #[serde(deserialize_with = "nullable")]
    pub medium: Box<str>,
    /// `sizeLimit`.
    #[serde(deserialize_with = "optional_quantity")]
    pub size_limit: Option<Quantity>,
}

impl Volume {
    /// Returns whether the volume's bytes and inodes are on the node's own disk: `helpers.go: localVolumeNames`.
    pub fn is_local(&self) -> bool {
        let on_disk = |dir: &EmptyDir| dir.medium.is_empty();
        self.host_path || self.git_repo || self.config_map || self.empty_dir.as_ref().is_some_and(on_disk)
    }
}

/// `v1.Toleration`, empty where absent or null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// `key`; empty is any.
    #[serde(deserialize_with = "nullable")]
    pub key: Box<str>,
    /// `operator`; empty is `Equal`.
    #[serde(deserialize_with = "nullable")]
    pub operator: Box<str>,
    /// `value`.
    #[serde(deserialize_with = "nullable")]
    pub value: Box<str>,
    /// `effect`; empty is any.
    #[serde(deserialize_with = "nullable")]
    pub effect: Box<str>,
}

/// `v1.PodCondition`, empty where absent or null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// `type`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: Box<str>,
    /// `status`.
    #[serde(deserialize_with = "nullable")]
    pub status: Box<str>,
    /// `reason`.
    #[serde(deserialize_with = "nullable")]
    pub reason: Box<str>,
    /// `message`.
    #[serde(deserialize_with = "nullable")]
    pub message: Box<str>,
    /// `observedGeneration`, 0 if absent.
    #[serde(deserialize_with = "nullable")]
    pub observed_generation: i64,
    /// `lastTransitionTime`.
    pub last_transition_time: Option<Timestamp>,
}

/// A pod by its namespace and name, shown as `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodRef {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    #[serde(rename = "pod")]
    pub name: Box<str>,
}

impl PodRef {
    /// Creates a reference to the pod with this name in this namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the name of the same pod with its UID.
    pub fn with_uid(&self, uid: &str) -> PodName {
        PodName { uid: uid.into(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl From<&Pod> for PodRef {
    fn from(pod: &Pod) -> Self {
        Self::new(&pod.namespace, &pod.name)
    }
}

impl From<&PodName> for PodRef {
    fn from(pod: &PodName) -> Self {
        Self::new(&pod.namespace, &pod.name)
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Writes the container and its pod if they are known, or else the cgroup.
///
/// # Errors
/// The errors of `f`.
pub fn write_owner(
    f: &mut fmt::Formatter<'_>,
    container: Option<&str>,
    pod: Option<&PodRef>,
    cgroup: Option<&str>,
) -> fmt::Result {
    match (container, pod) {
        (Some(container), Some(pod)) => write!(f, "container {container} of {pod}"),
        (None, Some(pod)) => write!(f, "{pod}"),
        (_, None) => f.write_str(cgroup.unwrap_or("an unknown cgroup")),
    }
}
