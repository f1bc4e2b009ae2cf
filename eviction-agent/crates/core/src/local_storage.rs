//! Pods above their own limits of local storage: `eviction_manager.go: localStorageEviction`.

use super::milli_units::Nanos;
use super::pods::{LeastLimits, LimitedPod};
use super::snapshot::{ContainerStatValues, ContainerStats, PodStats};
use crate::eviction::Cause;

/// What holding a pod to its limits gave, critical or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageVerdict {
    /// The first limit that is exceeded.
    pub(crate) cause: Option<Cause>,
    /// Limited volumes whose usage is not known. The kubelet crashes on them.
    pub(crate) unknown_volumes: u32,
}

/// Holds a pod to its limits: its emptyDir volumes, then all containers together, then each
/// one. The first limit that is exceeded is the reason for the pod to go.
pub(crate) fn judge(pod: LimitedPod<'_>, stats: PodStats<'_>, dedicated_image_fs: bool) -> StorageVerdict {
    let mut verdict = StorageVerdict::default();
    if is_below_the_least(pod.least(), stats, dedicated_image_fs) {
        return verdict;
    }
    verdict.cause = exceeded_empty_dir(pod, stats, &mut verdict.unknown_volumes)
        .or_else(|| exceeds_pod_limit(pod, stats))
        .or_else(|| exceeding_container(pod, stats, dedicated_image_fs));
    verdict
}

/// Whether nothing reaches the least limit of its kind, and all volumes are known that could: the
/// usual case, which is decided without a look at names.
fn is_below_the_least(least: LeastLimits, stats: PodStats<'_>, dedicated_image_fs: bool) -> bool {
    let LeastLimits { empty_dir, pod, container } = least;
    let is_below = |used: i64, limit: Option<i64>| limit.is_none_or(|limit| used < limit);
    let bytes = |used: Option<u64>| used.unwrap_or(0).cast_signed();
    is_below(bytes(stats.figures().ephemeral_storage_used), pod)
        && (container.is_none()
            || stats.containers().map(ContainerStats::figures).all(|figures| {
                let rootfs = if dedicated_image_fs { 0 } else { bytes(figures.rootfs_used) };
                is_below(bytes(figures.logs_used).saturating_add(rootfs), container)
            }))
        && (empty_dir.is_none()
            || stats.volumes().all(|volume| {
                volume.figures().used.is_some_and(|used| is_below(used.cast_signed(), empty_dir))
            }))
}

/// `emptyDirLimitEviction`. The last statistics of a name count.
fn exceeded_empty_dir(pod: LimitedPod<'_>, stats: PodStats<'_>, unknown: &mut u32) -> Option<Cause> {
    for dir in pod.empty_dirs() {
        let Some(volume) = stats.volumes().rfind(|volume| volume.is_named(dir.name)) else {
            continue;
        };
        match volume.figures().used {
            Some(used) if bytes(used) > dir.limit => return Some(Cause::EmptyDir { volume: dir.index }),
            Some(_) => {}
            None => *unknown += 1,
        }
    }
    None
}

/// `podEphemeralStorageLimitEviction`. No figure counts as nothing used.
fn exceeds_pod_limit(pod: LimitedPod<'_>, stats: PodStats<'_>) -> Option<Cause> {
    let used = stats.figures().ephemeral_storage_used.unwrap_or(0);
    (bytes(used) > pod.pod_limit()?).then_some(Cause::PodStorage)
}

/// `containerEphemeralStorageLimitEviction`. Writable layers count only where they lie on the
/// kubelet's file system, or were taken to.
fn exceeding_container(pod: LimitedPod<'_>, stats: PodStats<'_>, dedicated_image_fs: bool) -> Option<Cause> {
    if pod.containers().len() == 0 {
        return None;
    }
    let used = |figures: ContainerStatValues| {
        let logs = bytes(figures.logs_used.unwrap_or(0));
        let rootfs = if dedicated_image_fs { None } else { figures.rootfs_used };
        logs.plus(bytes(rootfs.unwrap_or(0)))
    };
    stats.containers().find_map(|container| {
        let limit = pod.containers().find(|limit| container.is_named(limit.name))?;
        let exceeds = used(container.figures()) > limit.limit;
        exceeds.then_some(Cause::ContainerStorage { container: limit.index })
    })
}

fn bytes(used: u64) -> Nanos {
    Nanos::from_units(i128::from(used.cast_signed()))
}
