//! Finds the mount that a descriptor belongs to.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::makedev;

use eviction_core::reading::UnknownReason;

use crate::cgroup::hierarchy::{MOUNTINFO_LIMIT, mount_fields, unescape};
use crate::file::read_once;

const FDINFO_LIMIT: usize = 64 << 10;

/// The fields of a mountinfo line (proc_pid_mountinfo(5)) that identify a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// The file system's device number. Unlike `st_dev` it is the same in all subvolumes of a btrfs.
    pub device: u64,
    /// The directory or file of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The file system type, for instance `ext4`.
    pub fs_type: String,
    /// What is mounted, for instance `/dev/sda1`.
    pub source: PathBuf,
}

impl MountInfo {
    /// Finds the mount of a descriptor: `mnt_id` of its fdinfo, looked up in mountinfo. Neither accesses the
    /// file system.
    ///
    /// # Errors
    /// If one of the two files cannot be read or has no such line.
    pub fn of(fd: BorrowedFd<'_>, proc: &Path) -> Result<Self, UnknownReason> {
        let own = proc.join("self");
        let fdinfo = read_once(&own.join("fdinfo").join(fd.as_raw_fd().to_string()), FDINFO_LIMIT)?;
        let id = parse_mount_id(&fdinfo).ok_or(UnknownReason::Unparsable)?;
        let text = read_once(&own.join("mountinfo"), MOUNTINFO_LIMIT)?;
        let mut lines = text.split(|byte| *byte == b'\n');
        lines.find_map(|line| parse_line(line, &id)).ok_or(UnknownReason::Absent)
    }

    /// Returns whether statfs on it may wait for a server or for another process.
    pub fn may_hang(&self) -> bool {
        const REMOTE: [&str; 11] =
            ["nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "afs", "lustre", "gfs2", "ocfs2", "virtiofs"];
        self.fs_type.starts_with("fuse") || REMOTE.contains(&&*self.fs_type)
    }
}

/// Returns the upper directory of the overlay that is the root in the text of a mountinfo file.
pub(super) fn upper_directory(mountinfo: &[u8]) -> Option<PathBuf> {
    let mut lines = mountinfo.split(|byte| *byte == b'\n');
    let root = |line| mount_fields(line).filter(|([.., mount_point, _], _)| *mount_point == b"/");
    let (_, [fs_type, _, options]) = lines.find_map(root)?;
    let mut options = options.split(|byte| *byte == b',').filter(|_| fs_type == b"overlay");
    let upper = options.find_map(|option| option.strip_prefix(b"upperdir="))?;
    Some(unescape(upper)).filter(|path| path.is_absolute())
}

fn parse_mount_id(fdinfo: &[u8]) -> Option<Vec<u8>> {
    let mut lines = fdinfo.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| line.strip_prefix(b"mnt_id:"))?.trim_ascii();
    id.iter().all(u8::is_ascii_digit).then(|| id.to_vec()).filter(|id| !id.is_empty())
}

/// Parses the line if it is that of the mount with this id.
fn parse_line(line: &[u8], id: &[u8]) -> Option<MountInfo> {
    let fields = mount_fields(line).filter(|([found, ..], _)| *found == id);
    let ([_, _, device, root, mount_point, _], [fs_type, source, _]) = fields?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(MountInfo {
        device: makedev(major.parse().ok()?, minor.parse().ok()?),
        root: unescape(root),
        mount_point: unescape(mount_point),
        fs_type: String::from_utf8(fs_type.to_vec()).ok()?,
        source: unescape(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd as _;

    const LINE: &[u8] =
        b"604 592 7:0 /kubelet/pods/a\\040b/etc-hosts /etc/hosts rw,relatime master:7 - ext4 /dev/loop0 rw";

    #[test]
    fn mountinfo_line_of_a_pod_is_parsed() {
        let found = parse_line(LINE, b"604").unwrap();
        assert_eq!(found.device, makedev(7, 0));
        assert_eq!(found.root, Path::new("/kubelet/pods/a b/etc-hosts"));
        assert_eq!((found.mount_point, &*found.fs_type), ("/etc/hosts".into(), "ext4"));
        assert_eq!(found.source, Path::new("/dev/loop0"));
        assert_eq!(parse_line(LINE, b"60"), None);
        assert_eq!(parse_mount_id(b"pos:\t0\nmnt_id:\t604\n"), Some(b"604".to_vec()));
        assert_eq!(parse_mount_id(b"pos:\t0\nmnt_id:\n"), None);
    }

    #[test]
    fn remote_and_fuse_file_systems_may_hang() {
        let of =
            |fs_type: &str| MountInfo { fs_type: fs_type.to_owned(), ..parse_line(LINE, b"604").unwrap() };
        for fs_type in ["nfs", "nfs4", "fuse", "fuse.s3fs", "fuseblk", "9p", "virtiofs"] {
            assert!(of(fs_type).may_hang(), "{fs_type}");
        }
        for fs_type in ["ext4", "xfs", "btrfs", "tmpfs", "overlay"] {
            assert!(!of(fs_type).may_hang(), "{fs_type}");
        }
    }

    #[test]
    fn upper_directory_of_a_container_is_found() {
        let overlay = b"1 0 0:9 / /proc rw - proc proc rw\n2 0 0:8 / / rw,relatime - overlay overlay \
            rw,lowerdir=/l/1:/l/2,upperdir=/snap shots/7/fs,workdir=/snap/7/work\n";
        let escaped = String::from_utf8(overlay.to_vec()).unwrap().replace("snap shots", "snap\\040shots");
        assert_eq!(upper_directory(escaped.as_bytes()), Some("/snap shots/7/fs".into()));
        assert_eq!(upper_directory(LINE), None);
        assert_eq!(upper_directory(b"2 0 8:1 / / rw - ext4 /dev/sda1 rw,upperdir=/x"), None);
    }

    #[test]
    fn mount_of_an_open_file_is_found() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let mount = MountInfo::of(file.as_fd(), Path::new("/proc")).unwrap();
        assert_eq!((&*mount.fs_type, mount.mount_point), ("proc", "/proc".into()));
    }

    proptest! {
        #[test]
        fn arbitrary_line_causes_no_panic(line: Vec<u8>, id: Vec<u8>) {
            parse_line(&line, &id);
            parse_mount_id(&line);
            upper_directory(&line);
        }
    }
}
