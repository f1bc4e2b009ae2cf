//! Which machine it was.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The line that precedes all rows.
///
/// # Errors
/// If /proc cannot be read.
pub fn line(bench: &str, rung: Option<&str>, commit: &str) -> Result<Value> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let memory = read("/proc/meminfo")?;
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
        .context("/proc/meminfo has no MemTotal")?
        .parse()
        .context("MemTotal of /proc/meminfo")?;
    let cpus = std::thread::available_parallelism().context("count processors")?;
    let mut line = json!({
        "bench": bench,
        "machine": {"kernel": kernel.trim(), "cpus": cpus, "mem_bytes": kib * 1024, "load1": load1()?},
        "commit": commit,
    });
    if let Some(rung) = rung {
        line["rung"] = json!(rung);
    }
    Ok(line)
}

/// How many tasks have wanted a processor in the last minute, on average.
///
/// # Errors
/// If /proc cannot be read.
pub fn load1() -> Result<f64> {
    let load = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    load.split(' ').next().unwrap_or_default().parse().context("/proc/loadavg")
}
