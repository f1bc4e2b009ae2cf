//! Tests of the usage of directories: links, deep paths, mounts, and directories that change.

use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

const UNLIMITED: WalkBudget = WalkBudget { deadline_ns: u64::MAX, inodes: u64::MAX };

fn usage(base: &Path, path: &str, budget: &mut WalkBudget) -> Result<DiskUsage, UnknownReason> {
    read_disk_usage(fs::File::open(base).unwrap().as_fd(), Path::new(path), budget)
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("volume/a/b")).unwrap();
    fs::write(folder.path().join("volume/a/large"), vec![1; 1 << 20]).unwrap();
    fs::write(folder.path().join("volume/a/b/small"), "x").unwrap();
    folder
}

/// Returns the usage as du counts it: `st_blocks` of each.
fn blocks(paths: &[&Path]) -> u64 {
    paths.iter().map(|path| fs::symlink_metadata(path).unwrap().blocks() * BLOCK).sum()
}

#[test]
fn the_directory_itself_and_everything_below_counts() {
    let folder = folder();
    let volume = folder.path().join("volume");
    let all = ["", "a", "a/b", "a/large", "a/b/small"].map(|path| volume.join(path));
    let found = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
    let bytes = blocks(&all.each_ref().map(|path| path.as_path()));
    assert_eq!(found, DiskUsage { bytes, inodes: 5, ..DiskUsage::default() });
}

#[test]
fn hard_links_count_once_and_symbolic_links_are_never_followed() {
    let folder = folder();
    let volume = folder.path().join("volume");
    let before = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
    fs::hard_link(volume.join("a/large"), volume.join("a/b/again")).unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("other"), vec![1; 1 << 20]).unwrap();
    symlink(&outside, volume.join("a/link")).unwrap();
    let found = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
    assert_eq!(found.inodes, before.inodes + 1, "the link itself");
    assert!(found.bytes < before.bytes + (1 << 20), "{found:?}");
    symlink(&volume, folder.path().join("to-volume")).unwrap();
    for path in ["to-volume", "to-volume/a", "volume/a/link", "volume/../outside/..", "/"] {
        assert!(usage(&volume, path, &mut UNLIMITED.clone()).is_err(), "{path}");
    }
}

#[test]
fn a_budget_that_is_used_up_gives_a_lower_bound() {
    let folder = folder();
    let many = folder.path().join("volume/many");
    fs::create_dir(&many).unwrap();
    (0..500).for_each(|file| fs::write(many.join(file.to_string()), "x").unwrap());
    let mut budget = WalkBudget { inodes: 100, ..UNLIMITED };
    let found = usage(folder.path(), "volume", &mut budget).unwrap();
    assert_eq!((found.inodes, found.is_lower_bound, budget.inodes), (100, true, 0));
    let mut late = WalkBudget { deadline_ns: 0, ..UNLIMITED };
    let found = usage(folder.path(), "volume", &mut late).unwrap();
    assert_eq!((found.inodes, found.is_lower_bound), (0, true));
    assert_eq!(usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap().inodes, 506);
}

/// Makes nested directories below `top`, each with `sibling` beside it, and returns the deepest.
fn nest(top: &Path, name: &CStr, depth: u64, sibling: Option<&CStr>) -> OwnedFd {
    let mut directory: OwnedFd = fs::File::open(top).unwrap().into();
    let mode = Mode::from_raw_mode(0o755);
    for _ in 0..depth {
        for name in sibling.iter().copied().chain([name]) {
            rustix::fs::mkdirat(&directory, name, mode).unwrap();
        }
        directory = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty()).unwrap();
    }
    directory
}

fn write_at(directory: &OwnedFd, name: &CStr, bytes: usize) {
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644)).unwrap();
    std::io::Write::write_all(&mut fs::File::from(file), &vec![1; bytes]).unwrap();
}

/// `remove_dir_all` holds a descriptor for each level, so `rm` removes deep trees.
fn remove(folder: tempfile::TempDir) {
    let path = folder.keep();
    assert!(std::process::Command::new("rm").arg("-rf").arg(path).status().unwrap().success());
}

#[test]
fn a_path_longer_than_path_max_is_read() {
    for (length, depth) in [(199, 24), (255, 600), (1, 5_000)] {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        fs::create_dir(&volume).unwrap();
        let name = CString::new("d".repeat(length)).unwrap();
        let deepest = nest(&volume, &name, depth, None);
        let before = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
        assert_eq!((before.inodes, before.is_lower_bound), (1 + depth, false), "{length}");
        write_at(&deepest, c"hidden", 1 << 20);
        let found = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
        assert_eq!((found.inodes, found.is_lower_bound), (2 + depth, false), "{length}");
        assert!(found.bytes >= before.bytes + (1 << 20), "{length}: {found:?}");
        remove(folder);
    }
}

/// The path is longer than the descriptors that are kept.
#[test]
fn directories_beside_each_level_of_a_deep_path_are_read() {
    let levels = u64::try_from((MAX_OPEN_ANCESTORS + 3) * STEP_NAMES).unwrap();
    // In both orders in which the file system may list them.
    for (deep, beside) in [(c"a", c"z"), (c"z", c"a")] {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        fs::create_dir(&volume).unwrap();
        drop(nest(&volume, deep, levels, Some(beside)));
        let found = usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
        assert_eq!((found.inodes, found.is_lower_bound), (1 + 2 * levels, false));
        remove(folder);
    }
}

#[test]
fn walk_leaks_no_descriptor_and_opens_a_bounded_number() {
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("volume");
    fs::create_dir(&volume).unwrap();
    drop(nest(&volume, c"d", 5_000, None));
    let below = |link: std::io::Result<fs::DirEntry>| {
        fs::read_link(link.unwrap().path()).is_ok_and(|path| path.starts_with(&volume))
    };
    let open = || fs::read_dir("/proc/self/fd").unwrap().map(below).filter(|it| *it).count();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                most = most.max(open());
            }
            most
        });
        for _ in 0..5 {
            usage(folder.path(), "volume", &mut UNLIMITED.clone()).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert!(most <= MAX_OPEN_ANCESTORS + 3, "{most}");
    assert_eq!(open(), 0);
    remove(folder);
}

#[test]
fn a_mount_below_is_not_entered() {
    let missing = usage(Path::new("/"), "proc", &mut UNLIMITED.clone());
    assert_eq!(missing, Err(unreadable(Errno::XDEV)));
    assert_eq!(
        usage(Path::new("/"), "nonexistent", &mut UNLIMITED.clone()),
        Err(UnknownReason::Unreadable(2))
    );
}

#[test]
fn files_created_and_removed_during_the_walk_cause_no_error() {
    let folder = folder();
    let busy = folder.path().join("volume/busy");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::create_dir_all(busy.join("deep/deeper")).unwrap();
                fs::write(busy.join("deep/file"), "x").unwrap();
                fs::remove_dir_all(&busy).unwrap();
            }
        });
        let read = || usage(folder.path(), "volume", &mut UNLIMITED.clone());
        let found: Vec<_> = (0..300).map(|_| read()).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for found in found {
            let found = found.unwrap();
            assert!((5..=9).contains(&found.inodes) && !found.is_lower_bound, "{found:?}");
        }
    });
}
