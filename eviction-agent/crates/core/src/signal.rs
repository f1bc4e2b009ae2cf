//! The nine eviction signals, the resource that each one measures, and the node condition that each one raises.
//!
//! Mirrors `pkg/kubelet/eviction/api/types.go` and the tables in `helpers.go: init`.

use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// What is measured. A threshold is met when the value is *less than* its value.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
    )]
    pub enum Signal {
        /// Memory capacity less working set of the node, in bytes.
        #[serde(rename = "memory.available")]
        MemoryAvailable = "memory.available",
        /// The same of the cgroup that holds all pods.
        #[serde(rename = "allocatableMemory.available")]
        AllocatableMemoryAvailable = "allocatableMemory.available",
        /// Bytes free on the kubelet's file system.
        #[serde(rename = "nodefs.available")]
        NodeFsAvailable = "nodefs.available",
        /// Inodes free on the kubelet's file system.
        #[serde(rename = "nodefs.inodesFree")]
        NodeFsInodesFree = "nodefs.inodesFree",
        /// Bytes free on the file system of the images.
        #[serde(rename = "imagefs.available")]
        ImageFsAvailable = "imagefs.available",
        /// Inodes free on the file system of the images.
        #[serde(rename = "imagefs.inodesFree")]
        ImageFsInodesFree = "imagefs.inodesFree",
        /// Bytes free on the file system of the writable layers.
        #[serde(rename = "containerfs.available")]
        ContainerFsAvailable = "containerfs.available",
        /// Inodes free on the file system of the writable layers.
        #[serde(rename = "containerfs.inodesFree")]
        ContainerFsInodesFree = "containerfs.inodesFree",
        /// Process ids left. May be negative.
        #[serde(rename = "pid.available")]
        PidAvailable = "pid.available",
    }
}

impl Signal {
    /// The number of signals. A signal as `usize` is below it.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the signal with this name in a configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// Returns the resource that is short when a threshold of this signal is met.
    pub const fn resource(self) -> Resource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Resource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                Resource::EphemeralStorage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                Resource::Inodes
            }
            Self::PidAvailable => Resource::Pids,
        }
    }

    /// Returns the node condition that a met threshold of this signal raises.
    pub const fn condition(self) -> NodeCondition {
        match self.resource() {
            Resource::Memory => NodeCondition::MemoryPressure,
            Resource::EphemeralStorage | Resource::Inodes => NodeCondition::DiskPressure,
            Resource::Pids => NodeCondition::PidPressure,
        }
    }
}

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u16);

impl SignalSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Adds a signal.
    pub fn insert(&mut self, signal: Signal) {
        self.0 |= 1 << signal as u16;
    }

    /// Returns whether a signal is in the set.
    pub fn contains(self, signal: Signal) -> bool {
        self.0 & 1 << signal as u16 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Returns the signals in the order of [`Signal::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.into_iter().filter(move |signal| self.contains(*signal))
    }
}

crate::named_enum! {
    /// A resource that a node can run out of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Resource {
        /// Bytes of memory.
        Memory = "memory",
        /// Bytes of local disk.
        EphemeralStorage = "ephemeral-storage",
        /// Inodes of local disk.
        Inodes = "inodes",
        /// Process ids.
        Pids = "pids",
    }
}

crate::named_enum! {
    /// A condition of the node that holds while a resource is short.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum NodeCondition {
        /// Disk space or inodes are short.
        DiskPressure = "DiskPressure",
        /// Memory is short.
        MemoryPressure = "MemoryPressure",
        /// Process ids are short.
        #[serde(rename = "PIDPressure")]
        PidPressure = "PIDPressure",
    }
}

impl NodeCondition {
    /// The number of conditions.
    pub const COUNT: usize = Self::ALL.len();
}
