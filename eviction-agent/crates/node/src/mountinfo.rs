//! The mounts of a process, as `/proc/PID/mountinfo` shows them (proc_pid_mountinfo(5)).
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::makedev;

use eviction_core::reading::UnknownReason;

use crate::file::read_once;

/// The longest mountinfo file that is read, in bytes.
pub(crate) const MOUNTINFO_LIMIT: usize = 16 << 20;

const FDINFO_LIMIT: usize = 64 << 10;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Its id, which the fdinfo of a descriptor contains.
    pub(crate) id: u32,
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
    /// The options of the mount, and those of the file system.
    pub(crate) options: [Vec<u8>; 2],
}

/// Returns the mounts in the text of a mountinfo file. Lines of another format are ignored.
pub fn parse_mounts(mountinfo: &[u8]) -> impl Iterator<Item = MountInfo> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse_mount)
}

fn parse_mount(line: &[u8]) -> Option<MountInfo> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let ([id, _, device, root, mount_point, options], rest) = fields.split_first_chunk::<6>()?;
    // Any number of optional fields, ended by a hyphen.
    let hyphen = rest.iter().position(|field| *field == b"-")?;
    let [fs_type, source, super_options] = rest.get(hyphen + 1..)?.first_chunk::<3>()?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(MountInfo {
        id: std::str::from_utf8(id).ok()?.parse().ok()?,
        device: makedev(major.parse().ok()?, minor.parse().ok()?),
        root: unescape(root),
        mount_point: unescape(mount_point),
        fs_type: String::from_utf8(fs_type.to_vec()).ok()?,
        source: unescape(source),
        options: [options.to_vec(), super_options.to_vec()],
    })
}

/// Undoes the octal escapes of blanks, line feeds and backslashes in a path of mountinfo.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let (byte, after) = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    OsString::from_vec(plain).into()
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
        parse_mounts(&text).find(|mount| mount.id == id).ok_or(UnknownReason::Absent)
    }

    /// Returns whether nothing can be written through it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.iter().any(|options| split_options(options).any(|option| option == b"ro"))
    }

    /// Returns the options of the file system. Those of a cgroup v1 include its controllers.
    pub(crate) fn super_options(&self) -> impl Iterator<Item = &[u8]> {
        split_options(&self.options[1])
    }

    /// Returns whether statfs on it may wait for a server or for another process.
    pub fn may_hang(&self) -> bool {
        const REMOTE: [&str; 11] =
            ["nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "afs", "lustre", "gfs2", "ocfs2", "virtiofs"];
        self.fs_type.starts_with("fuse") || REMOTE.contains(&&*self.fs_type)
    }
}

fn split_options(options: &[u8]) -> impl Iterator<Item = &[u8]> {
    options.split(|byte| *byte == b',')
}

/// Returns the upper directory of the overlay that is the root in the text of a mountinfo file.
pub(crate) fn upper_directory(mountinfo: &[u8]) -> Option<PathBuf> {
    let root = parse_mounts(mountinfo).find(|mount| mount.mount_point == Path::new("/"))?;
    let mut options = split_options(&root.options[1]).filter(|_| root.fs_type == "overlay");
    let upper = options.find_map(|option| option.strip_prefix(b"upperdir="))?;
    Some(unescape(upper)).filter(|path| path.is_absolute())
}

fn parse_mount_id(fdinfo: &[u8]) -> Option<u32> {
    let mut lines = fdinfo.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| line.strip_prefix(b"mnt_id:"))?;
    std::str::from_utf8(id.trim_ascii()).ok()?.parse().ok()
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
        let found = parse_mount(LINE).unwrap();
        assert_eq!(found.device, makedev(7, 0));
        assert_eq!(found.root, Path::new("/kubelet/pods/a b/etc-hosts"));
        assert_eq!((found.mount_point, &*found.fs_type), ("/etc/hosts".into(), "ext4"));
        assert_eq!(found.source, Path::new("/dev/loop0"));
        assert_eq!(found.id, 604);
        assert_eq!(parse_mount_id(b"pos:\t0\nmnt_id:\t604\n"), Some(604));
        assert_eq!(parse_mount_id(b"pos:\t0\nmnt_id:\n"), None);
    }

    #[test]
    fn remote_and_fuse_file_systems_may_hang() {
        let of = |fs_type: &str| MountInfo { fs_type: fs_type.to_owned(), ..parse_mount(LINE).unwrap() };
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

    #[test]
    fn escapes_are_decoded_and_invalid_lines_are_ignored() {
        let text = "1 2 0:3 / /a\\040b\\011\\134c rw - cgroup cgroup rw,memory\n\
            short\n\
            1 2 0:3 / /x rw shared:1\n\
            1 2 0:3 / /x rw - cgroup\n\
            1 2 0:3 / /y\\04 rw - cgroup2 none rw\n";
        let points: Vec<_> = parse_mounts(text.as_bytes()).map(|mount| mount.mount_point).collect();
        assert_eq!(points, [Path::new("/a b\t\\c"), Path::new("/y\\04")]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = (parse_mounts(&bytes).count(), parse_mount_id(&bytes), upper_directory(&bytes));
            let mut line = b"1 2 0:3 / ".to_vec();
            line.extend(bytes);
            line.extend(b" rw - cgroup cgroup ");
            line.extend(tail);
            parse_mounts(&line).for_each(drop);
        }

        #[test]
        fn octal_escapes_are_decoded(path in "[ -~]{1,30}") {
            let escaped: String = path.chars().map(|c| if c == ' ' || c == '\\' { format!("\\{:03o}", c as u32) } else { c.to_string() }).collect();
            prop_assert_eq!(unescape(escaped.as_bytes()).into_os_string(), &*path);
        }
    }
}
