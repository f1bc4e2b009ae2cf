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
mod tests;
