//! A small file system for one test or story: ext4, xfs or btrfs on a loop device, or a tmpfs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::folder::{self, Folder};

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On a loop device.
    Ext4,
    /// On a loop device, 300 MiB at least.
    Xfs,
    /// On a loop device, 109 MiB at least.
    Btrfs,
    /// In memory.
    Tmpfs,
}

impl Kind {
    /// As mount(8) calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
        }
    }

    fn make(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            // No blocks for root alone: what is free is available.
            Self::Ext4 => Some(("mkfs.ext4", &["-q", "-F", "-m", "0"])),
            Self::Xfs => Some(("mkfs.xfs", &["-q", "-f"])),
            Self::Btrfs => Some(("mkfs.btrfs", &["-q", "-f"])),
            Self::Tmpfs => None,
        }
    }
}

/// The variable that names a disk to be used for an ext4 where there are no loop devices, as in the guests of
/// `cargo xtask vm`. One at a time can be on it.
const DISK: &str = "EVICTION_TEST_DISK";

/// A mounted file system. It is unmounted and its image removed when this is dropped.
#[derive(Debug)]
pub struct FileSystem {
    kind: Kind,
    bytes: u64,
    /// The image or the disk that it is on.
    image: PathBuf,
    point: PathBuf,
    folder: Folder,
}

impl FileSystem {
    /// Makes and mounts one of so many bytes.
    ///
    /// # Errors
    /// If this machine lacks the program or the privilege for it.
    pub fn new(kind: Kind, bytes: u64, prefix: &str) -> Result<Self> {
        let folder = Folder::below(&folder::on_disk()?, prefix)?;
        let point = folder.path().join("mounted");
        std::fs::create_dir(&point).with_context(|| format!("make {}", point.display()))?;
        let disk = std::env::var_os(DISK).filter(|_| kind == Kind::Ext4).map(PathBuf::from);
        let image = disk.unwrap_or_else(|| folder.path().join("image"));
        if let Some((program, options)) = kind.make() {
            if image.starts_with(folder.path()) {
                let file = std::fs::File::create(&image);
                file.and_then(|file| file.set_len(bytes))
                    .with_context(|| format!("make {}", image.display()))?;
            }
            let kib = (kind == Kind::Ext4).then(|| format!("{}k", bytes >> 10));
            run(Command::new(program).args(options).arg(&image).args(kib))?;
        }
        let made = Self { kind, bytes, image, point, folder };
        made.mount()?;
        Ok(made)
    }

    /// Mounts it again after it was unmounted; a tmpfs is a new one then.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn mount(&self) -> Result<()> {
        let Self { kind, bytes, image, point, folder } = self;
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name()]);
        match kind {
            Kind::Tmpfs => mount.args(["-o", &format!("size={bytes}"), "tmpfs"]),
            _ if image.starts_with(folder.path()) => mount.args(["-o", "loop"]).arg(image),
            _ => mount.arg(image),
        };
        run(mount.arg(point))
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// A folder beside it, on another file system.
    pub fn outside(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Whoever still uses it keeps it for himself. A test may have unmounted it.
        if let Err(error) = unmount(&self.point, UnmountFlags::DETACH)
            && error != Errno::INVAL
        {
            eprintln!("unmount {}: {error}", self.point.display());
        }
    }
}

/// Runs a program to its end.
///
/// # Errors
/// If there is no such program, or it fails; with what it said.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "));
    }
    Ok(())
}
