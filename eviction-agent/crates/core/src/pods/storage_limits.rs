//! What pods may use of the local disk by their own specification.

use crate::pod::Pod;
use crate::pods::requests::pod_limit;
use crate::signal::Resource;
use crate::units::Nanos;

/// The limits of a pod's local storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLimits {
    /// Of its emptyDir volumes with a limit above zero, in the order of the specification.
    pub empty_dirs: Vec<EmptyDirLimit>,
    /// Of all containers together, if any of them has one.
    pub pod: Option<Nanos>,
    /// Of its main containers, other than zero.
    pub containers: Vec<ContainerLimit>,
}

/// The limit of an emptyDir volume, on whatever medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyDirLimit {
    /// The place of the volume in the specification.
    pub volume: usize,
    /// Its name.
    pub name: Box<str>,
    /// `sizeLimit`.
    pub limit: Nanos,
}

/// The limit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimit {
    /// The place of the container in the specification.
    pub container: usize,
    /// Its name, which no other limit here has.
    pub name: Box<str>,
    /// `limits["ephemeral-storage"]`.
    pub limit: Nanos,
}

impl LocalLimits {
    /// The limits in a specification.
    pub fn of(pod: &Pod) -> Self {
        Self {
            empty_dirs: empty_dirs(pod),
            pod: pod_limit(pod, Resource::EphemeralStorage.name()).map(|limit| Nanos::from_quantity(&limit)),
            containers: containers(pod),
        }
    }

    /// Whether there is nothing to hold the pod to.
    pub fn is_empty(&self) -> bool {
        let Self { empty_dirs, pod, containers } = self;
        empty_dirs.is_empty() && pod.is_none() && containers.is_empty()
    }
}

fn empty_dirs(pod: &Pod) -> Vec<EmptyDirLimit> {
    let limit = |(volume, spec): (usize, &crate::pod::Volume)| {
        let limit = spec.empty_dir.as_ref()?.size_limit.as_ref()?;
        (limit.signum() > 0).then(|| EmptyDirLimit {
            volume,
            name: spec.name.clone(),
            limit: Nanos::from_quantity(limit),
        })
    };
    pod.volumes.iter().enumerate().filter_map(limit).collect()
}

/// Of several containers with the same name the last one with a limit counts.
fn containers(pod: &Pod) -> Vec<ContainerLimit> {
    let mut limits: Vec<ContainerLimit> = Vec::new();
    for (place, container) in pod.containers.iter().enumerate() {
        let storage = Resource::EphemeralStorage.name();
        let Some(limit) = container.resources.limits.get(storage) else {
            continue;
        };
        if limit.value() == 0 {
            continue;
        }
        limits.retain(|other| other.name != container.name);
        limits.push(ContainerLimit {
            container: place,
            name: container.name.clone(),
            limit: Nanos::from_quantity(limit),
        });
    }
    limits
}

/// The least limit of each kind that a pod has, as the first whole number of bytes above it.
/// What does not reach it exceeds no limit of that kind, whatever its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeastLimits {
    /// Of its emptyDir volumes.
    pub(crate) empty_dir: Option<i64>,
    /// Of all containers together.
    pub(crate) pod: Option<i64>,
    /// Of its containers.
    pub(crate) container: Option<i64>,
}

impl LeastLimits {
    pub(super) fn of(LocalLimits { empty_dirs, pod, containers }: &LocalLimits) -> Self {
        Self {
            empty_dir: empty_dirs.iter().map(|dir| dir.limit.next_unit()).min(),
            pod: pod.map(Nanos::next_unit),
            container: containers.iter().map(|container| container.limit.next_unit()).min(),
        }
    }
}
