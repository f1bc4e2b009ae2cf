//! One look at the node and its pods.
//!
//! A snapshot of ten thousand pods is a handful of flat arrays: building it into an old one
//! allocates nothing, and dropping it frees a few blocks. It is filled by [`SnapshotBuilder`], and
//! [`SnapshotPool`] keeps the old one.

mod builder;
mod join;
mod node;
mod pool;
#[cfg(test)]
mod tests;
mod values;

use std::ops::Range;

pub use builder::{PodBuilder, SnapshotBuilder};
pub use node::{FsStats, MemoryDetail, MemoryStats, NodeStats, ProcessStats, SourceId};
pub use pool::SnapshotPool;
pub use values::{ContainerStatValues, PodStatValues, VolumeStatValues};

use super::work::step;
use join::Joined;
use values::OptionalValues;

pub(crate) use join::NO_STATS;

/// One look at the node and its pods.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The node's own figures.
    pub node: NodeStats,
    text: String,
    pods: Vec<PodEntry>,
    containers: Vec<ContainerEntry>,
    volumes: Vec<VolumeEntry>,
    joined: Joined,
}

/// A piece of the snapshot's text.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct PodEntry {
    uid: Span,
    containers: (u32, u32),
    volumes: (u32, u32),
    figures: OptionalValues<4>,
}

#[derive(Clone, Copy, Debug)]
struct ContainerEntry {
    name: Span,
    figures: OptionalValues<5>,
}

#[derive(Clone, Copy, Debug)]
struct VolumeEntry {
    name: Span,
    figures: OptionalValues<2>,
}

impl Snapshot {
    /// Of how many pods there are statistics.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are statistics of no pod.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The statistics at a place below [`Snapshot::len`], which `NO_STATS` never is.
    pub fn pod(&self, place: u32) -> Option<PodStats<'_>> {
        step();
        self.pods.get(place as usize).map(|entry| PodStats { snapshot: self, entry })
    }

    /// The statistics of all pods, in the order in which they were added.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = PodStats<'_>> {
        self.pods.iter().map(|entry| {
            step();
            PodStats { snapshot: self, entry }
        })
    }

    fn text(&self, span: Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }
}

/// The statistics of one pod: `stats.PodStats`.
#[derive(Clone, Copy, Debug)]
pub struct PodStats<'a> {
    snapshot: &'a Snapshot,
    entry: &'a PodEntry,
}

impl<'a> PodStats<'a> {
    /// `podRef.uid`.
    pub fn uid(self) -> &'a str {
        self.snapshot.text(self.entry.uid)
    }

    /// The pod's own figures.
    pub fn figures(self) -> PodStatValues {
        PodStatValues::unpack(self.entry.figures)
    }

    /// The containers, in order, whatever their kind.
    pub fn containers(self) -> impl ExactSizeIterator<Item = ContainerStats<'a>> {
        let text = &self.snapshot.text;
        slice(&self.snapshot.containers, self.entry.containers).iter().map(move |entry| {
            step();
            ContainerStats { text, entry }
        })
    }

    /// The volumes, in order.
    pub fn volumes(self) -> impl DoubleEndedIterator<Item = VolumeStats<'a>> {
        let text = &self.snapshot.text;
        slice(&self.snapshot.volumes, self.entry.volumes).iter().map(move |entry| {
            step();
            VolumeStats { text, entry }
        })
    }
}

/// The statistics of one container: `stats.ContainerStats`.
#[derive(Clone, Copy, Debug)]
pub struct ContainerStats<'a> {
    text: &'a str,
    entry: &'a ContainerEntry,
}

impl<'a> ContainerStats<'a> {
    /// `name`.
    pub fn name(self) -> &'a str {
        part(self.text, self.entry.name)
    }

    /// Whether that is its name; quicker than to ask for the name.
    #[inline]
    pub fn is_named(self, name: &str) -> bool {
        is_named(self.text, self.entry.name, name)
    }

    /// Its figures.
    pub fn figures(self) -> ContainerStatValues {
        ContainerStatValues::unpack(self.entry.figures)
    }
}

/// The statistics of one volume: `stats.VolumeStats`.
#[derive(Clone, Copy, Debug)]
pub struct VolumeStats<'a> {
    text: &'a str,
    entry: &'a VolumeEntry,
}

impl<'a> VolumeStats<'a> {
    /// `name`.
    pub fn name(self) -> &'a str {
        part(self.text, self.entry.name)
    }

    /// Whether that is its name; quicker than to ask for the name.
    #[inline]
    pub fn is_named(self, name: &str) -> bool {
        is_named(self.text, self.entry.name, name)
    }

    /// Its figures.
    pub fn figures(self) -> VolumeStatValues {
        VolumeStatValues::unpack(self.entry.figures)
    }
}

fn part(text: &str, span: Span) -> &str {
    text.get(span.start as usize..span.end as usize).unwrap_or_default()
}

/// Names of other lengths are told apart without fetching them.
#[inline]
fn is_named(text: &str, Span { start, end }: Span, name: &str) -> bool {
    (end - start) as usize == name.len()
        && text.as_bytes().get(start as usize..end as usize) == Some(name.as_bytes())
}

fn slice<T>(all: &[T], (start, end): (u32, u32)) -> &[T] {
    all.get(Range { start: start as usize, end: end as usize }).unwrap_or_default()
}
