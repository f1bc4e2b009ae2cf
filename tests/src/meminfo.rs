//! What the machine says of its memory.

use anyhow::{Context as _, Result};
use procfs::{Current as _, Meminfo};

/// All memory of the machine, bytes.
///
/// # Errors
/// If /proc cannot be read.
pub fn total() -> Result<u64> {
    Ok(read()?.mem_total)
}

/// What can be had without swapping, bytes.
///
/// # Errors
/// If /proc cannot be read, or does not say.
pub fn available() -> Result<u64> {
    read()?.mem_available.context("/proc/meminfo has no MemAvailable")
}

fn read() -> Result<Meminfo> {
    Meminfo::current().context("read /proc/meminfo")
}
