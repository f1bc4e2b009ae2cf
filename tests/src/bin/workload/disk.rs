//! Fills a file system with bytes or inodes.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use tests::stamps::{STEP, Writer};

use crate::pace::Pace;
use crate::print_event;

/// Writes a file of so many bytes, or until the disk is full, and returns it open.
pub(crate) fn write(path: &Path, size: u64, rate: u64, stamps: Writer) -> Result<File> {
    let mut file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
    let available = |file: &File| fstatvfs(file).map(|stat| stat.f_bavail * stat.f_frsize);
    let before = available(&file).context("look at the file system")?;
    let (block, pace) = (vec![0x5a; usize::try_from(STEP).context("block")?], Pace::new(rate));
    let mut written = 0;
    while written < size {
        pace.wait(written);
        match file.write_all(&block) {
            Ok(()) => written += STEP,
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => return Err(error).context("write"),
        }
        let now = available(&file).context("look at the file system")?;
        stamps.stamp(before.saturating_sub(now));
    }
    stamps.done();
    print_event("written", &[("bytes", written)]);
    Ok(file)
}

/// Allocates a file of this size and returns it open.
pub(crate) fn allocate(path: &Path, size: u64) -> Result<File> {
    let file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
    fallocate(&file, FallocateFlags::empty(), 0, size).context("allocate")?;
    print_event("allocated", &[("bytes", size)]);
    Ok(file)
}

/// Creates so many files, or until no inode is left.
pub(crate) fn create(directory: &Path, max: u64, rate: u64, stamps: Writer) -> Result<()> {
    let folder = File::open(directory).with_context(|| format!("open {}", directory.display()))?;
    let free = || fstatvfs(&folder).map(|stat| stat.f_ffree);
    let before = free().context("look at the file system")?;
    let pace = Pace::new(rate);
    let mut created = 0;
    while created < max {
        pace.wait(created);
        match File::create_new(directory.join(created.to_string())) {
            Ok(_) => created += 1,
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => return Err(error).context("create a file"),
        }
        stamps.stamp(before.saturating_sub(free().context("look at the file system")?));
    }
    stamps.done();
    print_event("created", &[("files", created)]);
    Ok(())
}
