//! The time that the agent's BPF programs take, by the kernel's own clock: a share of some 0.1 % would be lost in the
//! noise of any loop. The way into them (a tracepoint's, a trampoline's) is not in it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use tests::fdinfo::FdInfo;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The kernel measures programs while this lives. That makes each run of one some dozens of nanoseconds longer, so
/// nothing else may be timed meanwhile.
#[derive(Debug)]
pub(crate) struct Measured {
    before: String,
}

impl Measured {
    pub(crate) fn begin() -> Result<Self> {
        let before = fs::read_to_string(SWITCH).with_context(|| format!("read {SWITCH}"))?;
        fs::write(SWITCH, "1").with_context(|| format!("write {SWITCH}"))?;
        Ok(Self { before })
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, self.before.trim()) {
            eprintln!("write {SWITCH}: {error}");
        }
    }
}

/// Nanoseconds that all programs of this process have run so far while they were [`Measured`] (`bpf_prog_show_fdinfo`
/// in kernel/bpf/syscall.c).
pub(crate) fn run_time_ns(pid: u32) -> Result<f64> {
    let all = FdInfo::all(pid).with_context(|| format!("list the descriptors of process {pid}"))?;
    // By id, since a process may have several descriptors of a program; a link's tells no time.
    let program = |info: &FdInfo| Some((info.field("prog_id")?, info.field("run_time_ns")?));
    let programs: BTreeMap<u64, u64> = all.iter().filter_map(program).collect();
    anyhow::ensure!(!programs.is_empty(), "process {pid} has no BPF program");
    Ok(programs.values().sum::<u64>() as f64)
}
