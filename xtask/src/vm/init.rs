//! What a guest boots: a RAM disk with busybox and a script that prints what it finds, and a disk with the
//! project's programs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::kernels::Cache;
use super::programs::{Kind, Program};
use super::{Cgroups, Machine};
use crate::build::Platform;
use crate::shell;

/// The prefix of a section in the guest's output; its name follows.
pub(super) const MARK: &str = "@@vm ";

/// The section of a program; its name follows.
pub(super) const RUN: &str = "run ";

/// The exit code of a program; its name and the code follow.
pub(super) const STATUS: &str = "status ";

/// The prefix of the kernel's messages while a program ran that failed.
pub(super) const KERNEL: &str = "@@kernel ";

/// The section of cgroups that were not removed.
pub(super) const LEFTOVERS: &str = "leftovers";

/// The time at which what follows began, in seconds since the boot.
const UPTIME: &str = "at ";

/// The last line that a guest prints.
pub(super) const END: &str = "end";

/// The timeout for a program that hangs. It does not measure speed.
const HANG_S: u32 = 3600;

/// The size of the guest's disk in bytes: the page cache is filled from it.
const DISK: u64 = 3 << 30;

/// The files of guests, removed when this is dropped.
#[derive(Debug)]
pub(super) struct GuestFiles {
    folder: PathBuf,
}

impl Drop for GuestFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The packages of earlyoom, and the files of each that a guest needs. Both are of one suite, so that they fit each
/// other.
const EARLYOOM: [(&str, &[&str]); 2] = [
    ("earlyoom", &["usr/bin/earlyoom"]),
    ("libc6", &["lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"]),
];

/// The prefix of the name of a run's folder; the process ID follows.
const FOLDER: &str = "eviction-vm-";

impl GuestFiles {
    /// Copies these programs of a platform, stripped.
    pub(super) fn new(programs: &[PathBuf], platform: Platform) -> Result<Self> {
        remove_abandoned();
        let files = Self { folder: std::env::temp_dir().join(format!("{FOLDER}{}", std::process::id())) };
        let disk = shell::create_folder(files.folder.join("programs"))?;
        for program in programs {
            let copied = disk.join(program.file_name().context("the name of a program")?);
            shell::copy(program, &copied)?;
            shell::read(Command::new(platform.strip()).arg(&copied))?;
        }
        Ok(files)
    }

    /// Copies earlyoom for comparison, with its libraries and the loader that starts it: Debian's own files.
    pub(super) fn add_earlyoom(&self, cache: &Cache) -> Result<()> {
        let folder = shell::create_folder(self.folder.join("programs/earlyoom"))?;
        for (package, paths) in EARLYOOM {
            let cached = cache.folder(&format!("peers/{package}"))?;
            for file in cache.package_files(&format!("{package}/bookworm"), paths, &cached)? {
                shell::copy(&file, &folder.join(file.file_name().unwrap_or_default()))?;
            }
        }
        Ok(())
    }

    /// Creates the RAM disk of a guest that runs these programs and has this busybox.
    pub(super) fn ramdisk(
        &self,
        machine: &Machine,
        programs: &[&Program],
        busybox: &Path,
        modules: &Path,
    ) -> Result<PathBuf> {
        let root = self.folder.join(format!("root-{}", machine.name));
        for name in ["bin", "proc", "sys", "dev", "etc", "tmp", "run", "disk"] {
            shell::create_folder(root.join(name))?;
        }
        shell::copy(busybox, &root.join("bin/busybox"))?;
        symlink("busybox", root.join("bin/sh")).context("link the guest's shell")?;
        if machine.platform == Platform::HOST {
            HOST_PROGRAMS.iter().try_for_each(|program| add_program(&root, program))?;
            shell::copy(Path::new("/etc/mke2fs.conf"), &root.join("etc/mke2fs.conf"))?;
        }
        shell::run(Command::new("cp").arg("-r").arg(modules).arg(&root))?;
        let init = root.join("init");
        fs::write(&init, script(machine.cgroups, programs))
            .with_context(|| format!("write {}", init.display()))?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("make init executable")?;
        let file = self.folder.join(format!("initrd-{}", machine.name));
        let pack = "cd \"$1\" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > \"$2\"";
        shell::read(Command::new("sh").args(["-c", pack, "pack"]).arg(&root).arg(&file))?;
        Ok(file)
    }

    /// Creates a new disk with the programs: files in a RAM disk cannot be reclaimed.
    pub(super) fn disk(&self) -> Result<PathBuf> {
        let disk = self.folder.join("disk");
        File::create(&disk).and_then(|file| file.set_len(DISK)).context("make the guest's disk")?;
        let programs = self.folder.join("programs");
        shell::read(Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(&programs).arg(&disk))?;
        Ok(disk)
    }
}

/// The programs of this machine that tests start: busybox lacks them, or the options that tests use.
const HOST_PROGRAMS: [&str; 6] = ["btrfs", "du", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "sync"];

/// Copies a program of this machine into a guest, with the libraries that it loads.
fn add_program(root: &Path, program: &str) -> Result<()> {
    let found = shell::read(Command::new("sh").args(["-c", "command -v \"$1\"", "find", program]))?;
    shell::copy(Path::new(found.trim()), &root.join("bin").join(program))?;
    for library in libraries(&shell::read(Command::new("ldd").arg(found.trim()))?) {
        let copied = root.join(library.trim_start_matches('/'));
        shell::create_folder(copied.parent().unwrap_or(root).to_owned())?;
        shell::copy(Path::new(library), &copied)?;
    }
    Ok(())
}

/// Returns the files in the output of ldd.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().filter(|word| word.starts_with('/'))
}

/// Removes what interrupted runs have left behind.
fn remove_abandoned() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the script of the guest's first process. Each section is printed as a whole.
fn script(cgroups: Cgroups, programs: &[&Program]) -> String {
    let mount = match cgroups {
        Cgroups::V1 => {
            "mount -t tmpfs cgroup /sys/fs/cgroup
for controller in memory pids freezer cpu; do
    mkdir /sys/fs/cgroup/$controller
    mount -t cgroup -o $controller $controller /sys/fs/cgroup/$controller
done
# As systemd does; from 5.11 on there is nothing else.
echo 1 > /sys/fs/cgroup/memory/memory.use_hierarchy"
        }
        Cgroups::V2 => "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
    };
    let mut runs = String::new();
    for Program { name, kind, target, arguments, .. } in programs {
        let one_at_a_time = if *kind == Kind::Tests { " --test-threads=1" } else { "" };
        let _ = writeln!(
            runs,
            "at\necho \"{MARK}{RUN}{name}\"\n\
             timeout -s INT {HANG_S} ./{target} {arguments}{one_at_a_time} </dev/null 2>&1\nended {name} $?"
        );
    }
    format!(
        r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
mount -t bpf bpf /sys/fs/bpf
{mount}
ip link set lo up
mount -t ext4 /dev/nvme0n1 /disk
modprobe -a loop btrfs xfs overlay fuse quota_v2
# It is in memory.
rm -r /lib/modules
cd /disk
# Seconds since the boot, for people who read the log.
at() {{ read -r seconds rest </proc/uptime; echo "{MARK}{UPTIME}$seconds"; }}
# What the kernel said meanwhile is printed where a program failed.
ended() {{
    if [ "$2" = 0 ]; then dmesg -c >/dev/null; else dmesg -c | sed 's/^/{KERNEL}/'; fi
    echo "{MARK}{STATUS}$1 $2"
}}
# Reports of OOM kills without a line for each process.
echo 0 >/proc/sys/vm/oom_dump_tasks
# The firmware has left its line open.
echo
echo "{MARK}release"
uname -r
at
echo "{MARK}check"
RUST_LOG=debug ./eviction-agent check -o json 2>/tmp/check.log
echo "{MARK}check log"
cat /tmp/check.log
{runs}at
echo "{MARK}{LEFTOVERS}"
find /sys/fs/cgroup -name 'eviction-*' -type d
echo "{MARK}{END}"
poweroff -f
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::programs::PROGRAMS;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn script_runs_each_program_and_prints_its_exit_code() {
        let script = script(Cgroups::V2, &PROGRAMS.iter().collect::<Vec<_>>());
        for program in PROGRAMS {
            assert!(script.contains(&format!(
                "{MARK}{RUN}{}\"\ntimeout -s INT {HANG_S} ./{}",
                program.name, program.target
            )));
            assert!(script.contains(&format!("\nended {} $?\n", program.name)));
        }
        assert!(script.contains("cgroup2") && !script.contains("controller"), "{script}");
    }
}
