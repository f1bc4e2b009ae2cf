//! Which pods are never evicted: `pkg/kubelet/types/pod_update.go: IsCriticalPod`.

use super::annotations::{CONFIG_MIRROR, CONFIG_SOURCE};
use crate::pod::Pod;

/// `scheduling.SystemCriticalPriority`.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Static pods, their mirrors, and pods of system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let is_static = pod.annotations.get(CONFIG_SOURCE).is_some_and(|source| &**source != "api");
    is_static
        || pod.annotations.contains_key(CONFIG_MIRROR)
        || pod.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}
