//! The layout of the node's file systems. It decides what can be reclaimed on the node itself, and which
//! parts of a pod are on a file system that is short.

use serde::{Deserialize, Serialize};

use super::policy::Gates;
use super::signal::Signal;

/// Which file systems are separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLayout {
    /// Images are not on the kubelet's file system: `HasDedicatedImageFs`.
    pub dedicated_image_fs: bool,
    /// Writable layers are not on the file system of the images: `HasDedicatedContainerFs`. False if that
    /// query fails.
    pub split_image_fs: bool,
}

/// The three layouts that the kubelet treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// One file system for everything. Also applies if a split is reported without a dedicated imagefs.
    Shared,
    /// Images and writable layers share a file system of their own.
    Dedicated,
    /// Images have a file system of their own, writable layers are with everything else.
    Split,
}

crate::named_enum! {
    /// A kind of garbage that can be removed from the node without evicting a pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Reclaim {
        /// All terminated containers: `DeleteAllUnusedContainers`.
        Containers = "containers",
        /// All images that no container uses: `DeleteUnusedImages`.
        Images = "images",
    }
}

/// How much the kubelet is estimated to free by node-level reclaim, and how much is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GarbageEstimate {
    /// The size of the images that no pod of the node names, in bytes.
    pub unused_bytes: u64,
    /// The deficit to the threshold including its minimum reclaim, in bytes.
    pub deficit_bytes: u64,
}

/// The parts of a pod that are on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// The writable layers of the pod's containers.
    pub rootfs: bool,
    /// The logs of the pod's containers.
    pub logs: bool,
    /// The local volumes of the pod.
    pub volumes: bool,
}

impl Parts {
    /// All parts.
    pub const ALL: Self = Self { rootfs: true, logs: true, volumes: true };

    /// Returns whether all of these parts are among the others.
    pub fn are_within(self, others: Self) -> bool {
        (!self.rootfs || others.rootfs) && (!self.logs || others.logs) && (!self.volumes || others.volumes)
    }
}

impl DiskLayout {
    /// Returns whether writable layers are on imagefs. Otherwise they are on nodefs.
    pub fn has_layers_on_image_fs(self) -> bool {
        self.arrangement() == Arrangement::Dedicated
    }

    pub(crate) fn arrangement(self) -> Arrangement {
        match (self.dedicated_image_fs, self.split_image_fs) {
            (false, _) => Arrangement::Shared,
            (true, false) => Arrangement::Dedicated,
            (true, true) => Arrangement::Split,
        }
    }

    /// Returns whether the image file system is split, and the gates do not allow that.
    pub(crate) fn is_refused_by(self, gates: Gates) -> bool {
        self.split_image_fs && !gates.separate_disk_gc
    }

    /// Returns what to reclaim before evicting: `helpers.go: buildSignalToNodeReclaimFuncs`.
    pub fn reclaims(self, signal: Signal) -> &'static [Reclaim] {
        use Reclaim::{Containers, Images};
        match (FileSystem::of(signal), self.arrangement()) {
            (None, _) | (Some(FileSystem::Node), Arrangement::Dedicated) => &[],
            (Some(_), Arrangement::Shared | Arrangement::Dedicated) => &[Containers, Images],
            (Some(FileSystem::Image), Arrangement::Split) => &[Images],
            (Some(_), Arrangement::Split) => &[Containers],
        }
    }

    /// Returns which parts of a pod count when a file system is short: `helpers.go: buildSignalToRankFunc`.
    /// Empty for signals of memory and process ids.
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
