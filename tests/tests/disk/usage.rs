//! The usage of a volume, with mounts in it, and compared with du.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use eviction_node::fs::{DiskUsage, WalkBudget, read_disk_usage};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tests::file_system::Kind;
use tests::process::{Stop, run};

use crate::mount;

const UNLIMITED: WalkBudget = WalkBudget { deadline_ns: u64::MAX, inodes: u64::MAX };

pub(crate) fn usage(base: &Path, path: &str) -> DiskUsage {
    read_disk_usage(File::open(base).unwrap().as_fd(), Path::new(path), &mut UNLIMITED.clone()).unwrap()
}

fn du(path: &Path, inodes: bool) -> u64 {
    let mut command = Command::new("du");
    command.args(["--summarize", "--one-file-system", "--block-size=1"]);
    if inodes {
        command.arg("--inodes");
    }
    let output = command.arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn usage_equals_that_of_du() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs] {
        let mounted = mount!(kind);
        let volume = mounted.path().join("volume");
        for directory in 0..20 {
            let directory = volume.join(directory.to_string());
            fs::create_dir_all(&directory).unwrap();
            for file in 0..50 {
                fs::write(directory.join(file.to_string()), vec![1; file * 1000]).unwrap();
            }
            fs::hard_link(directory.join("49"), directory.join("again")).unwrap();
        }
        File::create(volume.join("hole")).unwrap().set_len(1 << 30).unwrap();
        File::open(mounted.path()).unwrap().sync_all().unwrap();
        mounted.sync().unwrap();
        let found = usage(mounted.path(), "volume");
        let expected =
            DiskUsage { bytes: du(&volume, false), inodes: du(&volume, true), ..DiskUsage::default() };
        assert_eq!(found, expected, "{kind:?}");
    }
}

/// More files than the agent reads at a time from a directory, in one directory and in several.
#[test]
fn usage_of_a_volume_with_50000_files_equals_that_of_du() {
    let mounted = mount!(Kind::Ext4);
    let volume = mounted.path().join("volume");
    fs::create_dir_all(volume.join("below")).unwrap();
    for file in 0..25_000 {
        File::create(volume.join(file.to_string())).unwrap();
        File::create(volume.join("below").join(format!("{file:0200}"))).unwrap();
    }
    let found = usage(mounted.path(), "volume");
    let (bytes, inodes) = (du(&volume, false), du(&volume, true));
    assert_eq!((found, inodes), (DiskUsage { bytes, inodes, ..DiskUsage::default() }, 50_002));
    let mut budget = WalkBudget { inodes: 40_000, ..UNLIMITED };
    let part = read_disk_usage(File::open(mounted.path()).unwrap().as_fd(), Path::new("volume"), &mut budget);
    let part = part.unwrap();
    assert!(part.is_lower_bound && part.inodes == 40_000 && part.bytes <= bytes, "{part:?}");
}

/// A memory emptyDir or another volume that is mounted below, and a directory that loops by a bind mount.
#[test]
fn mounts_below_a_volume_are_neither_entered_nor_kept_busy() {
    let (mounted, other) = (mount!(Kind::Ext4), mount!(Kind::Tmpfs));
    let volume = mounted.path().join("volume");
    let points = ["loop", "other"].map(|name| volume.join(name));
    points.iter().for_each(|point| fs::create_dir_all(point).unwrap());
    fs::write(other.path().join("large"), vec![1; 1 << 20]).unwrap();
    let alone = usage(mounted.path(), "volume");
    run(Command::new("mount").arg("--bind").arg(&volume).arg(&points[0])).unwrap();
    run(Command::new("mount").arg("--bind").arg(other.path()).arg(&points[1])).unwrap();
    let found = usage(mounted.path(), "volume");
    for point in &points {
        run(Command::new("umount").arg(point)).unwrap();
    }
    assert_eq!((found.inodes, found.is_lower_bound), (alone.inodes - 2, false), "no mount point counts");
    let path = Path::new("volume/other");
    run(Command::new("mount").arg("--bind").arg(other.path()).arg(&points[1])).unwrap();
    let result = read_disk_usage(File::open(mounted.path()).unwrap().as_fd(), path, &mut UNLIMITED.clone());
    run(Command::new("umount").arg(&points[1])).unwrap();
    assert!(result.is_err(), "{result:?}");
}

/// A kubelet that deletes a pod unmounts its volumes while the agent may read them. A lookup of a mount point's name
/// delays the unmount for a moment, and nothing delays it for longer.
#[test]
fn reading_usage_does_not_block_an_unmount() {
    const ATTEMPTS: usize = 50;
    let (mounted, other) = (mount!(Kind::Ext4), mount!(Kind::Tmpfs));
    let point = mounted.path().join("volume/memory");
    fs::create_dir_all(&point).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let unmounted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                usage(mounted.path(), "volume");
            }
        });
        let _stopper = Stop(&stop);
        let unmount = || (0..ATTEMPTS).any(|_| run(Command::new("umount").arg(&point)).is_ok());
        let mut rounds = (0..100).map(|_| {
            run(Command::new("mount").arg("--bind").arg(other.path()).arg(&point)).is_ok() && unmount()
        });
        rounds.all(|unmounted| unmounted)
    });
    assert!(unmounted);
}

/// The agent may lack the right to read every directory: then the usage is a lower bound.
#[test]
fn an_unreadable_directory_makes_the_usage_a_lower_bound() {
    let mounted = mount!(Kind::Ext4);
    let volume = mounted.path().join("volume");
    let private = volume.join("private");
    fs::create_dir_all(&private).unwrap();
    fs::write(volume.join("seen"), vec![1; 1 << 20]).unwrap();
    fs::write(private.join("unseen"), vec![1; 1 << 20]).unwrap();
    std::os::unix::fs::chown(&private, Some(1000), Some(1000)).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    let all = usage(mounted.path(), "volume");
    assert!(!all.is_lower_bound && all.bytes > 2 << 20, "{all:?}");
    // Capabilities belong to a thread.
    let part = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            let mut held = capabilities(None).unwrap();
            held.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, held).unwrap();
            usage(mounted.path(), "volume")
        });
        unprivileged.join().unwrap()
    });
    assert!(part.is_lower_bound && part.bytes > 1 << 20 && part.bytes < 2 << 20, "{part:?}");
}

/// A pod may replace a directory with a symbolic link while the agent reads it: nothing outside counts for it.
#[test]
fn a_directory_replaced_by_a_link_is_not_followed() {
    let mounted = mount!(Kind::Ext4);
    let (volume, outside) = (mounted.path().join("volume"), mounted.path().join("outside"));
    let (inner, link) = (volume.join("a/b"), volume.join("link"));
    fs::create_dir_all(&inner).unwrap();
    fs::create_dir_all(outside.join("b")).unwrap();
    fs::write(outside.join("b/large"), vec![1; 32 << 20]).unwrap();
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (directory, link) = (volume.join("a"), &link);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &directory, CWD, link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _stopper = Stop(&stop);
        let most = (0..2000).map(|_| {
            // The path itself may be the link at that moment, which is refused.
            let (base, path) = (File::open(mounted.path()).unwrap(), Path::new("volume/a/b"));
            let below = read_disk_usage(base.as_fd(), path, &mut UNLIMITED.clone());
            below.map_or(0, |it| it.bytes).max(usage(mounted.path(), "volume").bytes)
        });
        most.max()
    });
    assert!(most.unwrap() < 1 << 20, "{most:?}");
}
