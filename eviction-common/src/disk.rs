//! Bytes and inodes of file systems: what is counted per memory cgroup, and the thresholds.

use crate::Header;

/// On how many file systems a threshold can be set at once: nodefs, imagefs and containerfs, and one
/// that replaces another.
pub const DISKS: u32 = 4;

/// A threshold on one file system; an element of map `DISK_THRESHOLDS`, which has it by a load where a hash
/// map takes a call. The programs count nothing on a device that has none. User space writes it while they read:
/// whoever sees half of it fires too early, which a sample finds out, or for an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DiskThreshold {
    /// Number of this setting; none is used twice, of memory's neither.
    pub generation: u64,
    /// Fires when [`DiskTotal::bytes`] is at least this; `i64::MAX` never.
    pub bytes_limit: i64,
    /// Fires when [`DiskTotal::inodes`] is at least this; `i64::MAX` never.
    pub inodes_limit: i64,
    /// For each [`DiskResource`] the generation that fired last, as in [`crate::MemcgThreshold::fired`].
    pub fired: [u64; 2],
    /// The kernel's number of the device (`super_block.s_dev`: major << 20 | minor); 0 is none.
    pub device: u32,
    /// Explicit padding.
    pub pad: u32,
}

/// What was taken of a file system since its slot was given to it, by whomever; an element of map
/// `DISK_TOTALS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskTotal {
    /// Bytes that were reserved for delayed allocation and are not allocated yet. A reservation from
    /// before the hook was attached is not in it.
    pub reserved: i64,
    /// Bytes allocated less bytes freed, without those that were in `reserved` before.
    pub allocated: i64,
    /// Inodes allocated less inodes freed.
    pub inodes: i64,
}

impl DiskTotal {
    /// Bytes that are not available any more.
    pub const fn bytes(&self) -> i64 {
        self.reserved.wrapping_add(self.allocated)
    }
}

/// Whose usage of which file system; the key of map `DISK_USAGE`.
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

/// What the tasks of a memory cgroup took of a file system less what they gave back; the value of map
/// `DISK_USAGE`. A cgroup that is removed leaves it to its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskUsage {
    /// Bytes; negative if it freed what another one had taken.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

/// What there is of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DiskResource {
    /// Bytes.
    Bytes = 0,
    /// Inodes.
    Inodes = 1,
}

impl DiskResource {
    /// The one with this number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Bytes),
            1 => Some(Self::Inodes),
            _ => None,
        }
    }
}

/// A threshold on a file system was crossed. Pushed at once and with a wake-up, once for each setting
/// and resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DiskThresholdCrossed {
    /// [`crate::Kind::DiskThresholdCrossed`].
    pub header: Header,
    /// [`DiskThreshold::generation`].
    pub generation: u64,
    /// The memory cgroup that took what crossed it.
    pub leaf_id: u64,
    /// How far the total was then beyond the limit, bytes or inodes.
    pub beyond: u64,
    /// The kernel's device number.
    pub device: u32,
    /// A [`DiskResource`].
    pub resource: u32,
    /// The task that ran.
    pub tgid: u32,
    /// Its thread.
    pub pid: u32,
}

const _: () = {
    assert!(size_of::<DiskThreshold>() == 48);
    assert!(size_of::<DiskTotal>() == 24);
    assert!(size_of::<DiskUser>() == 16);
    assert!(size_of::<DiskUsage>() == 16);
    assert!(size_of::<DiskThresholdCrossed>() == 72);
};
