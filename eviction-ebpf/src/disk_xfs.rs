//! xfs allocates blocks from the writer at once, many ahead of what is written. Kernel workers free them, for
//! no particular cgroup. Freed blocks are not counted, so the sums are upper bounds.
//!
//! The hooks are raw tracepoints, because these can also be attached to a module. They do not give the types
//! of their arguments, so the programs read everything with the helper. They run once per extent or inode.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};

use crate::{
    config::offset,
    disk::{Allocation, Disk, current_id},
    probe_read::{Probe, Read},
};

/// Blocks of a file are reserved for a buffered write, with more blocks ahead (the fifth argument is the
/// extent), or were allocated.
#[raw_tracepoint(tracepoint = "xfs_iomap_alloc")]
pub(crate) fn disk_xfs_iomap_alloc(ctx: RawTracePointContext) -> i32 {
    let (file, extent): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(4));
    // SAFETY: an `xfs_inode` and an `xfs_bmbt_irec`, which the loader checks in BTF; the types of the members.
    unsafe {
        let start: u64 = Probe::at(extent, offset!(xfs_irec_start));
        if start & NO_BLOCK_YET == NO_BLOCK_YET {
            on_allocate(super_block_of(file), Probe::at(extent, offset!(xfs_irec_count)));
        }
    }
    // Otherwise it was counted when it was allocated.
    0
}

/// The bits that are set in the first block number of an extent that is only reserved (`STARTBLOCKMASK` in
/// fs/xfs/libxfs/xfs_bmap_btree.h).
const NO_BLOCK_YET: u64 = ((1 << 35) - 1) << 17;

/// Blocks are allocated.
#[raw_tracepoint(tracepoint = "xfs_alloc_vextent_finish")]
pub(crate) fn disk_xfs_allocate(ctx: RawTracePointContext) -> i32 {
    let request: *const u8 = ctx.arg(0);
    // SAFETY: an `xfs_alloc_arg`, which the loader checks in BTF; the types of the members.
    unsafe {
        let was_reserved: u8 = Probe::at(request, offset!(xfs_arg_delayed));
        if was_reserved == 0 {
            let mount: usize = Probe::at(request, offset!(xfs_arg_mount));
            let super_block = Probe::at(mount as *const u8, offset!(xfs_mount_super));
            let blocks: u32 = Probe::at(request, offset!(xfs_arg_len));
            on_allocate(super_block, blocks.into());
        }
    }
    0
}

/// A file or a directory is created. The first argument is its parent directory.
#[raw_tracepoint(tracepoint = "xfs_create")]
pub(crate) fn disk_xfs_create(ctx: RawTracePointContext) -> i32 {
    // SAFETY: an `xfs_inode`, which the loader checks in BTF.
    if let Some(disk) = unsafe { Disk::of_super_block::<Probe>(super_block_of(ctx.arg(0))) } {
        disk.record(current_id(), Allocation { reserved: 0, allocated: 0, inodes: 1 });
    }
    0
}

/// Returns the super block of a file.
///
/// # Safety
/// `file` is a pointer to an `xfs_inode`.
#[inline(always)]
unsafe fn super_block_of(file: *const u8) -> usize {
    // SAFETY: the caller's promise; an `inode` is inside of it.
    unsafe { Probe::at(file.wrapping_add(offset!(xfs_inode_vnode) as usize), offset!(inode_sb)) }
}

/// # Safety
/// `super_block` is the address of a `super_block`, or 0.
#[inline(always)]
unsafe fn on_allocate(super_block: usize, blocks: i64) {
    // SAFETY: the caller's promise.
    if let Some(disk) = unsafe { Disk::of_super_block::<Probe>(super_block) } {
        disk.record(current_id(), Allocation { reserved: 0, allocated: disk.bytes(blocks), inodes: 0 });
    }
}
