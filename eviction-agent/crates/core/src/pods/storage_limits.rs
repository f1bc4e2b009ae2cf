//! The limits of all pods in a few arrays, so that a calm pass reads on instead of jumping.

use std::ops::Range;

use super::{KnownPod, LocalLimits};
use crate::milli_units::Nanos;

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
    place: u32,
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
            place,
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
    pub fn place(self) -> u32 {
        self.entry.place
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
