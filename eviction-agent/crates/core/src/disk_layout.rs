//! What the layout of the node's file systems decides: what can be reclaimed on the node
//! itself, and which parts of a pod lie on a file system that is short.

use serde::{Deserialize, Serialize};

use super::signal::Signal;

/// Which file systems are separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLayout {
    /// Images are not on the kubelet's file system: `HasDedicatedImageFs`.
    pub dedicated_image_fs: bool,
    /// Writable layers are not on the file system of the images: `HasDedicatedContainerFs`.
    /// An error of that question counts as no.
    pub split_image_fs: bool,
}

/// The three layouts that make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// One file system for all; also when a split is reported without a dedicated imagefs.
    Shared,
    /// Images and writable layers on one of their own.
    Dedicated,
    /// Images on one of their own, writable layers with everything else.
    Split,
}

crate::named_enum! {
    /// A kind of garbage that the node can be freed of without evicting a pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Reclaim {
        /// All containers that have ended: `DeleteAllUnusedContainers`.
        Containers = "containers",
        /// All images that no container uses: `DeleteUnusedImages`.
        Images = "images",
    }
}

/// How much the kubelet is estimated to free by node-level reclaim, and how much is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GarbageEstimate {
    /// Size of the images that no pod of the node names, in bytes.
    pub unused_bytes: u64,
    /// What is lacking to the threshold with its minimum reclaim, in bytes.
    pub deficit_bytes: u64,
}

/// The parts of a pod that lie on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// The writable layers of its containers.
    pub rootfs: bool,
    /// The logs of its containers.
    pub logs: bool,
    /// Its local volumes.
    pub volumes: bool,
}

impl Parts {
    /// All of them.
    pub const ALL: Self = Self { rootfs: true, logs: true, volumes: true };

    /// Whether all of these are among the others.
    pub fn are_within(self, others: Self) -> bool {
        (!self.rootfs || others.rootfs) && (!self.logs || others.logs) && (!self.volumes || others.volumes)
    }
}

impl DiskLayout {
    pub(crate) fn arrangement(self) -> Arrangement {
        match (self.dedicated_image_fs, self.split_image_fs) {
            (false, _) => Arrangement::Shared,
            (true, false) => Arrangement::Dedicated,
            (true, true) => Arrangement::Split,
        }
    }

    /// What to try before evicting: `helpers.go: buildSignalToNodeReclaimFuncs`.
    pub fn reclaims(self, signal: Signal) -> &'static [Reclaim] {
        use Reclaim::{Containers, Images};
        match (FileSystem::of(signal), self.arrangement()) {
            (None, _) | (Some(FileSystem::Node), Arrangement::Dedicated) => &[],
            (Some(_), Arrangement::Shared | Arrangement::Dedicated) => &[Containers, Images],
            (Some(FileSystem::Image), Arrangement::Split) => &[Images],
            (Some(_), Arrangement::Split) => &[Containers],
        }
    }

    /// What of a pod counts when a file system is short: `helpers.go: buildSignalToRankFunc`.
    /// Nothing for signals of memory and process ids.
    pub fn parts(self, signal: Signal) -> Parts {
        let parts = |rootfs, logs, volumes| Parts { rootfs, logs, volumes };
        match (FileSystem::of(signal), self.arrangement()) {
            (None, _) | (Some(FileSystem::Image), Arrangement::Split) => Parts::default(),
            (Some(FileSystem::Node), Arrangement::Dedicated) => parts(false, true, true),
            (Some(_), Arrangement::Dedicated) => parts(true, false, false),
            (Some(_), Arrangement::Shared | Arrangement::Split) => parts(true, true, true),
        }
    }
}

#[derive(Clone, Copy)]
enum FileSystem {
    Node,
    Image,
    Container,
}

impl FileSystem {
    fn of(signal: Signal) -> Option<Self> {
        match signal {
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => Some(Self::Node),
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => Some(Self::Image),
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => Some(Self::Container),
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => None,
        }
    }
}
