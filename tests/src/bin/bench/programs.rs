//! The time that the agent's BPF programs take, by the kernel's own clock: a share of some 0.1 % would be lost in the
//! noise of any loop. The way into them (a tracepoint's, a trampoline's) is not in it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

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

    /// Nanoseconds that all programs of this process have run so far while they were measured.
    #[expect(clippy::unused_self, reason = "without it nothing is measured")]
    pub(crate) fn run_time_ns(&self, pid: u32) -> Result<f64> {
        let folder = format!("/proc/{pid}/fdinfo");
        let mut programs = BTreeMap::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
            // Closed meanwhile.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            programs.extend(program(&text));
        }
        anyhow::ensure!(!programs.is_empty(), "process {pid} has no BPF program");
        Ok(programs.values().sum::<u64>() as f64)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

/// The id and the time of a program, if the descriptor is one of a program (`bpf_prog_show_fdinfo` in
/// kernel/bpf/syscall.c).
fn program(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| *found == name)?.1.trim().parse().ok()
    };
    Some((field("prog_id")?, field("run_time_ns")?))
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn programs_are_told_from_links_and_files() {
        let text = "pos:\t0\nflags:\t02\nprog_type:\t26\nprog_tag:\t83bf12\nprog_id:\t417\nrun_time_ns:\t12345\nrun_cnt:\t9\n";
        assert_eq!(program(text), Some((417, 12345)));
        assert_eq!(program("link_type:\ttracing\nlink_id:\t7\nprog_id:\t417\n"), None);
        assert_eq!(program("pos:\t0\n"), None);
    }
}
