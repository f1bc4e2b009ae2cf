//! The memory of the machine.

use anyhow::{Context as _, Result};
use procfs::{Current as _, Meminfo};

/// Returns the memory of the machine, bytes.
///
/// # Errors
/// If /proc cannot be read.
pub fn total() -> Result<u64> {
    Ok(read()?.mem_total)
}

/// Returns the memory that is available without swapping, bytes.
///
/// # Errors
/// If /proc cannot be read, or has no such value.
pub fn available() -> Result<u64> {
    read()?.mem_available.context("/proc/meminfo has no MemAvailable")
}

fn read() -> Result<Meminfo> {
    Meminfo::current().context("read /proc/meminfo")
}
