//! The annotations of pods that anything depends on.

use crate::pod::Pod;
use crate::pods::{DESCHEDULER_EVICT, DESCHEDULER_PREFER_NO_EVICTION, EVICT, PRIORITY_HINT};

/// Where the kubelet has a pod from. Present and other than `api`: a static pod.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Present: the API server's image of a static pod.
pub(super) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// On a static pod: the uid that its cgroup carries, which is not the one that the API shows.
pub(super) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The uid by which the cgroup of a static pod is known, if this is the API server's image of one: there
/// both annotations say it (`pkg/kubelet/pod/mirror_client.go: CreateMirrorPod`). Anybody may write
/// one of them on a pod of his own, which makes it no other pod.
pub fn mirrored_uid(pod: &Pod) -> Option<&str> {
    let hash = pod.annotations.get(CONFIG_HASH)?;
    (pod.annotations.get(CONFIG_MIRROR)? == hash).then_some(hash)
}

/// A pod of the API server as the kubelet has it, which notes by itself where it has pods from
/// (`pkg/kubelet/config/config.go: updatePodsFunc`): what the object says of that is anybody's word.
pub fn of_the_api(mut pod: Pod) -> Pod {
    if pod.annotations.contains_key(CONFIG_SOURCE) {
        let others = pod.annotations.iter().filter(|(key, _)| *key != CONFIG_SOURCE);
        pod.annotations = others.map(|(key, value)| (key.into(), value.clone())).collect();
    }
    pod
}

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
