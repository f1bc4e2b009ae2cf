//! Pods above their own limits of local storage: `eviction_manager.go: localStorageEviction`.

use super::decision::Cause;
use super::exact::Nanos;
use super::pods::LimitedPod;
use super::snapshot::{ContainerFigures, PodStats};

/// What holding a pod to its limits gave, critical or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The first limit that is exceeded.
    pub(crate) cause: Option<Cause>,
    /// Limited volumes whose usage is not known. The kubelet crashes on them.
    pub(crate) unknown_volumes: u32,
}

/// Holds a pod to its limits: its emptyDir volumes, then all containers together, then each
/// one. The first limit that is exceeded is the reason for the pod to go.
pub(crate) fn judge(pod: LimitedPod<'_>, stats: PodStats<'_>, dedicated_image_fs: bool) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.cause = exceeded_empty_dir(pod, stats, &mut verdict.unknown_volumes)
        .or_else(|| exceeds_pod_limit(pod, stats))
        .or_else(|| exceeding_container(pod, stats, dedicated_image_fs));
    verdict
}

/// `emptyDirLimitEviction`. The last statistics of a name count.
fn exceeded_empty_dir(pod: LimitedPod<'_>, stats: PodStats<'_>, unknown: &mut u32) -> Option<Cause> {
    for dir in pod.empty_dirs() {
        let Some(volume) = stats.volumes().rfind(|volume| volume.name() == dir.name) else {
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
    let used = |figures: ContainerFigures| {
        let logs = bytes(figures.logs_used.unwrap_or(0));
        let rootfs = if dedicated_image_fs { None } else { figures.rootfs_used };
        logs.plus(bytes(rootfs.unwrap_or(0)))
    };
    stats.containers().find_map(|container| {
        let limit = pod.containers().find(|limit| limit.name == container.name())?;
        let exceeds = used(container.figures()) > limit.limit;
        exceeds.then_some(Cause::ContainerStorage { container: limit.index })
    })
}

fn bytes(used: u64) -> Nanos {
    Nanos::from_units(i128::from(used.cast_signed()))
}
