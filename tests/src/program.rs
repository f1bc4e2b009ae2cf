//! BPF programs in the kernel, of any process.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Result;

use crate::fdinfo::FdInfo;
use crate::process::wait_until;

const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// The part of `union bpf_attr` that querying a program uses.
#[repr(C)]
struct InfoAttr {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_prog_info` up to the name (linux/bpf.h).
#[derive(Default)]
#[repr(C)]
struct Info {
    before: [u64; 8],
    name: [u8; 16],
}

/// Returns the name of a program by its ID. The kernel keeps 15 bytes of it.
///
/// # Errors
/// The kernel's error, for instance that there is no such program, or a missing right.
pub fn name(id: u32) -> io::Result<String> {
    // SAFETY: this command uses only the ID of `bpf_attr`.
    let program = unsafe { bpf_fd(BPF_PROG_GET_FD_BY_ID, &id) }?;
    let mut info = Info::default();
    let attr = InfoAttr {
        fd: program.as_raw_fd().unsigned_abs(),
        info_len: size_of::<Info>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: as above; the kernel writes so many bytes at most to `info`, which outlives the call.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) }?;
    let name = CStr::from_bytes_until_nul(&info.name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

/// Returns the IDs of the programs of which a process has a descriptor, or one of a link.
///
/// # Errors
/// As for [`FdInfo::all`].
pub fn ids_of(pid: u32) -> io::Result<Vec<u32>> {
    let id = |info: &FdInfo| u32::try_from(info.field("prog_id")?).ok();
    Ok(FdInfo::all(pid)?.iter().filter_map(id).collect())
}

/// Waits until none of these programs is loaded. The kernel detaches the programs of a process that has ended a
/// little later, from a queue of its own (`bpf_link_put`).
///
/// # Errors
/// If one stays.
pub fn wait_until_unloaded(ids: &[u32]) -> Result<()> {
    let is_unloaded = |id: &u32| name(*id).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    wait_until("the end of BPF programs", || ids.iter().all(is_unloaded))
}

/// Calls bpf(2).
///
/// # Safety
/// `attr` begins as `union bpf_attr` does for this command.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<i32> {
    // SAFETY: as the caller promises; the size is given.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    // The result fits into an int.
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// As for [`bpf`].
pub(crate) unsafe fn bpf_fd<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises; the kernel has just created this descriptor for this process.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::empty_program::EmptyProgram;

    #[test]
    fn a_program_is_found_by_its_id() {
        let program = crate::or_skip!(EmptyProgram::attach(), "no program can be attached");
        assert_eq!(name(program.id().unwrap()).unwrap(), "nothing");
        assert!(name(u32::MAX).is_err());
    }
}
