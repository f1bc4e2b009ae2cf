//! What pods may use of the local disk by their own specification: the limits of one pod, and those
//! of all pods in a few arrays.

use std::ops::Range;

use crate::pod::Pod;
use crate::pods::KnownPod;
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

/// All pods with limits of their local storage.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitedPods {
    pods: Vec<LimitedPodEntry>,
    dirs: Vec<NamedLimitEntry>,
    containers: Vec<NamedLimitEntry>,
    text: String,
}

#[derive(Clone, Debug)]
struct LimitedPodEntry {
    pod_index: u32,
    critical: bool,
    least: LeastLimits,
    pod: Option<Nanos>,
    dirs: Range<usize>,
    containers: Range<usize>,
}

#[derive(Clone, Debug)]
struct NamedLimitEntry {
    name: Range<usize>,
    limit: Nanos,
    index: usize,
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

/// A pod with limits of its local storage.
#[derive(Clone, Copy, Debug)]
pub struct LimitedPod<'a> {
    all: &'a LimitedPods,
    entry: &'a LimitedPodEntry,
}

/// A limit of a volume or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedLimit<'a> {
    /// The name.
    pub name: &'a str,
    /// The limit.
    pub limit: Nanos,
    /// The place in the specification.
    pub index: usize,
}

impl LimitedPods {
    /// Adds a pod if it has limits.
    pub(super) fn push(&mut self, place: u32, known: &KnownPod) {
        let limits = &known.limits;
        if limits.is_empty() {
            return;
        }
        let (dirs, containers) = (self.dirs.len(), self.containers.len());
        for dir in &limits.empty_dirs {
            let name = write(&mut self.text, &dir.name);
            self.dirs.push(NamedLimitEntry { name, limit: dir.limit, index: dir.volume });
        }
        for container in &limits.containers {
            let name = write(&mut self.text, &container.name);
            self.containers.push(NamedLimitEntry {
                name,
                limit: container.limit,
                index: container.container,
            });
        }
        self.pods.push(LimitedPodEntry {
            pod_index: place,
            critical: known.critical,
            least: LeastLimits::of(limits),
            pod: limits.pod,
            dirs: dirs..self.dirs.len(),
            containers: containers..self.containers.len(),
        });
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = LimitedPod<'_>> {
        self.pods.iter().map(|entry| LimitedPod { all: self, entry })
    }

    fn named(&self, limit: &NamedLimitEntry) -> NamedLimit<'_> {
        let NamedLimitEntry { name, limit, index } = limit.clone();
        NamedLimit { name: &self.text[name], limit, index }
    }
}

impl LeastLimits {
    fn of(LocalLimits { empty_dirs, pod, containers }: &LocalLimits) -> Self {
        Self {
            empty_dir: empty_dirs.iter().map(|dir| dir.limit.next_unit()).min(),
            pod: pod.map(Nanos::next_unit),
            container: containers.iter().map(|container| container.limit.next_unit()).min(),
        }
    }
}

impl<'a> LimitedPod<'a> {
    /// Its place among the active pods.
    pub fn index(self) -> u32 {
        self.entry.pod_index
    }

    /// Whether it must never be evicted.
    pub fn critical(self) -> bool {
        self.entry.critical
    }

    /// What no figure reaches in a pod that is within its limits.
    pub(crate) fn least(self) -> LeastLimits {
        self.entry.least
    }

    /// The limit of all containers together.
    pub fn pod_limit(self) -> Option<Nanos> {
        self.entry.pod
    }

    /// The limits of its emptyDir volumes, in the order of the specification.
    pub fn empty_dirs(self) -> impl Iterator<Item = NamedLimit<'a>> {
        let limits = self.all.dirs[self.entry.dirs.clone()].iter();
        limits.map(|limit| self.all.named(limit))
    }

    /// The limits of its main containers, each of another name.
    pub fn containers(self) -> impl ExactSizeIterator<Item = NamedLimit<'a>> {
        let limits = self.all.containers[self.entry.containers.clone()].iter();
        limits.map(|limit| self.all.named(limit))
    }
}

fn write(text: &mut String, name: &str) -> Range<usize> {
    let start = text.len();
    text.push_str(name);
    start..text.len()
}
