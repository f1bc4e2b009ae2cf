//! What a guest boots into: busybox, our programs, and a script that tells what it finds.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// The programs that a guest needs.
const PROGRAMS: [&str; 3] = ["eviction-agent", "demo", "workload"];

/// How sections of the guest's output begin; the name follows.
pub(super) const MARK: &str = "@@vm ";

/// The last thing a guest says.
pub(super) const END: &str = "end";

/// An initial RAM disk.
#[derive(Debug)]
pub(super) struct Ramdisk {
    pub(super) file: PathBuf,
    /// Is removed with this.
    _folder: Folder,
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Ramdisk {
    /// Packs busybox and the programs of that folder.
    pub(super) fn pack(programs: &Path) -> Result<Self> {
        let folder = Folder(std::env::temp_dir().join(format!("eviction-vm-{}", std::process::id())));
        let root = folder.0.join("root");
        for name in ["bin", "proc", "sys", "dev", "tmp", "run", "disk"] {
            let path = root.join(name);
            fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        }
        copy(Path::new("/bin/busybox"), &root.join("bin/busybox"))?;
        symlink("busybox", root.join("bin/sh")).context("link the guest's shell")?;
        for name in PROGRAMS {
            let copied = root.join("bin").join(name);
            copy(&programs.join(name), &copied)?;
            shell::read(Command::new("strip").arg(&copied))?;
        }
        let init = root.join("init");
        fs::write(&init, script()).with_context(|| format!("write {}", init.display()))?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("make init executable")?;
        let file = folder.0.join("initrd");
        let pack = "cd \"$1\" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > \"$2\"";
        shell::read(Command::new("sh").args(["-c", pack, "pack"]).arg(&root).arg(&file))?;
        Ok(Self { file, _folder: folder })
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {}", from.display())).map(drop)
}

/// The guest's first process. Each section is shown whole; the page cache of the RAM disk itself
/// cannot be reclaimed, so programs and files are on a disk.
fn script() -> String {
    format!(
        r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
if grep -q eviction_cgroups=v1 /proc/cmdline; then
    mount -t tmpfs cgroup /sys/fs/cgroup
    for controller in memory pids freezer cpu; do
        mkdir /sys/fs/cgroup/$controller
        mount -t cgroup -o $controller $controller /sys/fs/cgroup/$controller
    done
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
ip link set lo up
mount -t ext4 /dev/nvme0n1 /disk
cp /bin/eviction-agent /bin/demo /bin/workload /disk/
cd /disk
# The firmware has left its line open.
echo
echo "{MARK}release"
uname -r
echo "{MARK}check"
./eviction-agent check -o json
echo "{MARK}demo"
./demo --json --agent /disk/eviction-agent
echo "{MARK}leftovers"
find /sys/fs/cgroup -name 'eviction-*' -type d
echo "{MARK}{END}"
poweroff -f
"#
    )
}
