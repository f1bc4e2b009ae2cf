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
use aya_obj::generated::{bpf_attr, bpf_cmd};
use eviction_common::{
    AlarmKey, CgroupChange, DiskKillOrder, DiskThreshold, DiskThresholdCrossed, DiskTotal, DiskUsage,
    DiskUser, FireToken, Header, HostTasks, KernelKill, KillOrder, MemcgThreshold, OomCounts, OomKill,
    PidThreshold, ProgramConfig, ReclaimStart, ReclaimTime, SuppressedCount, TaskAlarm, TaskStats,
    ThresholdCrossed,
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
    DiskUsage,
    Header,
    ThresholdCrossed,
    OomKill,
    CgroupChange,
    TaskAlarm,
    KernelKill,
    DiskThresholdCrossed
);

/// Copies a shared type from the beginning of `bytes`. Bytes that are missing are 0.
pub(super) fn read_entry<T>(bytes: &[u8]) -> T
where
    MapEntry<T>: Pod,
{
    let mut entry = MaybeUninit::<T>::zeroed();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: both have `len` bytes and do not overlap. Every bit pattern is a valid `T`, as `MapEntry<T>` is `Pod`.
    unsafe {
        entry.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len);
        entry.assume_init()
    }
}

/// Returns the argument of bpf(2) with every field 0.
pub(super) fn empty_attr() -> bpf_attr {
    // SAFETY: a union of structures that consist of numbers.
    unsafe { std::mem::zeroed() }
}

/// Calls bpf(2), and returns its result.
///
/// # Safety
/// `attr` has the fields of this command, and what it points to outlives the call.
pub(super) unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    let (command, len) = (command as libc::c_long, size_of::<bpf_attr>());
    // SAFETY: as the caller promises. Kernels with a shorter argument accept one whose other fields are 0.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// As for [`bpf`].
pub(super) unsafe fn bpf_descriptor(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the kernel has just made this descriptor for us, and it fits into an int.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attr)? as i32)) }
}

/// How many entries are taken at once.
const BATCH: u32 = 256;

/// Takes all entries out of the map of charged cgroups and passes their ids to `each`. An entry that is added
/// meanwhile stays or is taken, but is not lost.
pub(super) fn take_all(map: &MapData, mut each: impl FnMut(u64)) -> Result<(), MapError> {
    let mut keys = [const { MaybeUninit::<u64>::uninit() }; BATCH as usize];
    let mut values = [const { MaybeUninit::<u8>::uninit() }; BATCH as usize];
    let mut position = 0_u32;
    let mut first = true;
    loop {
        let mut next = 0_u32;
        let mut attr = empty_attr();
        attr.batch.in_batch = if first { 0 } else { (&raw const position) as u64 };
        attr.batch.out_batch = (&raw mut next) as u64;
        attr.batch.keys = keys.as_mut_ptr() as u64;
        attr.batch.values = values.as_mut_ptr() as u64;
        attr.batch.count = BATCH;
        attr.batch.map_fd = map.fd().as_fd().as_raw_fd() as u32;
        // SAFETY: the pointers are to memory that outlives the call: a hash map's place is a u32, and `keys` and
        // `values` have room for `count` entries of the map's key and value sizes.
        let is_last = match unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_BATCH, &mut attr) } {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(io_error) => {
                let call = "bpf_map_lookup_and_delete_batch";
                return Err(MapError::SyscallError(SyscallError { call, io_error }));
            }
        };
        // SAFETY: this is the part of `attr` that was set.
        let count = unsafe { attr.batch.count };
        for key in keys.iter().take(count as usize) {
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
