//! The machine on which a bench ran.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::meminfo;

/// Returns the JSON line that precedes all rows.
///
/// # Errors
/// If /proc cannot be read.
pub fn line(bench: &str, backend: Option<&str>, commit: &str) -> Result<Value> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let memory = meminfo::total()?;
    let cpus = std::thread::available_parallelism().context("count processors")?;
    let mut line = json!({
        "bench": bench,
        "machine": {"kernel": kernel.trim(), "cpus": cpus, "mem_bytes": memory, "load1": load1()?},
        "commit": commit,
    });
    if let Some(backend) = backend {
        line["backend"] = json!(backend);
    }
    Ok(line)
}

/// Returns the load average of the last minute: the mean number of tasks that wanted a processor.
///
/// # Errors
/// If /proc cannot be read.
pub fn load1() -> Result<f64> {
    let load = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    load.split(' ').next().unwrap_or_default().parse().context("/proc/loadavg")
}
