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
    let is_derived = |it: &Threshold| it.signal == Signal::AllocatableMemoryAvailable;
    let values = |hard: bool, text: &dyn Fn(&Threshold) -> Option<String>| {
        let of_kind = policy.thresholds.iter().filter(|it| it.is_hard() == hard && !is_derived(it));
        of_kind.filter_map(|it| Some((it.signal.name().to_owned(), text(it)?.into()))).collect::<Map<_, _>>()
    };
    let value = |it: &Threshold| Some(it.value.configured());
    let reclaim = |it: &Threshold| it.min_reclaim.as_ref().map(ThresholdValue::configured);
    let mut min_reclaim = values(false, &reclaim);
    min_reclaim.extend(values(true, &reclaim));
    let of_all_pods = if policy.thresholds.iter().any(is_derived) { "pods" } else { "none" };
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
