//! ext4 allocates blocks in two steps. A buffered write reserves them, and write-back allocates the reserved
//! blocks in a kernel worker up to 30 s later. The hooks on reservations fire often, so they are attached
//! only near a threshold. When write-back allocates more than the observed reservations, the difference is
//! counted, for the owner of the write-back if the kernel knows it (cgroup v2).

use aya_ebpf::{
    helpers::{bpf_get_current_task, generated::bpf_get_current_task_btf},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use eviction_common::ABSENT;

use crate::{
    config::{hierarchy, is_online, offset},
    disk::{Allocation, Disk, add_signed, current_id},
    disk_kill,
    memcg::{id_of_css, id_of_task},
    probe_read::{Direct, Probe, Read},
};

/// Blocks are reserved for a buffered write or a page fault. The second argument is their number.
#[btf_tracepoint(function = "ext4_da_reserve_space")]
pub(crate) fn disk_ext4_reserve(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), i64::from(ctx.arg::<i32>(1))) };
    0
}

/// The variant for kernels up to 6.1, where it is always one block.
#[btf_tracepoint(function = "ext4_da_reserve_space")]
pub(crate) fn disk_ext4_reserve_one(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), 1) };
    0
}

/// Reserved blocks that were never written are released.
#[btf_tracepoint(function = "ext4_da_release_space")]
pub(crate) fn disk_ext4_release(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    unsafe { on_reserve(ctx.arg(0), -i64::from(ctx.arg::<i32>(1))) };
    0
}

/// Reserved blocks were allocated. The second argument is their number. With a third argument of 0, an older
/// kernel allocated reserved blocks in `fallocate` as if they were not reserved, so they were counted again
/// at the allocation.
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

/// Blocks are freed. The third argument is their number.
#[btf_tracepoint(function = "ext4_free_blocks")]
pub(crate) fn disk_ext4_free(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: an `inode`, which the loader checks in BTF.
    let Some(disk) = (unsafe { Disk::of_inode(ctx.arg(0)) }) else { return 0 };
    let bytes = disk.bytes(-ctx.arg::<i64>(2));
    // SAFETY: the same.
    let id = unsafe { owner_of(ctx.arg(0)) };
    disk.record(id, Allocation { reserved: 0, allocated: bytes, inodes: 0 });
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

/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn on_reserve(inode: *const u8, blocks: i64) {
    // SAFETY: the caller's promise.
    if let Some(disk) = unsafe { Disk::of_inode(inode) } {
        // SAFETY: the helper gives the running task, with its type: loads instead of calls, for each block.
        let id = unsafe { id_of_task::<Direct>(bpf_get_current_task_btf() as *const u8) };
        disk.record(id, Allocation { reserved: disk.bytes(blocks), allocated: 0, inodes: 0 });
        if blocks > 0 {
            disk_kill::apply_kill_order(disk.device, disk.observed(), id);
        }
    }
}

/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn on_inode(inode: *const u8, inodes: i64) {
    // SAFETY: the caller's promise.
    if let Some(disk) = unsafe { Disk::of_inode(inode) } {
        disk.record(current_id(), Allocation { reserved: 0, allocated: 0, inodes });
    }
}

/// The allocation is for file data (`EXT4_MB_HINT_DATA` in fs/ext4/ext4.h).
const DATA: u32 = 0x20;

/// The allocation is made by write-back (`EXT4_MB_DELALLOC_RESERVED`). Data blocks were reserved before;
/// blocks for the extent tree of a fragmented file were not.
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
        disk.record(id, Allocation { reserved: 0, allocated: bytes, inodes: 0 });
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
        // SAFETY: the map's value.
        unsafe { add_signed(&raw mut (*disk.total).unreserved, bytes - counted) };
        disk.record(owner, Allocation { reserved: 0, allocated: bytes - counted, inodes: 0 });
    }
}

/// Returns the memory cgroup for which blocks of an inode are allocated or freed: that of the running task,
/// or of the write-back if a kernel worker does it, for example for the extent tree of a fragmented file.
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

/// Returns the memory cgroup of an inode's write-back; 0 if it is removed. If the kernel does not know it,
/// returns that of the running task.
///
/// # Safety
/// `inode` is a pointer to an `inode`.
#[inline(always)]
unsafe fn write_back_owner(inode: *const u8) -> u64 {
    if offset!(inode_wb) == ABSENT || offset!(wb_memcg_css) == ABSENT || hierarchy() != 0 {
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
