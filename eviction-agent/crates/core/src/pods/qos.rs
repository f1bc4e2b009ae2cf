//! Quality of service: `pkg/apis/core/v1/helper/qos/qos.go`.

use crate::pod::{Pod, ResourceList, Resources};
use crate::policy::Gates;

/// Whether the class is BestEffort: as the status says, else as `ComputePodQOS` finds.
///
/// With the gate, a `spec.resources` hides those of the containers even when it is empty.
pub fn is_best_effort(pod: &Pod, gates: Gates) -> bool {
    if !pod.qos_class.is_empty() {
        return &*pod.qos_class == "BestEffort";
    }
    match &pod.resources {
        Some(resources) if gates.pod_level_resources => !asks_for_something(resources),
        _ => !pod
            .containers
            .iter()
            .chain(&pod.init_containers)
            .any(|container| asks_for_something(&container.resources)),
    }
}

fn asks_for_something(resources: &Resources) -> bool {
    [&resources.requests, &resources.limits]
        .into_iter()
        .flat_map(ResourceList::iter)
        .any(|(name, quantity)| matches!(name, "cpu" | "memory") && quantity.signum() > 0)
}
