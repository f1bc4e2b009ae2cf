//! The statfs of a directory with a project quota, on a kernel that has them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::FsStats;
use eviction_node::cgroup::hierarchy::Host;
use tests::file_system::{FileSystem, Kind};
use tests::node::MIB;

fn read(path: &Path) -> Reading<FsStats> {
    eviction_node::fs::FileSystem::open(path, &[], &Host::default()).unwrap().read()
}

/// FS_IOC_FSSETXATTR of linux/fs.h with `struct fsxattr`: flags, three numbers, the project, padding.
const SET_PROJECT: libc::c_ulong = 0x401c_5820;
const FSXATTR_WORDS: usize = 7;
/// FS_XFLAG_PROJINHERIT.
const INHERIT: u32 = 0x200;

/// Makes a directory that is a project of its own, with a limit in bytes.
fn create_project_directory(mounted: &FileSystem, id: u32, limit: u64) -> std::io::Result<PathBuf> {
    let directory = mounted.path().join("project");
    std::fs::create_dir(&directory)?;
    let attributes: [u32; FSXATTR_WORDS] = [INHERIT, 0, 0, id, 0, 0, 0];
    let file = File::open(&directory)?;
    let checked = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the kernel reads as many bytes as the array has.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), SET_PROJECT as _, attributes.as_ptr()) })?;
    // SAFETY: all fields are numbers.
    let mut quota: libc::dqblk = unsafe { std::mem::zeroed() };
    // In blocks of 1 KiB.
    quota.dqb_bhardlimit = limit >> 10;
    quota.dqb_valid = libc::QIF_BLIMITS;
    let device = CString::new(mounted.device()?.into_os_string().into_vec())?;
    const PROJECT: libc::c_int = 2;
    let command = (libc::Q_SETQUOTA << 8) | PROJECT;
    // SAFETY: the path has its final zero byte, and the quota outlives the call.
    checked(unsafe {
        libc::quotactl(command, device.as_ptr(), id.cast_signed(), (&raw mut quota).cast::<libc::c_char>())
    })?;
    Ok(directory)
}

/// Its statfs returns the limit of the project, not the size of the file system.
#[test]
fn statfs_of_a_directory_with_a_project_quota_is_implausible() {
    let mounted = FileSystem::new(Kind::Ext4WithQuotas, 320 * MIB, "eviction-quota-test");
    let mounted = tests::or_skip!(mounted, "no ext4 with project quotas can be mounted here");
    let directory = create_project_directory(&mounted, 7, 10 * MIB).unwrap();
    let stat = rustix::fs::statvfs(&directory).unwrap();
    assert_eq!(stat.f_blocks * stat.f_frsize, 10 * MIB);
    assert_eq!(read(&directory), Reading::Unknown(UnknownReason::Implausible));
    assert!(read(mounted.path()).known().is_some());
}
