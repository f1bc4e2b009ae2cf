//! The annotations of pods that anything depends on.

use crate::core::protection::{DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, PRIORITY_HINT};

/// Where the kubelet has a pod from. Present and other than `api`: a static pod.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Present: the API server's image of a static pod.
pub(super) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// On a static pod: the uid that its cgroup carries, which is not the one that the API shows.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Whether anything depends on the annotation. Others are not kept: a pod may have 256 KiB of them.
pub fn is_asked_for(annotation: &str) -> bool {
    [
        CONFIG_SOURCE,
        CONFIG_MIRROR,
        CONFIG_HASH,
        EVICT,
        PRIORITY_HINT,
        DESCHEDULER_EVICT,
        DESCHEDULER_PREFER_NO_EVICTION,
    ]
    .contains(&annotation)
}
