//! Fills a file system with bytes or inodes.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tests::stamps::Writer;

use crate::cli::How;
use crate::pace::Pace;
use crate::print_event;

/// Direct IO needs blocks of memory that begin at a multiple of this, on any disk.
const ALIGNMENT: usize = 4096;

/// Writes a file of so many bytes in writes of `block` bytes, or until the disk is full, and returns it open.
pub(crate) fn write(path: &Path, size: u64, rate: u64, how: How, block: u64, stamps: Writer) -> Result<File> {
    let flags = if how == How::Direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = File::options();
    options.read(true).write(true).create_new(true).custom_flags(flags.bits().cast_signed());
    let mut file = options.open(path).with_context(|| format!("create {}", path.display()))?;
    let available = |file: &File| fstatvfs(file).map(|stat| stat.f_bavail * stat.f_frsize);
    let before = available(&file).context("read the file system")?;
    let bytes = usize::try_from(block).context("block")?;
    let (memory, pace) = (vec![0x5a; bytes + ALIGNMENT], Pace::new(rate));
    let data = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..bytes];
    let mut written = 0;
    while written < size {
        pace.wait(written);
        let result = match how {
            How::Buffered | How::Direct => file.write_all(data),
            How::Mmap => write_mapped(&file, written, data),
        };
        match result {
            Ok(()) => written += block,
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => return Err(error).context("write"),
        }
        let now = available(&file).context("read the file system")?;
        stamps.stamp(before.saturating_sub(now));
    }
    stamps.done();
    print_event("written", &[("bytes", written)]);
    Ok(file)
}

/// Appends a block to a file of this length by page faults. On a full disk they end the process (SIGBUS).
fn write_mapped(file: &File, length: u64, block: &[u8]) -> std::io::Result<()> {
    file.set_len(length + block.len() as u64)?;
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping of a block that exists in the file, written within its length and then unmapped.
    unsafe {
        let map = mmap(std::ptr::null_mut(), block.len(), access, flags, file, length)?;
        map.cast::<u8>().copy_from_nonoverlapping(block.as_ptr(), block.len());
        munmap(map, block.len())?;
    }
    Ok(())
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
    let before = free().context("read the file system")?;
    let pace = Pace::new(rate);
    let mut created = 0;
    while created < max {
        pace.wait(created);
        match File::create_new(directory.join(created.to_string())) {
            Ok(_) => created += 1,
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => return Err(error).context("create a file"),
        }
        stamps.stamp(before.saturating_sub(free().context("read the file system")?));
    }
    stamps.done();
    print_event("created", &[("files", created)]);
    Ok(())
}
