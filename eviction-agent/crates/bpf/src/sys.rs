//! The calls of bpf(2) that aya does not make, and the shared types in the form that aya takes.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use aya::{
    Pod,
    maps::{MapData, MapError},
    sys::SyscallError,
};
use eviction_common::{
    AlarmKey, DiskKillOrder, DiskThreshold, DiskTotal, DiskUsage, DiskUser, FireToken, HostTasks, KillOrder,
    MemcgThreshold, OomCounts, PidThreshold, ProgramConfig, ReclaimStart, ReclaimTime, SuppressedCount,
    TaskStats,
};

/// A shared type in the form that aya takes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct MapEntry<T>(pub(super) T);

macro_rules! pod {
    ($($shared:ty),+) => {$(
        // SAFETY: `#[repr(C)]` with integers alone and without implicit padding (their sizes
        // are asserted), so every byte of it is initialised and every bit pattern is valid.
        unsafe impl Pod for MapEntry<$shared> {}
    )+};
}
pod!(
    MemcgThreshold,
    FireToken,
    TaskStats,
    ProgramConfig,
    OomCounts,
    AlarmKey,
    HostTasks,
    PidThreshold,
    DiskKillOrder,
    ReclaimStart,
    ReclaimTime,
    KillOrder,
    SuppressedCount,
    DiskThreshold,
    DiskTotal,
    DiskUser,
    DiskUsage
);

/// Calls bpf(2), and returns its result.
///
/// # Safety
/// `attr` begins as `union bpf_attr` does for this command, and what it points to outlives the call.
pub(super) unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: as the caller promises; the size is given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// As for [`bpf`].
pub(super) unsafe fn bpf_descriptor<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the kernel has just made this descriptor for us, and it fits into an int.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attr)? as i32)) }
}

const BPF_MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;

/// How many entries are taken at once.
const BATCH: u32 = 256;

/// The part of `union bpf_attr` that the batch commands use (linux/bpf.h).
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Takes all entries out of the map of charged cgroups and passes their ids to `each`. An entry that is added
/// meanwhile stays or is taken, but is not lost.
pub(super) fn take_all(map: &MapData, mut each: impl FnMut(u64)) -> Result<(), MapError> {
    let mut keys = [const { MaybeUninit::<u64>::uninit() }; BATCH as usize];
    let mut values = [const { MaybeUninit::<u8>::uninit() }; BATCH as usize];
    let mut position = 0_u32;
    let mut first = true;
    loop {
        let mut next = 0_u32;
        let mut attr = BatchAttr {
            in_batch: if first { 0 } else { (&raw const position) as u64 },
            out_batch: (&raw mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: BATCH,
            map_fd: map.fd().as_fd().as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `attr` is the batch part of `bpf_attr`, and its pointers are to memory that outlives the
        // call: a hash map's place is a u32, and `keys` and `values` have room for `count` entries of the map's
        // key and value sizes.
        let is_last = match unsafe { bpf(BPF_MAP_LOOKUP_AND_DELETE_BATCH, &mut attr) } {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(io_error) => {
                let call = "bpf_map_lookup_and_delete_batch";
                return Err(MapError::SyscallError(SyscallError { call, io_error }));
            }
        };
        for key in keys.iter().take(attr.count as usize) {
            // SAFETY: the kernel wrote `count` keys.
            each(unsafe { key.assume_init() });
        }
        if is_last {
            return Ok(());
        }
        position = next;
        first = false;
    }
}
