//! A small file system for one test or story: ext4, xfs or btrfs on a loop device, or a tmpfs.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::folder::{self, Folder};
use crate::process::{run, wait_until};

/// The kind of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On a loop device.
    Ext4,
    /// On a loop device, with active project quotas.
    Ext4WithQuotas,
    /// On a loop device, 300 MiB at least.
    Xfs,
    /// On a loop device, 109 MiB at least.
    Btrfs,
    /// In memory.
    Tmpfs,
}

impl Kind {
    /// Returns its name for mount(8).
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Ext4WithQuotas => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
        }
    }

    fn mkfs_command(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            // No blocks are reserved for root, so that all free blocks are available.
            Self::Ext4 => Some(("mkfs.ext4", &["-q", "-F", "-m", "0"])),
            Self::Ext4WithQuotas => Some((
                "mkfs.ext4",
                &["-q", "-F", "-m", "0", "-O", "quota,project", "-E", "quotatype=prjquota"],
            )),
            Self::Xfs => Some(("mkfs.xfs", &["-q", "-f"])),
            Self::Btrfs => Some(("mkfs.btrfs", &["-q", "-f"])),
            Self::Tmpfs => None,
        }
    }
}

/// A mounted file system. It is unmounted and its image removed when this is dropped.
#[derive(Debug)]
pub struct FileSystem {
    kind: Kind,
    bytes: u64,
    point: PathBuf,
    folder: Folder,
}

impl FileSystem {
    /// Creates and mounts a file system of so many bytes.
    ///
    /// # Errors
    /// If this machine lacks the program or the privilege for it.
    pub fn new(kind: Kind, bytes: u64, prefix: &str) -> Result<Self> {
        let folder = Folder::below(&folder::on_disk()?, prefix)?;
        let point = folder.path().join("mounted");
        std::fs::create_dir(&point).with_context(|| format!("make {}", point.display()))?;
        let created = Self { kind, bytes, point, folder };
        if let Some((program, options)) = kind.mkfs_command() {
            let image = created.image();
            let file = std::fs::File::create(&image);
            file.and_then(|file| file.set_len(bytes)).with_context(|| format!("make {}", image.display()))?;
            run(Command::new(program).args(options).arg(&image))?;
        }
        created.mount()?;
        Ok(created)
    }

    /// Mounts it again after it was unmounted; a tmpfs is a new one then.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind.name()]);
        match self.kind {
            Kind::Tmpfs => mount.args(["-o", &format!("size={}", self.bytes), "tmpfs"]),
            Kind::Ext4WithQuotas => mount.args(["-o", "loop,prjquota"]).arg(self.image()),
            _ => mount.args(["-o", "loop"]).arg(self.image()),
        };
        run(mount.arg(&self.point))
    }

    /// Unmounts it; [`Self::mount`] mounts it again.
    ///
    /// # Errors
    /// If it is in use.
    pub fn unmount(&self) -> Result<()> {
        // A process that another test has just started may have a descriptor until it executes its program.
        let mut unmounted = Err(Errno::BUSY);
        wait_until("the file system is not in use", || {
            unmounted = unmount(&self.point, UnmountFlags::empty());
            unmounted != Err(Errno::BUSY)
        })?;
        unmounted.with_context(|| format!("unmount {}", self.point.display()))
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns its block device.
    ///
    /// # Errors
    /// If it has none, or the device cannot be found.
    pub fn device(&self) -> std::io::Result<PathBuf> {
        let number = std::fs::metadata(&self.point)?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let event = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent"))?;
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        name.map(|name| Path::new("/dev").join(name)).ok_or_else(|| std::io::Error::other("no DEVNAME"))
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Returns the kubelet's root directory on it, where it is the nodefs of a node.
    pub fn kubelet_root(&self) -> PathBuf {
        self.point.join("kubelet")
    }

    /// Returns the bytes that are available on it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn available(&self) -> Result<u64> {
        let stat = statvfs(&self.point).with_context(|| format!("read {}", self.point.display()))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Writes everything to the disk. A new btrfs then no longer reserves space for its mount, which it would give
    /// back later.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn sync(&self) -> Result<()> {
        run(Command::new("sync").arg("--file-system").arg(&self.point))
    }

    /// Allocates a file of so many bytes on it, and returns its path.
    ///
    /// # Errors
    /// If it is full, or cannot allocate.
    pub fn fill(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.point.join(name);
        let file = std::fs::File::create(&path).with_context(|| format!("make {}", path.display()))?;
        let allocated = fallocate(file, FallocateFlags::empty(), 0, bytes);
        allocated.with_context(|| format!("allocate {bytes} bytes for {}", path.display()))?;
        Ok(path)
    }

    /// Returns a folder that is on another file system.
    pub fn outside(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A lazy unmount: processes that still use it keep it. A test may have unmounted it before.
        if let Err(error) = unmount(&self.point, UnmountFlags::DETACH)
            && error != Errno::INVAL
        {
            eprintln!("unmount {}: {error}", self.point.display());
        }
    }
}
