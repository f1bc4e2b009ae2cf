//! Other programs for comparison: Debian's own binaries, with the libraries that they load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::init::GuestFiles;
use super::kernels::Cache;
use crate::shell;

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
    for (package, wanted) in PACKAGES {
        files.extend(package_files(cache, package, wanted)?);
    }
    guest_files.add(EARLYOOM, &files)
}

/// Returns the files of a package, from the cache or fetched.
fn package_files(cache: &Cache, package: &str, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let folder = cache.folder(&format!("peers/{package}"))?;
    let names = wanted.iter().filter_map(|file| Path::new(file).file_name());
    let files: Vec<_> = names.map(|name| folder.join(name)).collect();
    if files.iter().all(|file| file.exists()) {
        return Ok(files);
    }
    let tree = cache.extract(&format!("{package}/{SUITE}"))?;
    for (file, cached) in wanted.iter().zip(&files) {
        // A file gets its name when it is complete. The libraries may be links.
        let partial = cached.with_extension("partial");
        shell::read(Command::new("cp").arg("--dereference").arg(tree.path().join(file)).arg(&partial))?;
        fs::rename(&partial, cached).with_context(|| format!("rename to {}", cached.display()))?;
    }
    Ok(files)
}
