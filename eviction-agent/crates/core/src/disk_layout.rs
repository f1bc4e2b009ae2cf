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
        self.dedicated_image_fs && !self.split_image_fs
    }

    /// Returns whether the image file system is split, and the gates do not allow that.
    pub(crate) fn is_refused_by(self, gates: Gates) -> bool {
        self.split_image_fs && !gates.separate_disk_gc
    }

    /// Returns whether a split is reported without a dedicated imagefs. Counts as one file system for everything.
    pub(crate) fn is_inconsistent(self) -> bool {
        self.split_image_fs && !self.dedicated_image_fs
    }

    /// Returns what to reclaim before evicting, which is what is on the file system of the signal:
    /// `helpers.go: buildSignalToNodeReclaimFuncs`.
    pub fn reclaims(self, signal: Signal) -> &'static [Reclaim] {
        use Reclaim::{Containers, Images};
        // Terminated containers leave their writable layers.
        let has_layers = self.parts(signal).rootfs;
        let has_images = match signal {
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => !self.dedicated_image_fs,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => true,
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => !self.is_split(),
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => false,
        };
        match (has_layers, has_images) {
            (true, true) => &[Containers, Images],
            (true, false) => &[Containers],
            (false, true) => &[Images],
            (false, false) => &[],
        }
    }

    /// Returns which parts of a pod count when a file system is short, which are those on it:
    /// `helpers.go: buildSignalToRankFunc`. Empty for signals of memory and process ids.
    pub fn parts(self, signal: Signal) -> Parts {
        let layers_are_on_node_fs = !self.has_layers_on_image_fs();
        // Logs and volumes are always on nodefs.
        let (rootfs, others) = match signal {
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => (layers_are_on_node_fs, true),
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => {
                (!self.is_split(), !self.dedicated_image_fs)
            }
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => (true, layers_are_on_node_fs),
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => {
                (false, false)
            }
        };
        Parts { rootfs, logs: others, volumes: others }
    }

    /// Returns whether images have a file system of their own, without the writable layers.
    fn is_split(self) -> bool {
        self.dedicated_image_fs && self.split_image_fs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reclaim::{Containers, Images};

    #[test]
    fn garbage_and_parts_of_pods_are_those_on_the_file_system() {
        let parts = |rootfs, logs, volumes| Parts { rootfs, logs, volumes };
        let (all, others, layers, none) =
            (Parts::ALL, parts(false, true, true), parts(true, false, false), Parts::default());
        let both: &[Reclaim] = &[Containers, Images];
        // By layout: nodefs, imagefs, containerfs.
        for (dedicated_image_fs, split_image_fs, expected) in [
            (false, false, [(both, all), (both, all), (both, all)]),
            (false, true, [(both, all), (both, all), (both, all)]),
            (true, false, [(&[][..], others), (both, layers), (both, layers)]),
            (true, true, [(&[Containers][..], all), (&[Images][..], none), (&[Containers][..], all)]),
        ] {
            let layout = DiskLayout { dedicated_image_fs, split_image_fs };
            let of = |signal| (layout.reclaims(signal), layout.parts(signal));
            let bytes = [Signal::NodeFsAvailable, Signal::ImageFsAvailable, Signal::ContainerFsAvailable];
            let inodes = [Signal::NodeFsInodesFree, Signal::ImageFsInodesFree, Signal::ContainerFsInodesFree];
            assert_eq!((bytes.map(of), inodes.map(of)), (expected, expected), "{layout:?}");
            assert_eq!(of(Signal::MemoryAvailable), (&[][..], none));
        }
    }
}
