//! Other programs for comparison: Debian's own binaries, with the libraries that they load.

use std::path::Path;

use anyhow::Result;

use super::init::GuestFiles;
use super::kernels::Cache;

/// The folder of earlyoom on a guest's disk.
pub(super) const EARLYOOM: &str = "earlyoom";

/// The suite of both packages, so that they fit each other.
const SUITE: &str = "bookworm";

/// The files that a guest needs, each with its package.
const FILES: [(&str, &str); 3] = [
    ("earlyoom", "usr/bin/earlyoom"),
    ("libc6", "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
    ("libc6", "lib/x86_64-linux-gnu/libc.so.6"),
];

/// Copies earlyoom, its libraries and the loader that starts it onto the disks of guests.
pub(super) fn add_earlyoom(guest_files: &GuestFiles, cache: &Cache) -> Result<()> {
    let mut files = Vec::new();
    for (package, path) in FILES {
        let name = Path::new(path).file_name().unwrap_or_default();
        let cached = cache.folder(&format!("peers/{package}"))?.join(name);
        files.push(cache.package_file(&format!("{package}/{SUITE}"), &[path], cached)?);
    }
    guest_files.add(EARLYOOM, &files)
}
