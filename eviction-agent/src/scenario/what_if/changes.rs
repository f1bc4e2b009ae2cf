//! The changes under which a recording is replayed, and what they make of a policy and of a pod.
//!
//! A recorded policy is converted to the configuration that produces it, because changes are fields of a
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eviction_config::{kubelet_policy, parse_agent, set_field};
use eviction_core::pod::{Pod, Resources};
use eviction_core::pods::{EVICT, has_pod_level_resources};
use eviction_core::policy::preferences::Preferences;
use eviction_core::policy::{Gates, Policy, Threshold};
use eviction_core::sorted_map::SortedMap;
use eviction_core::units::{Quantity, ThresholdValue};
use serde_json::{Map, Value, json};

/// The changes. Pods are `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Fields of the KubeletConfiguration, such as `evictionHard.memory.available`.
    pub kubelet: BTreeMap<String, String>,
    /// Fields of the AgentConfiguration, such as `policy.maxEvictionsPerSync`.
    pub agent: BTreeMap<String, String>,
    /// Memory requests of pods.
    pub requests: BTreeMap<String, Quantity>,
    /// Priorities of pods.
    pub priorities: BTreeMap<String, i32>,
    /// Pods that opt out of eviction.
    pub protect: BTreeSet<String>,
    /// Pods that do not exist.
    pub without: BTreeSet<String>,
}

impl Changes {
    /// Returns the policy under the changes.
    ///
    /// # Errors
    /// If the changes are invalid.
    pub(super) fn policy(&self, recorded: &Policy) -> Result<Policy, String> {
        if self.kubelet.is_empty() && self.agent.is_empty() {
            return Ok(recorded.clone());
        }
        let mut kubelet = kubelet_settings(recorded);
        let mut agent = agent_settings(recorded);
        for (path, value) in &self.kubelet {
            // Names of signals have dots.
            match path.split_once('.') {
                Some((map, signal)) => {
                    let map = &mut kubelet[map];
                    if !map.is_object() && !map.is_null() {
                        return Err(format!("{path}: is no field of a KubeletConfiguration"));
                    }
                    map[signal] = json!(value);
                }
                None => kubelet[path.as_str()] = parsed(value),
            }
        }
        for (path, value) in &self.agent {
            if !set_field(&mut agent, path, parsed(value)) {
                return Err(format!("{path}: is no field of an AgentConfiguration"));
            }
        }
        let wrong = |text: &str| format!("the changed configuration is refused: {text}");
        let kubelet = kubelet_policy(&kubelet).map_err(|(_, error)| wrong(&error))?;
        let agent = parse_agent(&agent).map_err(|problems| wrong(&problems.to_string()))?;
        let kubelet_thresholds = recorded.kubelet_thresholds.clone();
        Ok(Policy { kubelet_thresholds, ..agent.over(kubelet) })
    }

    /// Returns the pod under the changes.
    pub(super) fn pod(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Changes { requests, priorities, protect, .. } = self;
        let name = name(pod);
        let mut changed = (**pod).clone();
        if let Some(request) = requests.get(&name) {
            set_memory_request(&mut changed, request);
        }
        if let Some(priority) = priorities.get(&name) {
            changed.priority = Some(*priority);
        }
        if protect.contains(&name) {
            changed.annotations = with_entry(&changed.annotations, EVICT, "false".into());
        }
        if changed == **pod { Arc::clone(pod) } else { Arc::new(changed) }
    }
}

/// Returns a KubeletConfiguration with the thresholds in force, wherever they come from.
fn kubelet_settings(policy: &Policy) -> Value {
    let copies = copies_in(&policy.thresholds);
    let values = |hard: bool, text: &dyn Fn(&Threshold) -> Option<String>| {
        let of_kind = policy.thresholds.iter().filter(|it| it.is_hard() == hard && !copies.contains(it));
        of_kind.filter_map(|it| Some((it.signal.name().to_owned(), text(it)?.into()))).collect::<Map<_, _>>()
    };
    let value = |it: &Threshold| Some(it.value.configured());
    let reclaim = |it: &Threshold| it.min_reclaim.as_ref().map(ThresholdValue::configured);
    let mut min_reclaim = values(false, &reclaim);
    min_reclaim.extend(values(true, &reclaim));
    let of_all_pods = if copies.is_empty() { "none" } else { "pods" };
    let mut settings = json!({
        "evictionHard": values(true, &value),
        "evictionSoft": values(false, &value),
        "evictionSoftGracePeriod": values(false, &|it| Some(it.grace_period.to_string())),
        "evictionMinimumReclaim": min_reclaim,
        "evictionPressureTransitionPeriod": policy.pressure_transition_period,
        "evictionMaxPodGracePeriod": policy.max_pod_grace_period_seconds,
        "localStorageCapacityIsolation": policy.local_storage_capacity_isolation,
        "enforceNodeAllocatable": [of_all_pods],
    });
    let Gates { pod_level_resources, separate_disk_gc } = policy.gates;
    if policy.gates != Gates::default() {
        settings["featureGates"] = json!({
            "PodLevelResources": pod_level_resources, "KubeletSeparateDiskGC": separate_disk_gc,
        });
    }
    settings
}

/// Returns the thresholds of all pods that the configuration omits, because they are derived from
/// thresholds of the node. If one of the derived thresholds is missing, returns none: then the others
/// were configured by name.
fn copies_in(thresholds: &[Threshold]) -> Vec<Threshold> {
    let copies: Vec<_> = thresholds.iter().filter_map(Threshold::copy_for_all_pods).collect();
    if copies.iter().all(|copy| thresholds.contains(copy)) { copies } else { Vec::new() }
}

/// Returns an AgentConfiguration with the profile, its preferences, and the eviction settings.
fn agent_settings(policy: &Policy) -> Value {
    let mut agent = json!({
        "profile": "Kubelet", "eviction": policy.eviction, "kernelKill": policy.kernel_kill,
    });
    if let Some(preferences) = &policy.rules.preferences {
        // The signals are already among the thresholds.
        let preferences = Preferences { signals: Vec::new(), ..preferences.clone() };
        agent["profile"] = "Enhanced".into();
        agent["policy"] = json!(preferences);
    }
    agent
}

/// Sets what all containers of a pod request together.
fn set_memory_request(pod: &mut Pod, request: &Quantity) {
    let set = |resources: &mut Resources, request: Quantity| {
        resources.requests = with_entry(&resources.requests, "memory", request);
    };
    // A request of the pod itself would hide the other requests of its containers from the kubelet's rules.
    if has_pod_level_resources(pod) || pod.containers.is_empty() {
        return set(pod.resources.get_or_insert_with(Resources::default), request.clone());
    }
    let mut request = Some(request.clone());
    for container in pod.containers.iter_mut().chain(&mut pod.init_containers) {
        set(&mut container.resources, request.take().unwrap_or(Quantity::ZERO));
    }
}

/// Parses a value of a configuration: JSON if it is valid JSON, else a string.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

/// Returns a map with another value.
fn with_entry<V: Clone>(map: &SortedMap<V>, key: &str, value: V) -> SortedMap<V> {
    // Of several values with the same key, the last one counts.
    map.iter().map(|(key, value)| (key.into(), value.clone())).chain([(key.into(), value)]).collect()
}

/// Returns `NAMESPACE/NAME`.
pub(super) fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use eviction_core::fixture::{container, hard, pod, policy, quantity, requests, soft};
    use eviction_core::pods::pod_request;
    use eviction_core::signal::Signal::{AllocatableMemoryAvailable, MemoryAvailable};

    use super::*;

    #[test]
    fn a_changed_memory_request_keeps_the_other_requests() {
        let first = requests(&[("memory", "3"), ("ephemeral-storage", "7")]);
        let second = requests(&[("memory", "4")]);
        let containers = vec![container("first", first), container("second", second)];
        let before = Arc::new(Pod { containers, ..pod("a", "1") });
        let changes = Changes { requests: [(name(&before), quantity("9"))].into(), ..Changes::default() };
        let changed = changes.pod(&before);
        let gates = policy(Vec::new()).gates;
        let requested = |resource: &str| pod_request(&changed, resource, gates, false).value();
        assert_eq!([requested("memory"), requested("ephemeral-storage")], [9, 7]);
    }

    fn written(more: Vec<Threshold>) -> (Value, Value, Value) {
        let thresholds = [vec![hard(MemoryAvailable, "100Mi")], more].concat();
        let mut settings = kubelet_settings(&policy(thresholds));
        let mut of_pods = |map: &str| settings[map]["allocatableMemory.available"].take();
        let (hard, soft) = (of_pods("evictionHard"), of_pods("evictionSoft"));
        (hard, soft, settings["enforceNodeAllocatable"][0].take())
    }

    #[test]
    fn thresholds_of_all_pods_are_written_down_unless_they_are_copies() {
        let of_pods = |value| hard(AllocatableMemoryAvailable, value);
        let more = || soft(AllocatableMemoryAvailable, "300Mi", 30);
        assert_eq!(written(vec![]), (Value::Null, Value::Null, "none".into()));
        assert_eq!(written(vec![of_pods("100Mi")]), (Value::Null, Value::Null, "pods".into()));
        assert_eq!(written(vec![of_pods("200Mi")]), ("200Mi".into(), Value::Null, "none".into()));
        assert_eq!(written(vec![more()]), (Value::Null, "300Mi".into(), "none".into()));
        assert_eq!(written(vec![of_pods("100Mi"), more()]), (Value::Null, "300Mi".into(), "pods".into()));
        let min_reclaim = Some(ThresholdValue::Quantity(quantity("50Mi")));
        let reclaims = Threshold { min_reclaim, ..of_pods("100Mi") };
        assert_eq!(written(vec![reclaims]), ("100Mi".into(), Value::Null, "none".into()));
    }
}
