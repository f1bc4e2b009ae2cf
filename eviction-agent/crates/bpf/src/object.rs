//! The programs as they were built, part of the agent's own file.

use rustix::mm::{Advice, madvise};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/eviction-ebpf"));

/// Lets the programs be read, and their pages go again: the agent's memory is to be what it works with,
/// and they are read once, or again when a method was lost.
pub(super) fn with_object<T>(read: impl FnOnce(&[u8]) -> T) -> T {
    let done = read(OBJECT);
    let page = rustix::param::page_size();
    let start = OBJECT.as_ptr().addr().next_multiple_of(page);
    let end = (OBJECT.as_ptr().addr() + OBJECT.len()) & !(page - 1);
    if let Some(length) = end.checked_sub(start).filter(|length| *length > 0) {
        let first = OBJECT.as_ptr().map_addr(|_| start).cast_mut().cast();
        // SAFETY: whole pages inside of a constant. Its mapping of the file is private and never written,
        // so whoever reads them again finds the same content. Locked pages are refused, and stay.
        let _ = unsafe { madvise(first, length, Advice::LinuxDontNeed) };
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_same_when_they_are_read_again() {
        let copy = |object: &[u8]| object.to_vec();
        let first = with_object(copy);
        assert!(first.starts_with(b"\x7fELF"));
        assert_eq!(with_object(copy), first);
    }
}
