//! Bytes and inodes of file systems: counts them per memory cgroup and device, and compares them with the
//! thresholds, each of which fires once. The count is what a task allocated minus what it freed, on devices
//! that have a threshold. For all other devices the programs stop after the first lookup. The hooks are in
//! `disk_ext4.rs` and `disk_xfs.rs`.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task},
};
use eviction_common::{
    ABSENT, Counter, DISKS, DiskResource, DiskThreshold, DiskThresholdCrossed, DiskTotal, DiskUsage,
    DiskUser, FireToken, Kind,
};

use crate::{
    config::{abi_matches, offset},
    events::{URGENT, header, reserve_once},
    maps::{DISK_THRESHOLDS, DISK_TOTALS, DISK_USAGE, add, count},
    memcg::{id_of_css, id_of_task},
    probe_read::{Direct, Probe, Read},
};

/// A file system with a threshold.
pub(crate) struct Disk {
    pub(crate) device: u32,
    slot: u32,
    block_bits: u32,
    threshold: *const DiskThreshold,
    pub(crate) total: *mut DiskTotal,
}

/// An allocation of a task; negative values are freed.
pub(crate) struct Allocation {
    pub(crate) reserved: i64,
    pub(crate) allocated: i64,
    pub(crate) inodes: i64,
}

impl Disk {
    /// Returns the file system of an inode, if it has a threshold.
    ///
    /// # Safety
    /// `inode` is a pointer to an `inode`.
    #[inline(always)]
    pub(crate) unsafe fn of_inode(inode: *const u8) -> Option<Self> {
        if inode.is_null() {
            return None;
        }
        // SAFETY: the caller's promise, and the type of the member.
        unsafe { Self::of_super_block::<Direct>(Direct::at(inode, offset!(inode_sb))) }
    }

    /// Returns the file system of a super block, if it has a threshold.
    ///
    /// # Safety
    /// `super_block` is the address of a `super_block`, or 0.
    #[inline(always)]
    pub(crate) unsafe fn of_super_block<R: Read>(super_block: usize) -> Option<Self> {
        if !abi_matches() || super_block == 0 {
            return None;
        }
        let super_block = super_block as *const u8;
        // SAFETY: the types of the members.
        let device: u32 = unsafe { R::at(super_block, offset!(sb_dev)) };
        for slot in 0..DISKS {
            let threshold = DISK_THRESHOLDS.get_ptr(slot)?;
            // SAFETY: the map's value; volatile, since user space writes it.
            if unsafe { core::ptr::read_volatile(&raw const (*threshold).device) } == device {
                let total = DISK_TOTALS.get_ptr_mut(slot)?;
                // SAFETY: the types of the members.
                let block_bits = unsafe { R::at::<u8>(super_block, offset!(sb_block_bits)) };
                return Some(Self { device, slot, block_bits: u32::from(block_bits) & 31, threshold, total });
            }
        }
        None
    }

    #[inline(always)]
    pub(crate) fn bytes(&self, blocks: i64) -> i64 {
        blocks << self.block_bits
    }

    /// Adds the allocation to the totals and to the cgroup's usage, and compares the totals with the
    /// threshold.
    #[inline(always)]
    pub(crate) fn record(&self, id: u64, allocation: Allocation) {
        let Allocation { reserved, allocated, inodes } = allocation;
        // SAFETY: the map's value.
        unsafe {
            add_signed(&raw mut (*self.total).reserved, reserved);
            add_signed(&raw mut (*self.total).allocated, allocated);
            add_signed(&raw mut (*self.total).inodes, inodes);
        }
        if id != 0 {
            add_usage(DiskUser { id, slot: self.slot, pad: 0 }, reserved + allocated, inodes);
        }
        self.compare(id, reserved + allocated > 0, inodes > 0);
    }

    /// Returns the bytes taken from the file system so far.
    #[inline(always)]
    fn taken(&self) -> i64 {
        // SAFETY: the map's value; volatile, since other CPUs add to it.
        unsafe {
            let reserved = core::ptr::read_volatile(&raw const (*self.total).reserved);
            core::ptr::read_volatile(&raw const (*self.total).allocated) + reserved
        }
    }

    /// Returns the bytes taken so far as [`DiskTotal::observed`]. It reads `reserved` after `allocated`, since
    /// write-back moves bytes from the former to the latter: they must not be counted twice.
    ///
    /// [`DiskTotal::observed`]: eviction_common::DiskTotal::observed
    #[inline(always)]
    pub(crate) fn observed(&self) -> i64 {
        // SAFETY: the map's value; volatile, since other CPUs add to it.
        unsafe {
            let allocated = core::ptr::read_volatile(&raw const (*self.total).allocated);
            let reserved = core::ptr::read_volatile(&raw const (*self.total).reserved);
            allocated + reserved - core::ptr::read_volatile(&raw const (*self.total).unreserved)
        }
    }

    #[inline(always)]
    fn compare(&self, id: u64, bytes: bool, inodes: bool) {
        // SAFETY: the map's values; volatile, since other CPUs add to the totals.
        unsafe {
            let total = self.total;
            if bytes {
                let taken = self.taken();
                let limit = (*self.threshold).bytes_limit;
                if taken >= limit {
                    self.fire(DiskResource::Bytes, (taken - limit) as u64, id);
                }
            }
            if inodes {
                let taken = core::ptr::read_volatile(&raw const (*total).inodes);
                let limit = (*self.threshold).inodes_limit;
                if taken >= limit {
                    self.fire(DiskResource::Inodes, (taken - limit) as u64, id);
                }
            }
        }
    }

    /// Pushes the record if no program has done so for this setting.
    #[inline(always)]
    fn fire(&self, resource: DiskResource, beyond: u64, leaf_id: u64) {
        // SAFETY: the map's value.
        let generation = unsafe { (*self.threshold).generation };
        let token = FireToken { id: u64::from(self.device), generation, edge: resource as u32, pad: 0 };
        let record = reserve_once::<DiskThresholdCrossed>(token, Counter::LostDiskThresholdCrossed);
        let Some(mut record) = record else { return };
        let task = bpf_get_current_pid_tgid();
        record.write(DiskThresholdCrossed {
            header: header::<DiskThresholdCrossed>(Kind::DiskThresholdCrossed),
            generation,
            leaf_id,
            beyond,
            device: self.device,
            resource: resource as u32,
            tgid: (task >> 32) as u32,
            pid: task as u32,
        });
        record.submit(URGENT);
    }
}

/// Returns the id of the running task's memory cgroup.
#[inline(always)]
pub(crate) fn current_id() -> u64 {
    // SAFETY: the helper gives the running task.
    unsafe { id_of_task::<Probe>(bpf_get_current_task() as *const u8) }
}

/// Adds to the usage of a cgroup. A new entry is created empty, so that concurrent additions of other CPUs
/// are not lost.
#[inline(always)]
fn add_usage(user: DiskUser, bytes: i64, inodes: i64) {
    let found = DISK_USAGE.get_ptr_mut(user).or_else(|| {
        let _ = DISK_USAGE.insert(user, DiskUsage { bytes: 0, inodes: 0 }, BPF_NOEXIST as u64);
        DISK_USAGE.get_ptr_mut(user)
    });
    let Some(usage) = found else {
        count(Counter::DiskUsageFull);
        return;
    };
    // SAFETY: the map's value.
    unsafe {
        add_signed(&raw mut (*usage).bytes, bytes);
        add_signed(&raw mut (*usage).inodes, inodes);
    }
}

/// Moves the usage of a cgroup that is removed to its parent. For example, the files that a container left in
/// its volumes then count for the pod.
///
/// # Safety
/// `cgroup` is a pointer to a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn move_usage_to_parent(cgroup: *const u8, id: u64) {
    if offset!(cgroup_self) == ABSENT {
        return;
    }
    // SAFETY: the caller's promise, and the types of the members.
    let parent: usize = unsafe { Direct::at(cgroup, offset!(cgroup_self) + offset!(css_parent)) };
    if parent == 0 {
        return;
    }
    // SAFETY: a css.
    let parent = unsafe { id_of_css::<Direct>(parent as *const u8) };
    for slot in 0..DISKS {
        let user = DiskUser { id, slot, pad: 0 };
        let Some(usage) = DISK_USAGE.get_ptr(user) else { continue };
        // SAFETY: the map's value; no task is left that adds to it.
        let DiskUsage { bytes, inodes } = unsafe { *usage };
        add_usage(DiskUser { id: parent, slot, pad: 0 }, bytes, inodes);
        let _ = DISK_USAGE.remove(user);
    }
}

/// Adds to a value that other CPUs add to as well. It never adds 0, since the compiler would turn that into
/// an instruction that old kernels do not have.
///
/// # Safety
/// `word` points to an aligned i64 inside a map's value.
#[inline(always)]
pub(crate) unsafe fn add_signed(word: *mut i64, amount: i64) {
    if amount != 0 {
        // SAFETY: the caller's promise; two's complement.
        unsafe { add(word.cast(), amount as u64) };
    }
}
