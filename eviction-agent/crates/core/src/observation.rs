//! Derives the nine observations from the node's values: `helpers.go: makeSignalObservations`.

use serde::{Deserialize, Serialize};

use super::reading::{Reading, UnknownReason};
use super::signal::{Resource, Signal};
use super::snapshot::{FsStats, MemoryStats, NodeStats, ProcessStats};
use super::time::Timestamp;
use super::units::{Format, Quantity};
use crate::units::Nanos;

/// The observation of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// The available amount, in the signal's unit. Values beyond 2^63 − 1 turn negative, as in the kubelet.
    pub available: i64,
    /// The capacity, in the signal's unit.
    pub capacity: i64,
    /// When the values were sampled.
    pub time: Option<Timestamp>,
}

/// The observation of each signal, or why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations([Reading<Observation>; Signal::COUNT]);

impl Observations {
    /// Derives all observations; those of memory are based on the working set. An observation exists only if
    /// all of its values do. There is no fallback from one file system to another.
    pub fn of(node: &NodeStats) -> Self {
        Self(Signal::ALL.map(|signal| match signal {
            Signal::MemoryAvailable => make(node.memory, memory),
            Signal::AllocatableMemoryAvailable => make(node.allocatable_memory, memory),
            Signal::NodeFsAvailable => make(node.node_fs, bytes),
            Signal::NodeFsInodesFree => make(node.node_fs, inodes),
            Signal::ImageFsAvailable => make(node.image_fs, bytes),
            Signal::ImageFsInodesFree => make(node.image_fs, inodes),
            Signal::ContainerFsAvailable => make(node.container_fs, bytes),
            Signal::ContainerFsInodesFree => make(node.container_fs, inodes),
            Signal::PidAvailable => make(node.processes, processes),
        }))
    }

    /// Replaces the observation of a signal.
    pub(super) fn set(&mut self, signal: Signal, reading: Reading<Observation>) {
        self.0[signal as usize] = reading;
    }

    /// Returns the observation of a signal, if there is one.
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.reading(signal).known()
    }

    /// Returns the observation of a signal, or why there is none.
    pub fn reading(&self, signal: Signal) -> Reading<Observation> {
        self.0[signal as usize]
    }
}

impl Observation {
    /// Returns the available amount, for comparisons.
    pub fn nanos(&self) -> Nanos {
        Nanos::from_units(i128::from(self.available))
    }

    /// Returns the available amount in the format in which the kubelet writes the signal.
    pub fn available_quantity(&self, signal: Signal) -> Quantity {
        let format = match signal.resource() {
            Resource::Memory | Resource::EphemeralStorage => Format::BinarySi,
            Resource::Inodes | Resource::Pids => Format::DecimalSi,
        };
        Quantity::from_i64(self.available, format)
    }
}

fn make<T>(group: Reading<T>, observe: fn(&T) -> Option<Observation>) -> Reading<Observation> {
    group.and_then(|values| observe(&values).ok_or(UnknownReason::Absent).into())
}

/// Returns the memory available to a cgroup. Its capacity is the sum of that and the working set.
fn memory(values: &MemoryStats) -> Option<Observation> {
    let capacity = values.available?.wrapping_add(values.working_set?).cast_signed();
    let available = values.available?.cast_signed();
    Some(Observation { available, capacity, time: values.time })
}

fn bytes(values: &FsStats) -> Option<Observation> {
    let (available, capacity) = (values.available?.cast_signed(), values.capacity?.cast_signed());
    Some(Observation { available, capacity, time: values.time })
}

fn inodes(values: &FsStats) -> Option<Observation> {
    let (available, capacity) = (values.inodes_free?.cast_signed(), values.inodes?.cast_signed());
    Some(Observation { available, capacity, time: values.time })
}

fn processes(values: &ProcessStats) -> Option<Observation> {
    let (available, capacity) = (values.max?.wrapping_sub(values.running?), values.max?);
    Some(Observation { available, capacity, time: values.time })
}
