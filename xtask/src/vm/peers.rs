//! Other programs to be compared with: Debian's own binaries, with the libraries that they load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::init::Stock;
use super::kernels::Cache;
use crate::shell;

/// The folder of it on a guest's disk.
pub(super) const EARLYOOM: &str = "earlyoom";

/// The suite that both are taken from, so that they fit each other.
const SUITE: &str = "bookworm";

/// The package, and the files of it that a guest needs.
const PACKAGES: [(&str, &[&str]); 2] = [
    ("earlyoom", &["usr/bin/earlyoom"]),
    ("libc6", &["lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"]),
];

/// Puts earlyoom, its libraries and the loader that starts it onto the disks of guests.
pub(super) fn add_earlyoom(stock: &Stock, cache: &Cache) -> Result<()> {
    let mut files = Vec::new();
    for (package, wanted) in PACKAGES {
        files.extend(take(cache, package, wanted)?);
    }
    stock.add(EARLYOOM, &files)
}

/// The files of a package, from the cache or fetched.
fn take(cache: &Cache, package: &str, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let kept = cache.folder("peers")?.join(package);
    let names = wanted.iter().filter_map(|file| Path::new(file).file_name());
    let files: Vec<_> = names.map(|name| kept.join(name)).collect();
    if files.iter().all(|file| file.exists()) {
        return Ok(files);
    }
    let tree = cache.extract(&format!("{package}/{SUITE}"))?;
    fs::create_dir_all(&kept).with_context(|| format!("make {}", kept.display()))?;
    for (file, kept) in wanted.iter().zip(&files) {
        // Whole or not at all; the libraries may be links.
        let half = kept.with_extension("half");
        shell::read(Command::new("cp").arg("--dereference").arg(tree.path().join(file)).arg(&half))?;
        fs::rename(&half, kept).with_context(|| format!("rename to {}", kept.display()))?;
    }
    Ok(files)
}
