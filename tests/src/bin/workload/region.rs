//! Memory and files that take up memory when they are touched.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: u64 = 4096;
const HUGE: usize = 2 << 20;

pub(crate) trait Region: Send {
    /// Touches each page from `offset` on, `len` bytes.
    fn touch(&mut self, offset: u64, len: u64) -> Result<()>;
}

/// The kind of pages of an anonymous region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    Small,
    Huge,
}

/// Anonymous memory, unmapped when dropped.
pub(crate) struct Anonymous {
    base: *mut u8,
    len: usize,
    map: *mut std::ffi::c_void,
    map_len: usize,
}

// SAFETY: the pointers are to a mapping that this value alone owns.
unsafe impl Send for Anonymous {}

impl Anonymous {
    pub(crate) fn map(len: u64, pages: Pages) -> Result<Self> {
        let len = usize::try_from(len).context("size of a region")?;
        let map_len = len.next_multiple_of(HUGE) + HUGE;
        // SAFETY: a new private mapping, owned by the value below.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .with_context(|| format!("map {len} bytes"))?;
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: the advice applies to the new mapping only and keeps it mapped.
        unsafe { madvise(map, map_len, advice) }.context("advise about huge pages")?;
        let base = map.cast::<u8>();
        let aligned = base.wrapping_add(base.align_offset(HUGE));
        Ok(Self { base: aligned, len, map, map_len })
    }

    /// Frees the pages and keeps the page tables.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        // SAFETY: the mapping is private to this value, nothing refers into it.
        unsafe { madvise(self.map, self.map_len, Advice::LinuxDontNeed) }.context("MADV_DONTNEED")
    }
}

impl Region for Anonymous {
    fn touch(&mut self, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).min(self.len as u64);
        for at in (offset..end).step_by(PAGE as usize) {
            // SAFETY: `at` is below `len`, and the mapping has `len` bytes from `base` on.
            unsafe { self.base.add(at as usize).write_volatile(1) };
        }
        Ok(())
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: made by map(), not unmapped before, nothing refers into it.
        let _ = unsafe { munmap(self.map, self.map_len) };
    }
}

/// A file without a name that is written.
pub(crate) struct WrittenFile {
    file: File,
    chunk: Vec<u8>,
}

impl WrittenFile {
    pub(crate) fn create(dir: &Path, chunk: u64) -> Result<Self> {
        Ok(Self {
            file: create_unnamed_file(dir)?,
            chunk: vec![1; usize::try_from(chunk).context("chunk size")?],
        })
    }

    pub(crate) fn give_back(&mut self) -> Result<()> {
        self.file.set_len(0).context("truncate a file")
    }
}

impl Region for WrittenFile {
    fn touch(&mut self, offset: u64, len: u64) -> Result<()> {
        let chunk = &self.chunk[..self.chunk.len().min(len as usize)];
        self.file.write_all_at(chunk, offset).context("write to a file")
    }
}

/// A sparse file without a name that is read: its holes become clean pages in the page cache.
pub(crate) struct SparseFile {
    file: File,
    chunk: Vec<u8>,
}

impl SparseFile {
    pub(crate) fn create(dir: &Path, len: u64, chunk: u64) -> Result<Self> {
        let file = create_unnamed_file(dir)?;
        file.set_len(len).context("size a sparse file")?;
        Ok(Self { file, chunk: vec![0; usize::try_from(chunk).context("chunk size")?] })
    }
}

impl Region for SparseFile {
    fn touch(&mut self, offset: u64, len: u64) -> Result<()> {
        let length = self.chunk.len().min(len as usize);
        let chunk = &mut self.chunk[..length];
        self.file.read_exact_at(chunk, offset).context("read a file")
    }
}

fn create_unnamed_file(dir: &Path) -> Result<File> {
    tempfile::tempfile_in(dir).with_context(|| format!("create a file in {}", dir.display()))
}
