//! The node's file systems: where they are, what is available on them, and what pods use of them.
//!
//! The signals need no privilege: `/etc/hosts` of any pod is on nodefs, and its `/` on the file system of the
//! writable layers. The usage of pods needs permission to read the kubelet's root directory.

mod disk_usage;
mod layout;
mod monitor;
mod pod_storage;
mod statistics;

pub use disk_usage::{DiskUsage, WalkBudget, read_disk_usage};
pub use layout::{FsPaths, NodeFileSystems};
pub use monitor::{DeviceHeadroom, DiskMonitor, SummaryFileSystems};
pub use pod_storage::{
    ContainerStorage, InodeGrowth, PodStorage, StorageReader, StorageRequest, StorageSample, read_pod_storage,
};
pub use statistics::FileSystem;
