//! Usage of bytes and inodes of file systems per memory cgroup, and the thresholds on it.

use crate::{Header, numbered_enum::numbered_enum};

/// The maximum number of file systems with a threshold: nodefs, imagefs and containerfs, and one that
/// replaces another.
pub const DISKS: u32 = 4;

/// A threshold on one file system; an element of map `DISK_THRESHOLDS`. The map is an array, because an array
/// lookup is a load, while a hash map lookup is a call. The programs count nothing on a device without a
/// threshold. User space writes an element while programs read it. A program that reads a half-written
/// element fires too early, which the next sample detects, or fires for an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DiskThreshold {
    /// The number of this setting. Each number is used once, for memory thresholds and file systems together.
    pub generation: u64,
    /// Fires when [`DiskTotal::bytes`] is at least this; `i64::MAX` means never.
    pub bytes_limit: i64,
    /// Fires when [`DiskTotal::inodes`] is at least this; `i64::MAX` means never.
    pub inodes_limit: i64,
    /// The kernel's device number (`super_block.s_dev`: major << 20 | minor); 0 means none.
    pub device: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// The usage of a file system by all tasks since it was assigned to its slot; an element of map
/// `DISK_TOTALS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskTotal {
    /// Bytes of `allocated` that write-back allocated without a reservation that was observed. They may have
    /// been reserved, and thus taken, before the hook was attached. It is the first field, and is added to before
    /// `allocated`, so that a copy that is made meanwhile lacks none that is in its `allocated`.
    pub unreserved: i64,
    /// Bytes that are reserved for delayed allocation and not yet allocated. Reservations from before the
    /// hook was attached are not included.
    pub reserved: i64,
    /// Bytes allocated minus bytes freed. Write-back moves bytes from `reserved` to this field.
    pub allocated: i64,
    /// Inodes allocated minus inodes freed.
    pub inodes: i64,
}

impl DiskTotal {
    /// Returns the number of bytes that are no longer available.
    pub const fn bytes(&self) -> i64 {
        self.reserved.wrapping_add(self.allocated)
    }

    /// Returns [`DiskTotal::bytes`] without what may have been taken before. Only the difference of two values is
    /// meaningful: it is never more than what was taken between them.
    pub const fn observed(&self) -> i64 {
        self.bytes().wrapping_sub(self.unreserved)
    }
}

/// A memory cgroup and a file system that it uses; the key of map `DISK_USAGE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct DiskUser {
    /// The memory cgroup.
    pub id: u64,
    /// The index of the file system in maps `DISK_THRESHOLDS` and `DISK_TOTALS`.
    pub slot: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// What the tasks of a memory cgroup allocated on a file system minus what they freed, since the first
/// threshold on it; the value of map `DISK_USAGE`. When a cgroup is removed, its usage is added to that of its
/// parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskUsage {
    /// Bytes; negative if the cgroup freed what another cgroup had allocated.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

numbered_enum! {
    /// A resource of a file system.
    pub enum DiskResource: u32 {
        /// Bytes.
        Bytes = 0,
        /// Inodes.
        Inodes = 1,
    }
}

/// A threshold on a file system was crossed. The record is pushed at once with a wake-up, once for each
/// setting and resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskThresholdCrossed {
    /// [`crate::Kind::DiskThresholdCrossed`].
    pub header: Header,
    /// [`DiskThreshold::generation`].
    pub generation: u64,
    /// The memory cgroup that made the allocation.
    pub leaf_id: u64,
    /// By how much the total exceeds the limit, in bytes or inodes.
    pub beyond: u64,
    /// The kernel's device number.
    pub device: u32,
    /// A [`DiskResource`].
    pub resource: u32,
    /// The process of the running task.
    pub tgid: u32,
    /// The thread of the running task.
    pub pid: u32,
}

const _: () = {
    assert!(size_of::<DiskThreshold>() == 32);
    assert!(size_of::<DiskTotal>() == 32);
    assert!(size_of::<DiskUser>() == 16);
    assert!(size_of::<DiskUsage>() == 16);
    assert!(size_of::<DiskThresholdCrossed>() == 56);
};
