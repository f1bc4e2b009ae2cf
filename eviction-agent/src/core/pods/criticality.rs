//! Which pods are never evicted: `pkg/kubelet/types/pod_update.go: IsCriticalPod`.

use crate::core::pod::Pod;

/// Where the kubelet has a pod from. Present and other than `api`: a static pod.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Present: the API server's image of a static pod.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// `scheduling.SystemCriticalPriority`.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Static pods, their mirrors, and pods of system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let is_static = pod.annotations.get(CONFIG_SOURCE).is_some_and(|source| &**source != "api");
    is_static
        || pod.annotations.contains_key(CONFIG_MIRROR)
        || pod.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}
