//! xfs takes blocks from the writer at once, many ahead of what is written. What it frees is freed by workers of
//! the kernel, for no cgroup in particular, and not counted: its sums are upper bounds.
//!
//! The hooks are raw tracepoints, which those of a module can be attached to as well. They say nothing of the types
//! of their arguments, so that all is read by the helper; they run once per extent or inode.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};

use crate::{
    config::offset,
    disk::{Disk, Taken, current_id},
    probe_read::{Probe, Read},
};

/// Blocks of a file are reserved for a buffered write, with more ahead (the fifth argument says how many), or were
/// allocated.
#[raw_tracepoint(tracepoint = "xfs_iomap_alloc")]
pub(crate) fn disk_xfs_iomap_alloc(ctx: RawTracePointContext) -> i32 {
    let (file, extent): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(4));
    // SAFETY: an `xfs_inode` and an `xfs_bmbt_irec`, which the loader checks in BTF; the types of the members.
    unsafe {
        let start: u64 = Probe::at(extent, offset!(xfs_irec_start));
        if start & NO_BLOCK_YET == NO_BLOCK_YET {
            let disk = Disk::of_inode::<Probe>(inode(file));
            on_allocate(disk, Probe::at(extent, offset!(xfs_irec_count)));
        }
    }
    // Else counted when it was allocated.
    0
}

/// An extent that is reserved only has these bits in its first block's number (`STARTBLOCKMASK` in
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
            on_allocate(Disk::of_super_block::<Probe>(super_block), blocks.into());
        }
    }
    0
}

/// A file or a directory is created in the directory that is the first argument.
#[raw_tracepoint(tracepoint = "xfs_create")]
pub(crate) fn disk_xfs_create(ctx: RawTracePointContext) -> i32 {
    // SAFETY: an `xfs_inode`, which the loader checks in BTF.
    if let Some(disk) = unsafe { Disk::of_inode::<Probe>(inode(ctx.arg(0))) } {
        disk.take(current_id(), Taken { reserved: 0, allocated: 0, inodes: 1 });
    }
    0
}

/// The `inode` inside of an `xfs_inode`.
#[inline(always)]
fn inode(file: *const u8) -> *const u8 {
    file.wrapping_add(offset!(xfs_inode_vnode) as usize)
}

#[inline(always)]
fn on_allocate(disk: Option<Disk>, blocks: i64) {
    if let Some(disk) = disk {
        disk.take(current_id(), Taken { reserved: 0, allocated: disk.bytes(blocks), inodes: 0 });
    }
}
