//! The limits of local storage in the specifications of pods.

use crate::pod::Pod;
use crate::pods::requests::pod_limit;
use crate::signal::Resource;
use crate::units::{Nanos, Quantity};

/// The limits of a pod's local storage, in bytes. Fractions of a byte are dropped, because they cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLimits {
    /// The limits of emptyDir volumes with a limit above zero, in the order of the specification.
    pub empty_dirs: Vec<NamedLimit>,
    /// The limit of all containers together, if any of them has one.
    pub pod: Option<i128>,
    /// The limits of the main containers, other than zero.
    pub containers: Vec<NamedLimit>,
}

/// The limit of an emptyDir volume on any medium, or of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    /// The index of the volume or container in the specification.
    pub index: usize,
    /// The name of the volume or container. No two limits of containers have the same name.
    pub name: Box<str>,
    /// `sizeLimit` or `limits["ephemeral-storage"]`, in bytes.
    pub limit: i128,
}

impl LocalLimits {
    /// Returns the limits in a specification.
    pub fn of(pod: &Pod) -> Self {
        Self {
            empty_dirs: empty_dirs(pod),
            pod: pod_limit(pod, Resource::EphemeralStorage.name()).map(|limit| bytes(&limit)),
            containers: containers(pod),
        }
    }

    /// Returns the lowest limit in bytes; `None` without limits.
    pub fn lowest(&self) -> Option<i128> {
        let volumes = self.empty_dirs.iter().map(|volume| volume.limit);
        let containers = self.containers.iter().map(|container| container.limit);
        volumes.chain(containers).chain(self.pod).min()
    }

    /// Returns whether the pod has no limits.
    pub fn is_empty(&self) -> bool {
        self.lowest().is_none()
    }
}

fn empty_dirs(pod: &Pod) -> Vec<NamedLimit> {
    let limit = |(index, spec): (usize, &crate::pod::Volume)| {
        let limit = spec.empty_dir.as_ref()?.size_limit.as_ref()?;
        (limit.signum() > 0).then(|| NamedLimit { index, name: spec.name.clone(), limit: bytes(limit) })
    };
    pod.volumes.iter().enumerate().filter_map(limit).collect()
}

/// Returns the limits of the main containers. Of several containers with the same name, the last one with a
/// limit counts.
fn containers(pod: &Pod) -> Vec<NamedLimit> {
    let mut limits: Vec<NamedLimit> = Vec::new();
    for (index, container) in pod.containers.iter().enumerate() {
        let limit = container.resources.limits.get(Resource::EphemeralStorage.name());
        let Some(limit) = limit.filter(|limit| limit.value() != 0) else { continue };
        limits.retain(|other| other.name != container.name);
        limits.push(NamedLimit { index, name: container.name.clone(), limit: bytes(limit) });
    }
    limits
}

fn bytes(limit: &Quantity) -> i128 {
    Nanos::from_quantity(limit).get().div_euclid(Nanos::from_units(1).get())
}
