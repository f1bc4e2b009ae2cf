//! The texts of a decision, exactly as the kubelet writes them.
//!
//! They are written from an [`Evaluation`] after the decision: `helpers.go: evictionMessage` and the formats
//! at the top of that file. Every sentence ends with a space.

use std::collections::BTreeMap;

use super::condition::RaisedCondition;
use super::decision::Evaluation;
use super::pod::{Container, Pod};
use super::pods::{KnownPod, has_pod_level_resources, pod_limit};
use super::signal::Resource;
use super::snapshot::{ContainerStatValues, PodStats};
use super::units::{Format, Quantity, quote};
use crate::eviction::{Cause, Eviction};

/// The reason of the event, of the pod's status, and of a refused admission.
pub const REASON_EVICTED: &str = "Evicted";
/// The reason of the event on the node.
pub const REASON_THRESHOLD_MET: &str = "EvictionThresholdMet";

/// The annotations of the event of an eviction.
pub type Annotations = BTreeMap<&'static str, String>;

/// Returns the message of the event on the node.
pub fn announcement(resource: Resource) -> String {
    format!("Attempting to reclaim {resource}")
}

/// Returns the message of a refused admission.
pub fn refusal(conditions: &[RaisedCondition]) -> String {
    let names: Vec<_> = conditions.iter().map(|raised| raised.condition.name()).collect();
    format!("The node had condition: [{}]. ", names.join(" "))
}

/// Returns the message of the event of an eviction, which is also that of the status and the condition of the
/// pod, and the annotations of the event: None for a pod above its own limits, empty for a pod without
/// statistics.
pub(crate) fn eviction(evaluation: &Evaluation, eviction: &Eviction) -> (String, Option<Annotations>) {
    let Some(known) = evaluation.pods.get(eviction.pod) else { return Default::default() };
    let message = match eviction.cause {
        Cause::Threshold { threshold } => return for_threshold(evaluation, eviction.pod, threshold, known),
        Cause::EmptyDir { volume } => empty_dir(&known.pod, volume),
        Cause::PodStorage => pod_storage(&known.pod),
        Cause::ContainerStorage { container } => container_storage(&known.pod, container),
    };
    (message.unwrap_or_default(), None)
}

/// `emptyDirMessageFmt`.
fn empty_dir(pod: &Pod, volume: usize) -> Option<String> {
    let volume = pod.volumes.get(volume)?;
    let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?.to_string();
    let (name, limit) = (quote(&volume.name), quote(&limit));
    Some(format!("Usage of EmptyDir volume {name} exceeds the limit {limit}. "))
}

/// `podEphemeralStorageMessageFmt`.
fn pod_storage(pod: &Pod) -> Option<String> {
    let limit = pod_limit(pod, Resource::EphemeralStorage.name())?;
    Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

/// `containerEphemeralStorageMessageFmt`.
fn container_storage(pod: &Pod, container: usize) -> Option<String> {
    let container = pod.containers.get(container)?;
    let limits = &container.resources.limits;
    let limit = limits.get(Resource::EphemeralStorage.name())?.to_string();
    let (name, limit) = (&container.name, quote(&limit));
    Some(format!("Container {name} exceeded its local ephemeral storage limit {limit}. "))
}

fn for_threshold(
    evaluation: &Evaluation,
    index: u32,
    threshold_index: u8,
    known: &KnownPod,
) -> (String, Option<Annotations>) {
    let mut annotations = Annotations::new();
    let Some(threshold) = evaluation.threshold(threshold_index) else {
        return Default::default();
    };
    let resource = threshold.signal.resource();
    let mut message = format!("The node was low on resource: {resource}. ");
    if let Some(seen) = evaluation.observations.get(threshold.signal) {
        let quantity = threshold.value.quantity(seen.capacity);
        let available = seen.available_quantity(threshold.signal);
        message += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    if let Some(stats) = evaluation.snapshot.stats_of(index) {
        if resource == Resource::Memory {
            describe_pod(known, stats, &mut message, &mut annotations);
        }
        describe_containers(&known.pod, stats, resource, &mut message, &mut annotations);
        annotations.insert("starved_resource", resource.name().to_owned());
    }
    (message, Some(annotations))
}

/// Writes the sentence about the pod as a whole, if it has a pod-level memory request. As in the kubelet, the
/// sentence claims that the usage is larger than the request, whether or not it is.
fn describe_pod(known: &KnownPod, stats: PodStats<'_>, message: &mut String, annotations: &mut Annotations) {
    let (pod, values) = (&known.pod, stats.values());
    let set = known.gates.pod_level_resources && has_pod_level_resources(pod);
    let requests = pod.resources.as_ref().map(|resources| &resources.requests);
    let request = requests.and_then(|requests| requests.get(Resource::Memory.name()));
    if let Some(request) = request.filter(|_| set && values.has_memory) {
        let usage = bytes(values.memory_working_set.unwrap_or(0));
        *message += &larger_consumption("Pod", &pod.name, &usage, request, Resource::Memory);
        annotations.insert("offending_pod", pod.name.to_string());
        annotations.insert("offending_pod_usage", usage.to_string());
    }
}

/// Writes the sentences about containers that use more than they request, in the order of the statistics.
/// Ephemeral containers cannot request anything and are not named.
fn describe_containers(
    pod: &Pod,
    stats: PodStats<'_>,
    resource: Resource,
    message: &mut String,
    annotations: &mut Annotations,
) {
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for (name, values) in stats.containers() {
        let specs = pod.containers.iter().chain(&pod.init_containers);
        let of_name = |spec: &&Container| &*spec.name == name;
        let (Some(spec), Some(usage)) = (specs.clone().find(of_name), container_usage(values, resource))
        else {
            continue;
        };
        let none = Quantity::ZERO;
        let requests = &spec.resources.requests;
        let request = requests.get(resource.name()).unwrap_or(&none);
        if usage > *request {
            *message += &larger_consumption("Container", &spec.name, &usage, request, resource);
            names.push(&*spec.name);
            usages.push(usage.to_string());
        }
    }
    annotations.insert("offending_containers", names.join(","));
    annotations.insert("offending_containers_usage", usages.join(","));
}

/// Returns None for inodes and process ids. For local storage both values must be known.
fn container_usage(values: ContainerStatValues, resource: Resource) -> Option<Quantity> {
    match resource {
        Resource::Memory => values.memory_working_set.map(bytes),
        Resource::EphemeralStorage => Some(bytes(values.rootfs_used?.wrapping_add(values.logs_used?))),
        Resource::Inodes | Resource::Pids => None,
    }
}

/// `podMessageFmt` and `containerMessageFmt`.
fn larger_consumption(
    what: &str,
    name: &str,
    usage: &Quantity,
    request: &Quantity,
    resource: Resource,
) -> String {
    format!("{what} {name} was using {usage}, request is {request}, has larger consumption of {resource}. ")
}

fn bytes(value: u64) -> Quantity {
    Quantity::from_i64(value.cast_signed(), Format::BinarySi)
}
