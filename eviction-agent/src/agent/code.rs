//! The program's own code in memory: what ran at the start goes, what must not wait for the disk comes.
//!
//! Much of the code runs at the start alone, and would be locked in memory with the rest. What decides and ends a
//! pod may run for the first time when the node is short of memory: the worst time to have the kernel read it
//! from the disk.

use std::ops::Range;
use std::sync::OnceLock;

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::mm::{Advice, madvise};

/// Addresses from and to.
static HANDS: OnceLock<Range<usize>> = OnceLock::new();

/// Takes note of where the linker has put the code of the hands (`hands.ld`), once. A program that was linked
/// without that fetches its code as it runs.
pub fn hands_lie_in(code: Range<*const u8>) {
    let _ = HANDS.set(code.start.expose_provenance()..code.end.expose_provenance());
}

/// Lets go of the code that ran so far, and fetches that of the hands. What else is needed comes back from the
/// page cache as it runs. Says how many bytes were fetched.
pub(super) fn exchange() -> usize {
    let_go();
    HANDS.get().map_or(0, fetch)
}

fn let_go() {
    let maps = match Process::myself().and_then(|myself| myself.maps()) {
        Ok(maps) => maps,
        Err(error) => return tracing::debug!(%error, "code of the start stays in memory: /proc/self/maps"),
    };
    let is_code = |perms: MMPermissions| {
        perms.contains(MMPermissions::READ | MMPermissions::EXECUTE) && !perms.contains(MMPermissions::WRITE)
    };
    for map in maps.iter().filter(|map| is_code(map.perms) && matches!(map.pathname, MMapPath::Path(_))) {
        let (Ok(from), Ok(to)) = (usize::try_from(map.address.0), usize::try_from(map.address.1)) else {
            continue;
        };
        let start = std::ptr::with_exposed_provenance_mut(from);
        // SAFETY: the kernel says that a file is mapped there, as code that nobody may write: what is dropped
        // is read from that file again. Nothing of it was ever written: the program is position
        // independent, and its relocations are in data.
        if let Err(error) = unsafe { madvise(start, to - from, Advice::LinuxDontNeed) } {
            tracing::debug!(%error, "code of the start stays in memory");
        }
    }
}

/// Touches each page: MADV_POPULATE_READ would do it from Linux 5.14 on.
fn fetch(code: &Range<usize>) -> usize {
    // The last byte as well, if it does not begin with a page where pages are larger.
    for at in code.clone().step_by(rustix::param::page_size()).chain(code.clone().last()) {
        let byte: *const u8 = std::ptr::with_exposed_provenance(at);
        // SAFETY: it is code of this program, which may be read (`.text.hands` between its two symbols).
        unsafe { byte.read_volatile() };
    }
    code.len()
}
