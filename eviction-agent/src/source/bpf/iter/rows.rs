//! The rows that the programs write, read where they lie.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;

use aya::maps::MapData;
use eviction_common::Usage;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The map of rows, in this process' memory as far as there are rows: all that is mapped counts as its
/// memory, and the map has room for many more cgroups. Only the two programs write it, while this process
/// reads from the iterator or has the second one run.
#[derive(Debug)]
pub(super) struct Rows {
    map: MapData,
    len: usize,
    start: NonNull<Usage>,
    mapped: usize,
}

// SAFETY: it owns its mapping, which any thread may read.
unsafe impl Send for Rows {}

impl Rows {
    pub(super) fn of(map: MapData) -> io::Result<Self> {
        let len = map.info().map_err(io::Error::other)?.max_entries() as usize;
        let (start, mapped) = map_rows(&map, 1, len)?;
        Ok(Self { map, len, start, mapped })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sees to it that so many can be read, or all.
    pub(super) fn reach(&mut self, rows: usize) -> io::Result<()> {
        if rows.min(self.len) <= self.mapped {
            return Ok(());
        }
        let (start, mapped) = map_rows(&self.map, rows.next_power_of_two(), self.len)?;
        unmap_rows(self.start, self.mapped);
        (self.start, self.mapped) = (start, mapped);
        Ok(())
    }

    pub(super) fn get(&self, index: usize) -> Option<Usage> {
        // SAFETY: inside the mapping, and any bits are a `Usage`. Volatile, since the kernel writes it
        // between two reads.
        (index < self.mapped).then(|| unsafe { self.start.add(index).read_volatile() })
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        unmap_rows(self.start, self.mapped);
    }
}

/// Maps at least so many of the map's rows, or all, and says how many.
fn map_rows(map: &MapData, rows: usize, len: usize) -> io::Result<(NonNull<Usage>, usize)> {
    let size = size_of::<Usage>();
    let bytes = (rows.min(len) * size).next_multiple_of(rustix::param::page_size());
    // SAFETY: a new mapping, of no memory that anybody has; the kernel checks its length.
    let start =
        unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, map.fd().as_fd(), 0)? };
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok((start, (bytes / size).min(len)))
}

fn unmap_rows(start: NonNull<Usage>, mapped: usize) {
    // SAFETY: it is the mapping of a `Rows`, who gives it up; nothing borrows from it.
    let unmapped = unsafe { munmap(start.as_ptr().cast::<c_void>(), mapped * size_of::<Usage>()) };
    debug_assert!(unmapped.is_ok(), "the mapping was ours");
}

#[cfg(test)]
mod tests {
    use ::tests::cgroup::Subtree;
    use ::tests::mounts::Hierarchy;

    use crate::source::bpf::load::{LoadOptions, load};

    #[test]
    fn rows_are_mapped_as_far_as_there_are_any() {
        let skipped = |why: String| println!("SKIPPED rows_are_mapped_as_far_as_there_are_any: {why}");
        let tree = match Subtree::new("rows") {
            Ok(tree) => tree,
            Err(error) => return skipped(format!("{error:#}")),
        };
        let options = LoadOptions { usages_of: tree.root().dir(Hierarchy::Memory), ..LoadOptions::default() };
        let usages = load(&options).map_err(|refused| refused.to_string());
        let mut usages = match usages.and_then(|loaded| loaded.usages.ok_or("no iterator".to_owned())) {
            Ok(usages) => usages,
            Err(why) => return skipped(why),
        };
        let page = usages.rows.mapped;
        assert!(page < usages.rows.len(), "a page holds {page} of {}", usages.rows.len());
        let mut seen = Vec::new();
        let mut made = 1;
        for more in [page, page] {
            for group in made..made + more {
                tree.group(format!("group-{group}")).unwrap();
            }
            made += more;
            for _ in 0..2 {
                usages.read(&mut seen).unwrap();
                let ids: std::collections::BTreeSet<u64> = seen.iter().map(|row| row.id).collect();
                assert_eq!((seen.len(), ids.len()), (made, made));
            }
            assert!((made + 1..usages.rows.len()).contains(&usages.rows.mapped), "{}", usages.rows.mapped);
        }
    }
}
