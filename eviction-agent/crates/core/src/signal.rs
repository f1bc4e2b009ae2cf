//! The nine eviction signals, what they starve of, and the node condition each raises.
//!
//! Mirrors `pkg/kubelet/eviction/api/types.go` and the tables in `helpers.go: init`.

use std::fmt;

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
    /// How many there are; a signal as `usize` is below.
    pub const COUNT: usize = Self::ALL.len();

    /// The signal of a name in a configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// What is short when a threshold of this signal is met.
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

    /// The node condition that a met threshold of this signal raises.
    pub const fn condition(self) -> NodeCondition {
        match self.resource() {
            Resource::Memory => NodeCondition::MemoryPressure,
            Resource::EphemeralStorage | Resource::Inodes => NodeCondition::DiskPressure,
            Resource::Pids => NodeCondition::PidPressure,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some of the signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u16);

impl SignalSet {
    /// None of them.
    pub const EMPTY: Self = Self(0);

    /// Adds one.
    pub fn insert(&mut self, signal: Signal) {
        self.0 |= 1 << signal as u16;
    }

    /// Whether it is among them.
    pub fn contains(self, signal: Signal) -> bool {
        self.0 & 1 << signal as u16 != 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// In the order of [`Signal::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        Signal::ALL.into_iter().filter(move |signal| self.contains(*signal))
    }
}

crate::named_enum! {
    /// What a node can run out of.
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

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

crate::named_enum! {
    /// A condition of the node that holds while it is short of something.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum NodeCondition {
        /// Disk space or inodes.
        DiskPressure = "DiskPressure",
        /// Memory.
        MemoryPressure = "MemoryPressure",
        /// Process ids.
        #[serde(rename = "PIDPressure")]
        PidPressure = "PIDPressure",
    }
}

impl NodeCondition {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
