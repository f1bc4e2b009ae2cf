//! Other programs for comparison: Debian's own binaries, with the libraries that they load.

use anyhow::Result;

use super::init::GuestFiles;
use super::kernels::Cache;

/// The folder of earlyoom on a guest's disk.
pub(super) const EARLYOOM: &str = "earlyoom";

/// The suite of both packages, so that they fit each other.
const SUITE: &str = "bookworm";

/// The packages, and the files of each that a guest needs.
const PACKAGES: [(&str, &[&str]); 2] = [
    ("earlyoom", &["usr/bin/earlyoom"]),
    ("libc6", &["lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"]),
];

/// Copies earlyoom, its libraries and the loader that starts it onto the disks of guests.
pub(super) fn add_earlyoom(guest_files: &GuestFiles, cache: &Cache) -> Result<()> {
    let mut files = Vec::new();
    for (package, paths) in PACKAGES {
        let folder = cache.folder(&format!("peers/{package}"))?;
        files.extend(cache.package_files(&format!("{package}/{SUITE}"), paths, &folder)?);
    }
    guest_files.add(EARLYOOM, &files)
}
