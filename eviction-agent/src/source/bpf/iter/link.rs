//! The iterator's link, made by bpf(2) itself.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::source::bpf::sys::bpf_descriptor;
use crate::source::file::retry;

const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ITER_CREATE: libc::c_long = 33;
const BPF_TRACE_ITER: u32 = 28;
const BPF_CGROUP_ITER_DESCENDANTS_PRE: u32 = 2;

/// The part of `union bpf_attr` that making a link of an iterator uses (linux/bpf.h).
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_len: u32,
    pad: u32,
}

/// `union bpf_iter_link_info` of an iterator over cgroups. aya makes links without one, and the
/// kernel refuses an iterator over cgroups that is not told an order.
#[repr(C)]
struct CgroupInfo {
    order: u32,
    cgroup_fd: u32,
    cgroup_id: u64,
}

/// Makes the iterator for the cgroup of this folder and all below it.
pub(super) fn create_link(program: BorrowedFd<'_>, folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cgroup = retry(|| rustix::fs::open(folder, flags, Mode::empty()))?;
    let info = CgroupInfo {
        order: BPF_CGROUP_ITER_DESCENDANTS_PRE,
        cgroup_fd: cgroup.as_raw_fd() as u32,
        cgroup_id: 0,
    };
    let mut attr = LinkAttr {
        prog_fd: program.as_raw_fd() as u32,
        target_fd: 0,
        attach_type: BPF_TRACE_ITER,
        flags: 0,
        iter_info: (&raw const info) as u64,
        iter_info_len: size_of::<CgroupInfo>() as u32,
        pad: 0,
    };
    // SAFETY: `attr` is the part of `bpf_attr` that this command uses, and what it points to
    // outlives the call.
    unsafe { bpf_descriptor(BPF_LINK_CREATE, &mut attr) }
}

/// The part of `union bpf_attr` that beginning a pass uses.
#[repr(C)]
struct IterAttr {
    link_fd: u32,
    flags: u32,
}

/// Begins a pass.
pub(super) fn create_iter(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = IterAttr { link_fd: link.as_raw_fd() as u32, flags: 0 };
    // SAFETY: `attr` is the part of `bpf_attr` that this command uses.
    unsafe { bpf_descriptor(BPF_ITER_CREATE, &mut attr) }
}
