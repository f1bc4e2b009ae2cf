//! The available space of a real file system, compared with the bytes that the test wrote.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;

use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::FsStats;
use eviction_node::cgroup::hierarchy::Host;
use eviction_node::fs::FileSystem;
use tests::file_system::Kind;
use tests::process::run;
use tests::skip;

use crate::{MIB, mount};

fn open(path: &Path) -> FileSystem {
    FileSystem::open(path, &[], &Host::default()).unwrap()
}

fn read(file_system: &FileSystem) -> FsStats {
    match file_system.read() {
        Reading::Known(stats) => stats,
        Reading::Unknown(why) => panic!("{}: {why:?}", file_system.description()),
    }
}

fn available(file_system: &FileSystem) -> u64 {
    read(file_system).available.unwrap()
}

/// Writes 64 MiB, and asserts that each MiB is missing at once, with at most `slack` more.
fn assert_every_write_is_seen(kind: Kind, slack: u64) {
    let mounted = mount!(kind);
    mounted.sync().unwrap();
    let file_system = open(mounted.path());
    assert_eq!(file_system.mount().fs_type, kind.name());
    let before = available(&file_system);
    let mut file = File::create(mounted.path().join("file")).unwrap();
    for written in 1..=64 {
        file.write_all(&[1; 1 << 20]).unwrap();
        let used = before - available(&file_system);
        assert!((written * MIB..=written * MIB + slack).contains(&used), "{written} MiB: {used} bytes");
    }
}

#[test]
fn ext4_shows_every_write_at_once() {
    assert_every_write_is_seen(Kind::Ext4, MIB);
}

#[test]
fn tmpfs_shows_every_write_at_once() {
    assert_every_write_is_seen(Kind::Tmpfs, 0);
}

#[test]
fn btrfs_shows_every_write_with_its_metadata_reservation() {
    // btrfs reserves its metadata generously.
    assert_every_write_is_seen(Kind::Btrfs, 48 * MIB);
}

/// Between write-back and the next commit, up to 30 seconds later, statfs does not show what was allocated.
#[test]
fn btrfs_shows_what_is_written_back_before_the_commit() {
    let mounted = mount!(Kind::Btrfs);
    mounted.sync().unwrap();
    let file_system = open(mounted.path());
    let before = available(&file_system);
    let mut file = File::create(mounted.path().join("file")).unwrap();
    file.write_all(&vec![1; 64 << 20]).unwrap();
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: only the descriptor is passed, and it is open.
    assert_eq!(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, all) }, 0);
    let used = before - available(&file_system);
    assert!((64 * MIB..=112 * MIB).contains(&used), "{used} bytes");
}

/// btrfs counts its global reserve, up to 512 MiB, among the bytes that writers have reserved.
#[test]
fn btrfs_at_rest_has_the_available_space_that_statfs_shows() {
    let mounted = mount!(Kind::Btrfs);
    mounted.sync().unwrap();
    let shown = rustix::fs::statvfs(mounted.path()).unwrap();
    let missing = (shown.f_bavail * shown.f_frsize).saturating_sub(available(&open(mounted.path())));
    assert!(missing < MIB, "{missing} bytes");
}

/// Speculative preallocation is not available for as long as the file is open.
#[test]
fn xfs_shows_every_write_with_its_preallocation() {
    assert_every_write_is_seen(Kind::Xfs, 128 * MIB);
}

#[test]
fn capacity_is_in_units_of_the_fragment_size() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs] {
        let mounted = mount!(kind);
        let FsStats { capacity, available, inodes, inodes_free, .. } = read(&open(mounted.path()));
        let (capacity, available) = (capacity.unwrap(), available.unwrap());
        assert!((240 * MIB..=320 * MIB).contains(&capacity) && available <= capacity, "{kind:?}: {capacity}");
        assert_eq!(inodes.is_none(), kind == Kind::Btrfs, "{kind:?}: btrfs has no limit of inodes");
        assert!(inodes_free <= inodes, "{kind:?}");
    }
}

#[test]
fn inodes_are_counted_as_they_are_created() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Tmpfs] {
        let mounted = mount!(kind);
        let file_system = open(mounted.path());
        let used = |stats: FsStats| stats.inodes.unwrap() - stats.inodes_free.unwrap();
        let before = used(read(&file_system));
        for file in 0..500 {
            File::create(mounted.path().join(file.to_string())).unwrap();
        }
        assert_eq!(used(read(&file_system)) - before, 500, "{kind:?}");
    }
}

#[test]
fn full_frozen_and_read_only_file_systems_are_still_read() {
    let mounted = mount!(Kind::Ext4);
    let file_system = open(mounted.path());
    let mut file = File::create(mounted.path().join("file")).unwrap();
    while file.write_all(&[1; 1 << 16]).is_ok() {}
    assert!(available(&file_system) < 1 << 16);
    match run(Command::new("fsfreeze").arg("--freeze").arg(mounted.path())) {
        Ok(()) => {
            let frozen = available(&file_system);
            run(Command::new("fsfreeze").arg("--unfreeze").arg(mounted.path())).unwrap();
            assert!(frozen < 1 << 16);
        }
        Err(error) => skip!("{error:#}"),
    }
    drop(file);
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(mounted.path())).unwrap();
    assert!(available(&file_system) < 1 << 16);
    let path = mounted.path().to_owned();
    drop(mounted);
    assert!(!path.exists());
    assert_eq!(file_system.read(), Reading::Unknown(UnknownReason::Unreadable(2)));
}

/// The directory below the mount belongs to another file system, from which nothing follows about the first.
#[test]
fn an_unmounted_file_system_is_unknown_until_it_is_mounted_again() {
    let mounted = mount!(Kind::Ext4);
    let file_system = open(mounted.path());
    let before = read(&file_system);
    mounted.unmount().unwrap();
    assert_eq!(file_system.read(), Reading::Unknown(UnknownReason::Replaced));
    mounted.mount().unwrap();
    assert_eq!(read(&file_system), before);
    let other = mount!(Kind::Tmpfs);
    rustix::mount::mount_bind(other.path(), mounted.path()).unwrap();
    assert_eq!(file_system.read(), Reading::Unknown(UnknownReason::Replaced));
    mounted.unmount().unwrap();
    assert_eq!(read(&file_system), before);
}

/// A bind mount shows the whole file system, whatever directory of it is mounted.
#[test]
fn file_systems_are_compared_by_size_and_capacity_0_is_implausible() {
    let (one, other) = (mount!(Kind::Ext4), mount!(Kind::Tmpfs));
    let file_system = open(one.path());
    assert!(!file_system.is_as_large_as(&open(other.path())));
    assert!(file_system.is_as_large_as(&open(one.path())));
    assert_eq!(open(Path::new("/proc")).read(), Reading::Unknown(UnknownReason::Implausible), "capacity 0");
}
