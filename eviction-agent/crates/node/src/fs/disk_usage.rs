//! The usage of a directory on its file system, as du counts it.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxAttributes, StatxFlags, openat2, statx,
};
use rustix::io::Errno;

use eviction_core::reading::UnknownReason;

use crate::clock::mono_ns;
use crate::file::{retry, unreadable};

const BLOCK: u64 = 512;
const BUFFER: usize = 32 << 10;

/// The most names and bytes of a path that are opened at once. A path may be longer than PATH_MAX, and a deep
/// one must not be followed again from the top for each of its directories.
const STEP_NAMES: usize = 64;
const STEP_BYTES: usize = 3072;

/// The most descriptors that are kept on the path to a deep directory.
const MAX_OPEN_ANCESTORS: usize = 32;

/// How often the clock is read, in inodes.
const CLOCK_EVERY: u64 = 64;

/// Opens directories only, never through a symbolic link, and never on another file system or mount: a
/// descriptor there would keep the kubelet from unmounting it.
const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV)
    .union(ResolveFlags::NO_MAGICLINKS);

/// The usage of a directory, as the kubelet counts volumes (`pkg/volume/util/fs`): allocated blocks, each inode
/// once, including the directory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated bytes.
    pub bytes: u64,
    /// Files, directories and others.
    pub inodes: u64,
    /// Whether not everything was counted, so that the usage is at least this much.
    pub is_lower_bound: bool,
    /// The bytes of `bytes` that are allocated to files beyond their ends. xfs frees most of them when a file
    /// is closed.
    pub preallocated: u64,
}

impl DiskUsage {
    /// Returns the sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            is_lower_bound: self.is_lower_bound || other.is_lower_bound,
            preallocated: self.preallocated.saturating_add(other.preallocated),
        }
    }
}

/// The limits of a directory walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkBudget {
    /// CLOCK_MONOTONIC at which the walk ends, in nanoseconds.
    pub deadline_ns: u64,
    /// The number of inodes that may still be counted.
    pub inodes: u64,
}

/// Sums up what is below `path` in the directory `base`, on the file system of `base`. What cannot be read, is
/// removed meanwhile or exceeds the budget is left out, and the result is marked as a lower bound. No
/// descriptor stays open after the call.
///
/// # Errors
/// If the directory itself cannot be opened, or is on another file system than `base`.
pub fn read_disk_usage(
    base: BorrowedFd<'_>,
    path: &Path,
    budget: &mut WalkBudget,
) -> Result<DiskUsage, UnknownReason> {
    let top = CString::new(path.as_os_str().as_bytes()).map_err(|_| UnknownReason::Unparsable)?;
    let top = open(base, &top).map_err(unreadable)?;
    let found = stat(top.as_fd(), c"").map_err(unreadable)?;
    let mut walk = Walk {
        budget,
        usage: DiskUsage::default(),
        device: device_of(&found),
        linked: BTreeSet::new(),
        directories: Vec::new(),
        path: Vec::new(),
        open_ancestors: VecDeque::new(),
    };
    if walk.count(&found) {
        walk.read_directory(&top);
    }
    while let Some((depth, name)) = walk.directories.pop() {
        walk.path.truncate(depth);
        walk.path.push(name);
        match walk.open_path(top.as_fd()) {
            Ok(directory) => walk.read_directory(&directory),
            // A directory that was mounted over or removed meanwhile does not count.
            Err(Errno::XDEV | Errno::NOENT) => {}
            Err(_) => walk.usage.is_lower_bound = true,
        }
    }
    Ok(walk.usage)
}

fn open(base: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    // The call fails with EAGAIN if a mount or a rename happens at the same time.
    const ATTEMPTS: usize = 8;
    let mut last = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        last = retry(|| openat2(base, path, DIRECTORY, Mode::empty(), WITHIN));
        if last.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
    }
    last
}

fn stat(directory: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags =
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let wanted =
        StatxFlags::TYPE | StatxFlags::BLOCKS | StatxFlags::SIZE | StatxFlags::NLINK | StatxFlags::INO;
    retry(|| statx(directory, name, flags, wanted))
}

fn device_of(found: &Statx) -> (u32, u32) {
    (found.stx_dev_major, found.stx_dev_minor)
}

fn is_directory(found: &Statx) -> bool {
    FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory
}

/// Returns how many of these bytes of a file are allocated beyond its end, except for its last block.
fn preallocated_bytes(found: &Statx, bytes: u64) -> u64 {
    const LARGEST_BLOCK: u64 = 64 << 10;
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile => bytes.saturating_sub(found.stx_size.saturating_add(LARGEST_BLOCK)),
        _ => 0,
    }
}

struct Walk<'a> {
    budget: &'a mut WalkBudget,
    usage: DiskUsage,
    device: (u32, u32),
    /// Inodes with more than one name that were counted.
    linked: BTreeSet<u64>,
    /// Directories to read, the last one first: how many names of `path` lead to the parent, and the
    /// directory's name.
    directories: Vec<(usize, CString)>,
    /// The names that lead from the top to the current directory.
    path: Vec<CString>,
    /// Open directories on that path, the deepest last, each with the number of names that lead to it.
    open_ancestors: VecDeque<(usize, OwnedFd)>,
}

impl Walk<'_> {
    /// Counts an inode. Returns false if the budget is used up.
    fn count(&mut self, found: &Statx) -> bool {
        // The clock is also read before the first inode, so that a walk after the deadline ends at once.
        let reads_clock = self.usage.inodes == 0 || self.budget.inodes.is_multiple_of(CLOCK_EVERY);
        let is_late = reads_clock && mono_ns() >= self.budget.deadline_ns;
        if self.budget.inodes == 0 || is_late {
            self.usage.is_lower_bound = true;
            return false;
        }
        self.budget.inodes -= 1;
        if is_directory(found) || found.stx_nlink <= 1 || self.linked.insert(found.stx_ino) {
            let bytes = found.stx_blocks.saturating_mul(BLOCK);
            self.usage.bytes = self.usage.bytes.saturating_add(bytes);
            self.usage.preallocated =
                self.usage.preallocated.saturating_add(preallocated_bytes(found, bytes));
            self.usage.inodes += 1;
        }
        true
    }

    /// Opens the directory at `path` from the deepest directory on the path that is still open.
    fn open_path(&mut self, top: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        // A directory at the same depth or deeper may be another one.
        while self.open_ancestors.pop_back_if(|(depth, _)| *depth >= self.path.len()).is_some() {}
        loop {
            let (base, from) =
                self.open_ancestors.back().map_or((top, 0), |(depth, fd)| (fd.as_fd(), *depth));
            let (step, to) = next_step(&self.path, from);
            let directory = open(base, &step)?;
            if to == self.path.len() {
                return Ok(directory);
            }
            if self.open_ancestors.len() == MAX_OPEN_ANCESTORS {
                self.open_ancestors.pop_front();
            }
            self.open_ancestors.push_back((to, directory));
        }
    }

    fn read_directory(&mut self, directory: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT) => return,
                Err(_) => {
                    self.usage.is_lower_bound = true;
                    return;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let found = match stat(directory.as_fd(), name) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(_) => {
                    self.usage.is_lower_bound = true;
                    continue;
                }
            };
            let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
            if is_mount || device_of(&found) != self.device {
                continue;
            }
            if !self.count(&found) {
                self.directories.clear();
                return;
            }
            if is_directory(&found) {
                self.directories.push((self.path.len(), name.to_owned()));
            }
        }
    }
}

/// Returns the names from `from` on that are opened at once, joined, and the number of names in `path` that are
/// open then.
fn next_step(path: &[CString], from: usize) -> (CString, usize) {
    let (mut step, mut to) = (Vec::new(), from);
    for name in path.iter().skip(from).take(STEP_NAMES) {
        if step.len() + name.count_bytes() >= STEP_BYTES {
            break;
        }
        step.extend_from_slice(name.to_bytes());
        step.push(b'/');
        to += 1;
    }
    // A name contains no NUL.
    (CString::new(step).unwrap_or_default(), to)
}

#[cfg(test)]
mod tests {
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
}
