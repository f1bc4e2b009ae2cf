//! Converts the policy in force to the configuration that produces it.

use serde_json::{Map, Value, json};

use eviction_core::policy::preferences::Preferences;
use eviction_core::policy::{Gates, Policy, Threshold};
use eviction_core::units::ThresholdValue;

/// Returns a KubeletConfiguration with the thresholds in force, wherever they come from.
pub(super) fn kubelet(policy: &Policy) -> Value {
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
pub(super) fn agent(policy: &Policy) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::fixture::{hard, policy, quantity, soft};
    use eviction_core::signal::Signal::{AllocatableMemoryAvailable, MemoryAvailable};

    fn written(more: Vec<Threshold>) -> (Value, Value, Value) {
        let thresholds = [vec![hard(MemoryAvailable, "100Mi")], more].concat();
        let mut settings = kubelet(&policy(thresholds));
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
