//! Bytes and inodes of file systems: counted per memory cgroup and device, and compared with the
//! thresholds, once each. Counted is what a task took less what it gave back, on devices that have a
//! threshold; all others are left at the first lookup.
//!
//! ext4 takes blocks in two steps. A buffered write reserves them, and write-back allocates what was
//! reserved, in a worker of the kernel up to 30 s later. The hooks on reservations are dense and so attached
//! near a threshold only. What write-back allocates beyond the reservations that were seen counts then, for
//! the owner of the write-back where the kernel knows it (cgroup v2).
//!
//! xfs takes them from the writer at once, many ahead of what is written. What it frees is freed by workers, for
//! nobody in particular, and not counted: its sums are upper bounds.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, generated::bpf_get_current_task_btf},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use eviction_common::{
    ABSENT, Counter, DISKS, DiskResource, DiskThreshold, DiskThresholdCrossed, DiskTotal, DiskUsage,
    DiskUser, FireToken, Kind,
};

use crate::{
    config::{is_online, is_ours, offset},
    disk_kill,
    events::{URGENT, header, lost},
    maps::{DISK_THRESHOLDS, DISK_TOTALS, DISK_USAGE, EVENTS, FIRE_TOKENS, add, count},
    memcg::{id_of_css, id_of_task},
    probe_read::{Direct, Probe, Read},
};

/// Blocks are reserved for a buffered write or a fault; the second argument says how many.
#[btf_tracepoint(function = "ext4_da_reserve_space")]
pub(crate) fn disk_ext4_reserve(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), i64::from(ctx.arg::<i32>(1))) };
    0
}

/// The same where it is always one block: up to 6.1.
#[btf_tracepoint(function = "ext4_da_reserve_space")]
pub(crate) fn disk_ext4_reserve_one(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), 1) };
    0
}

/// Reserved blocks are given back, that were never written.
#[btf_tracepoint(function = "ext4_da_release_space")]
pub(crate) fn disk_ext4_release(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), -i64::from(ctx.arg::<i32>(1))) };
    0
}

/// Reserved blocks were allocated, as many as the second argument says. Older kernels allocate what `fallocate` finds
/// reserved as if it were not (the third argument is 0), so it was counted with the allocation as well.
#[btf_tracepoint(function = "ext4_da_update_reserve_space")]
pub(crate) fn disk_ext4_reservation_used(ctx: BtfTracePointContext) -> i32 {
    if ctx.arg::<i32>(2) == 0 {
        // SAFETY: an `inode`, which the loader checks in BTF.
        unsafe { on_reserve(ctx.arg(0), -i64::from(ctx.arg::<i32>(1))) };
    }
    0
}

/// Blocks are allocated.
#[btf_tracepoint(function = "ext4_allocate_blocks")]
pub(crate) fn disk_ext4_allocate(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `ext4_allocation_request`, which the loader checks in BTF.
    unsafe { on_allocate(ctx.arg(0)) };
    0
}

/// Blocks are freed; the third argument says how many.
#[btf_tracepoint(function = "ext4_free_blocks")]
pub(crate) fn disk_ext4_free(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    let Some(disk) = (unsafe { Disk::of_inode(ctx.arg(0)) }) else { return 0 };
    let bytes = disk.bytes(-ctx.arg::<i64>(2));
    // SAFETY: the same.
    let id = unsafe { owner_of(ctx.arg(0)) };
    disk.take(id, Taken { reserved: 0, allocated: bytes, inodes: 0 });
    0
}

/// An inode is allocated.
#[btf_tracepoint(function = "ext4_allocate_inode")]
pub(crate) fn disk_ext4_allocate_inode(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_inode(ctx.arg(0), 1) };
    0
}

/// An inode is freed.
#[btf_tracepoint(function = "ext4_free_inode")]
pub(crate) fn disk_ext4_free_inode(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_inode(ctx.arg(0), -1) };
    0
}

/// Blocks of a file in xfs are reserved for a buffered write, with more ahead (the fifth argument says how many),
/// or were allocated.
#[btf_tracepoint(function = "xfs_iomap_alloc")]
pub(crate) fn disk_xfs_iomap_alloc(ctx: BtfTracePointContext) -> i32 {
    let (file, extent): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(4));
    // The verifier of some kernels wants to see that.
    if file.is_null() || extent.is_null() {
        return 0;
    }
    // SAFETY: an `xfs_inode` and an `xfs_bmbt_irec`, which the loader checks in BTF; the types of the members.
    unsafe {
        let start: u64 = Direct::at(extent, offset!(xfs_irec_start));
        if start & NO_BLOCK_YET != NO_BLOCK_YET {
            // Counted when it was allocated.
            return 0;
        }
        if let Some(disk) = Disk::of_inode(file.add(offset!(xfs_inode_vnode) as usize)) {
            let bytes = disk.bytes(Direct::at(extent, offset!(xfs_irec_count)));
            disk.take(current_id(), Taken { reserved: 0, allocated: bytes, inodes: 0 });
        }
    }
    0
}

/// An extent that is reserved only has these bits in its first block's number (`STARTBLOCKMASK` in
/// fs/xfs/libxfs/xfs_bmap_btree.h).
const NO_BLOCK_YET: u64 = ((1 << 35) - 1) << 17;

/// Blocks of xfs are allocated.
#[btf_tracepoint(function = "xfs_alloc_vextent_finish")]
pub(crate) fn disk_xfs_allocate(ctx: BtfTracePointContext) -> i32 {
    let request: *const u8 = ctx.arg(0);
    if request.is_null() {
        return 0;
    }
    // SAFETY: an `xfs_alloc_arg`, which the loader checks in BTF; the types of the members.
    unsafe {
        let was_reserved: u8 = Direct::at(request, offset!(xfs_arg_delayed));
        let mount: usize = Direct::at(request, offset!(xfs_arg_mount));
        if was_reserved != 0 || mount == 0 {
            return 0;
        }
        let super_block: usize = Direct::at(mount as *const u8, offset!(xfs_mount_super));
        if let Some(disk) = Disk::of_super_block(super_block) {
            let blocks: u32 = Direct::at(request, offset!(xfs_arg_len));
            let bytes = disk.bytes(i64::from(blocks));
            disk.take(current_id(), Taken { reserved: 0, allocated: bytes, inodes: 0 });
        }
    }
    0
}

/// A file or a directory of xfs is created in the directory that is the first argument.
#[btf_tracepoint(function = "xfs_create")]
pub(crate) fn disk_xfs_create(ctx: BtfTracePointContext) -> i32 {
    let directory: *const u8 = ctx.arg(0);
    if !directory.is_null() {
        // SAFETY: an `xfs_inode`, which the loader checks in BTF, around an inode.
        unsafe { on_inode(directory.add(offset!(xfs_inode_vnode) as usize), 1) };
    }
    0
}

/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn on_reserve(inode: *const u8, blocks: i64) {
    // SAFETY: the caller's promise.
    if let Some(disk) = unsafe { Disk::of_inode(inode) } {
        // SAFETY: the helper gives the running task, with its type: loads instead of calls, for each block.
        let id = unsafe { id_of_task::<Direct>(bpf_get_current_task_btf() as *const u8) };
        disk.take(id, Taken { reserved: disk.bytes(blocks), allocated: 0, inodes: 0 });
        if blocks > 0 {
            disk_kill::look(disk.device, disk.taken(), id);
        }
    }
}

/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn on_inode(inode: *const u8, inodes: i64) {
    // SAFETY: the caller's promise.
    if let Some(disk) = unsafe { Disk::of_inode(inode) } {
        disk.take(current_id(), Taken { reserved: 0, allocated: 0, inodes });
    }
}

/// What is allocated are a file's data (`EXT4_MB_HINT_DATA` in fs/ext4/ext4.h).
const DATA: u32 = 0x20;

/// It is allocated by write-back (`EXT4_MB_DELALLOC_RESERVED`): data were reserved before, the map of a file in many
/// pieces was not.
const DELAYED: u32 = 0x400;

/// # Safety
/// `request` is a pointer to an `ext4_allocation_request`.
#[inline(always)]
unsafe fn on_allocate(request: *const u8) {
    // SAFETY: the caller's promise, and the types of the members.
    let (inode, blocks, flags): (usize, u32, u32) = unsafe {
        (
            Direct::at(request, offset!(ext4_ar_inode)),
            Direct::at(request, offset!(ext4_ar_len)),
            Direct::at(request, offset!(ext4_ar_flags)),
        )
    };
    if inode == 0 {
        return;
    }
    let inode = inode as *const u8;
    // SAFETY: an inode.
    let Some(disk) = (unsafe { Disk::of_inode(inode) }) else { return };
    let bytes = disk.bytes(i64::from(blocks));
    if flags & (DELAYED | DATA) != DELAYED | DATA {
        // SAFETY: an inode.
        let id = unsafe { owner_of(inode) };
        disk.take(id, Taken { reserved: 0, allocated: bytes, inodes: 0 });
        return;
    }
    // SAFETY: the map's value; volatile, since other CPUs add to it.
    let reserved = unsafe { core::ptr::read_volatile(&raw const (*disk.total).reserved) };
    let counted = reserved.clamp(0, bytes);
    // SAFETY: the map's value.
    unsafe {
        add_signed(&raw mut (*disk.total).reserved, -counted);
        add_signed(&raw mut (*disk.total).allocated, counted);
    }
    if counted < bytes {
        // SAFETY: an inode.
        let owner = unsafe { write_back_owner(inode) };
        disk.take(owner, Taken { reserved: 0, allocated: bytes - counted, inodes: 0 });
    }
}

/// A file system with a threshold.
struct Disk {
    device: u32,
    slot: u32,
    block_bits: u32,
    threshold: *mut DiskThreshold,
    total: *mut DiskTotal,
}

/// What a task takes of it; less than 0 is given back.
struct Taken {
    reserved: i64,
    allocated: i64,
    inodes: i64,
}

impl Disk {
    /// The file system of an inode, if there is a threshold on it.
    ///
    /// # Safety
    /// `inode` is a pointer to an `inode`.
    #[inline(always)]
    unsafe fn of_inode(inode: *const u8) -> Option<Self> {
        if inode.is_null() {
            return None;
        }
        // SAFETY: the caller's promise, and the type of the member.
        unsafe { Self::of_super_block(Direct::at(inode, offset!(inode_sb))) }
    }

    /// The same by its super block.
    ///
    /// # Safety
    /// `super_block` is the address of a `super_block`, or 0.
    #[inline(always)]
    unsafe fn of_super_block(super_block: usize) -> Option<Self> {
        if !is_ours() || super_block == 0 {
            return None;
        }
        let super_block = super_block as *const u8;
        // SAFETY: the types of the members.
        let device: u32 = unsafe { Direct::at(super_block, offset!(sb_dev)) };
        for slot in 0..DISKS {
            let threshold = DISK_THRESHOLDS.get_ptr_mut(slot)?;
            // SAFETY: the map's value; volatile, since user space writes it.
            if unsafe { core::ptr::read_volatile(&raw const (*threshold).device) } == device {
                let total = DISK_TOTALS.get_ptr_mut(slot)?;
                // SAFETY: the types of the members.
                let block_bits = unsafe { Direct::at::<u8>(super_block, offset!(sb_block_bits)) };
                return Some(Self { device, slot, block_bits: u32::from(block_bits) & 31, threshold, total });
            }
        }
        None
    }

    #[inline(always)]
    fn bytes(&self, blocks: i64) -> i64 {
        blocks << self.block_bits
    }

    /// Adds to the totals and to what the cgroup took, and compares.
    #[inline(always)]
    fn take(&self, id: u64, taken: Taken) {
        let Taken { reserved, allocated, inodes } = taken;
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

    /// Bytes that were taken of it so far.
    #[inline(always)]
    fn taken(&self) -> i64 {
        // SAFETY: the map's value; volatile, since other CPUs add to it.
        unsafe {
            let reserved = core::ptr::read_volatile(&raw const (*self.total).reserved);
            core::ptr::read_volatile(&raw const (*self.total).allocated) + reserved
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

    /// Pushes the record if nobody did for this setting. When it does not fit, the next that is taken tries
    /// again.
    #[inline(always)]
    fn fire(&self, resource: DiskResource, beyond: u64, leaf_id: u64) {
        // SAFETY: the map's value; the index is below 2. Volatile, since other CPUs write it.
        let (generation, fired) =
            unsafe { ((*self.threshold).generation, &raw mut (*self.threshold).fired[resource as usize]) };
        // SAFETY: as above.
        if unsafe { core::ptr::read_volatile(fired) } == generation {
            return;
        }
        let Some(mut record) = EVENTS.reserve::<DiskThresholdCrossed>(0) else {
            lost(Counter::LostDiskThresholdCrossed);
            return;
        };
        let token = FireToken { id: u64::from(self.device), generation, edge: resource as u32, pad: 0 };
        if FIRE_TOKENS.remove(token).is_err() {
            record.discard(aya_ebpf::bindings::BPF_RB_NO_WAKEUP as u64);
            return;
        }
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(fired, generation) };
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

/// The running task's memory cgroup.
#[inline(always)]
fn current_id() -> u64 {
    // SAFETY: the helper gives the running task.
    unsafe { id_of_task::<Probe>(bpf_get_current_task() as *const u8) }
}

/// Whose blocks of an inode are taken or given back: the running task's, or the write-back's where a worker of the
/// kernel does it, as for the map of a file in many pieces.
///
/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn owner_of(inode: *const u8) -> u64 {
    // SAFETY: the helper gives the running task; workers have no memory of their own.
    let mm: usize = unsafe { Probe::at(bpf_get_current_task() as *const u8, offset!(task_mm)) };
    // SAFETY: the caller's promise.
    if mm == 0 { unsafe { write_back_owner(inode) } } else { current_id() }
}

/// The memory cgroup that an inode's write-back is of; 0 where it is removed. Where the kernel knows none, that
/// of the running task.
///
/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn write_back_owner(inode: *const u8) -> u64 {
    if offset!(inode_wb) == ABSENT || offset!(wb_memcg_css) == ABSENT || crate::config::hierarchy() != 0 {
        return current_id();
    }
    // SAFETY: the caller's promise, and the types of the members.
    unsafe {
        let write_back: usize = Direct::at(inode, offset!(inode_wb));
        if write_back == 0 {
            return current_id();
        }
        let css: usize = Direct::at(write_back as *const u8, offset!(wb_memcg_css));
        if css == 0 {
            return current_id();
        }
        let css = css as *const u8;
        if offset!(css_flags) != ABSENT && !is_online(Direct::at(css, offset!(css_flags))) {
            return 0;
        }
        id_of_css::<Direct>(css)
    }
}

/// Adds to what the cgroup took. It is made with nothing in it, so that no CPU that comes at the same
/// time has anything to lose.
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

/// The cgroup with this id is removed: what it took is its parent's from now on, as the pod's is what a
/// container left in its volumes.
///
/// # Safety
/// `cgroup` is a pointer to a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn leave_to_parent(cgroup: *const u8, id: u64) {
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

/// Adds to a word that others add to as well. An addition of 0 is never made: it would become an
/// instruction that old kernels have not.
///
/// # Safety
/// `word` points to an aligned i64 inside a map's value.
#[inline(always)]
unsafe fn add_signed(word: *mut i64, amount: i64) {
    if amount != 0 {
        // SAFETY: the caller's promise; two's complement.
        unsafe { add(word.cast(), amount as u64) };
    }
}
