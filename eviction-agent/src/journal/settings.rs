//! The policy in force as the configuration that makes it.

use serde_json::{Map, Value, json};

use crate::core::policy::{Gates, Policy, Threshold};
use crate::core::preferences::Preferences;
use crate::core::signal::Signal;
use crate::core::units::ThresholdValue;

/// The most victims in a pass that a configuration may ask for.
const MOST_VICTIMS: usize = 100;

/// The thresholds as they are in force, however they came about.
pub(super) fn kubelet(policy: &Policy) -> Value {
    let copies = Copies::of(&policy.thresholds);
    let is_derived = |it: &Threshold| copies.has(it);
    let values = |hard: bool, text: &dyn Fn(&Threshold) -> Option<String>| {
        let of_kind = policy.thresholds.iter().filter(|it| it.is_hard() == hard && !is_derived(it));
        of_kind.filter_map(|it| Some((it.signal.name().to_owned(), text(it)?.into()))).collect::<Map<_, _>>()
    };
    let value = |it: &Threshold| Some(it.value.configured());
    let reclaim = |it: &Threshold| it.min_reclaim.as_ref().map(ThresholdValue::configured);
    let mut min_reclaim = values(false, &reclaim);
    min_reclaim.extend(values(true, &reclaim));
    let of_all_pods = if copies.0.is_empty() { "none" } else { "pods" };
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

/// The thresholds of all pods that `enforceNodeAllocatable` makes of the hard ones of the node
/// (`pkg/kubelet/eviction/helpers.go: addAllocatableThresholds`): nobody writes those down.
struct Copies(Vec<Threshold>);

impl Copies {
    /// All of them or none: others were given by name.
    fn of(thresholds: &[Threshold]) -> Self {
        let of_node = thresholds.iter().filter(|it| it.signal == Signal::MemoryAvailable && it.is_hard());
        let copies = of_node
            .map(|it| Threshold { signal: Signal::AllocatableMemoryAvailable, ..it.clone() })
            .collect::<Vec<_>>();
        Self(if copies.iter().all(|copy| thresholds.contains(copy)) { copies } else { Vec::new() })
    }

    fn has(&self, threshold: &Threshold) -> bool {
        self.0.contains(threshold)
    }
}

/// The profile and what it was told. As many may go as went: whether more than usual had to depends on
/// what several looks tell.
pub(super) fn agent(policy: &Policy, went: usize) -> Value {
    let hands = json!({"hardIgnoresPDB": policy.hands.hard_ignores_pdb});
    let Some(preferences) = &policy.rules.preferences else {
        return json!({"profile": "kubelet", "hands": hands});
    };
    let went = u32::try_from(went.min(MOST_VICTIMS)).unwrap_or(u32::MAX);
    let preferences = Preferences {
        signals: Vec::new(),
        max_victims_per_pass: preferences.max_victims_per_pass.max(went),
        ..preferences.clone()
    };
    json!({"profile": "enhanced", "policy": preferences, "hands": hands})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kubelet_policy;
    use crate::core::fixture;
    use crate::core::signal::Signal::{AllocatableMemoryAvailable, MemoryAvailable};

    #[test]
    fn thresholds_come_back_whether_they_are_copies_or_were_given() {
        let hard = |signal, value| fixture::hard(signal, value);
        let soft = |signal, value| fixture::soft(signal, value, 30);
        let reclaiming = |threshold, reclaim| Threshold {
            min_reclaim: Some(ThresholdValue::Quantity(fixture::quantity(reclaim))),
            ..threshold
        };
        let memory = hard(MemoryAvailable, "100Mi");
        for thresholds in [
            vec![memory.clone()],
            vec![memory.clone(), hard(AllocatableMemoryAvailable, "100Mi")],
            vec![memory.clone(), hard(AllocatableMemoryAvailable, "200Mi")],
            vec![hard(AllocatableMemoryAvailable, "200Mi")],
            vec![memory.clone(), soft(AllocatableMemoryAvailable, "300Mi")],
            vec![memory.clone(), reclaiming(hard(AllocatableMemoryAvailable, "100Mi"), "50Mi")],
            vec![
                memory.clone(),
                hard(AllocatableMemoryAvailable, "100Mi"),
                soft(AllocatableMemoryAvailable, "300Mi"),
            ],
        ] {
            let written = kubelet(&fixture::policy(thresholds.clone()));
            let mut back = kubelet_policy(&written).unwrap().thresholds;
            let key = |it: &Threshold| (it.signal, !it.is_hard());
            back.sort_by_key(key);
            let mut thresholds = thresholds;
            thresholds.sort_by_key(key);
            assert_eq!(back, thresholds, "{written}");
        }
    }
}
