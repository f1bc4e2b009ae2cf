//! The program's own code in memory: what ran at the start goes, what must not wait for the disk comes.
//!
//! Much of the code runs at the start alone, and would be locked in memory with the rest. What decides and ends a
//! pod may run for the first time when the node is short of memory: the worst time to have the kernel read it
//! from the disk.

use std::sync::OnceLock;

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::mm::{Advice, madvise};

/// The code of the threads that decide and kill, once the program has said where it lies.
static HANDS: OnceLock<&[u8]> = OnceLock::new();

/// Takes note of it, once. Another program than the agent's own has none, and its code comes as it runs.
pub(crate) fn hands_lie_in(code: &'static [u8]) {
    let _ = HANDS.set(code);
}

/// Lets go of the code that ran so far. What is needed of it comes back from the page cache as it runs.
pub(super) fn let_go() {
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

/// Fetches the code of the hands by a touch of each page (MADV_POPULATE_READ would do it from Linux 5.14 on), and
/// says how many bytes there are.
pub(super) fn fetch() -> Option<usize> {
    let code = HANDS.get()?;
    // The last byte as well: the code need not begin with a page where pages are larger.
    for byte in code.iter().step_by(rustix::param::page_size()).chain(code.last()) {
        std::hint::black_box(*byte);
    }
    Some(code.len())
}
