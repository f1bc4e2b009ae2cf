//! Derives the nine observations from the node's values: `helpers.go: makeSignalObservations`.

use serde::{Deserialize, Serialize};

use super::reading::{Reading, UnknownReason};
use super::signal::{Resource, Signal};
use super::snapshot::{FsStats, MemoryStats, NodeStats, ProcessStats, SourceId};
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
    /// The source of the values.
    pub source: SourceId,
}

/// The observation of each signal, or why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations([Reading<Observation>; Signal::COUNT]);

impl Observations {
    /// Derives all observations; those of memory are based on the working set. An observation exists only if
    /// all of its values do. There is no fallback from one file system to another.
    pub fn of(node: &NodeStats) -> Self {
        let NodeStats {
            memory: of_node,
            allocatable_memory,
            node_fs,
            image_fs,
            container_fs,
            processes: pids,
            memory_detail: _,
            unmeasured: _,
        } = *node;
        Self(Signal::ALL.map(|signal| match signal {
            Signal::MemoryAvailable => make(of_node, memory),
            Signal::AllocatableMemoryAvailable => make(allocatable_memory, memory),
            Signal::NodeFsAvailable => make(node_fs, bytes),
            Signal::NodeFsInodesFree => make(node_fs, inodes),
            Signal::ImageFsAvailable => make(image_fs, bytes),
            Signal::ImageFsInodesFree => make(image_fs, inodes),
            Signal::ContainerFsAvailable => make(container_fs, bytes),
            Signal::ContainerFsInodesFree => make(container_fs, inodes),
            Signal::PidAvailable => make(pids, processes),
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
    match group {
        Reading::Known(values) => {
            observe(&values).map_or(Reading::Unknown(UnknownReason::Absent), Reading::Known)
        }
        Reading::Unknown(why) => Reading::Unknown(why),
    }
}

/// Returns the memory available to a cgroup. Its capacity is the sum of that and the working set.
fn memory(values: &MemoryStats) -> Option<Observation> {
    let (available, working_set) = (values.available?, values.working_set?);
    Some(Observation {
        available: available.cast_signed(),
        capacity: available.wrapping_add(working_set).cast_signed(),
        time: values.time,
        source: values.source,
    })
}

fn bytes(values: &FsStats) -> Option<Observation> {
    Some(Observation {
        available: values.available?.cast_signed(),
        capacity: values.capacity?.cast_signed(),
        time: values.time,
        source: values.source,
    })
}

fn inodes(values: &FsStats) -> Option<Observation> {
    Some(Observation {
        available: values.inodes_free?.cast_signed(),
        capacity: values.inodes?.cast_signed(),
        time: values.time,
        source: values.source,
    })
}

fn processes(values: &ProcessStats) -> Option<Observation> {
    let (max, running) = (values.max?, values.running?);
    Some(Observation {
        available: max.wrapping_sub(running),
        capacity: max,
        time: values.time,
        source: values.source,
    })
}
