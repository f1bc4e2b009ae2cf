//! `cargo xtask bench oom`: OOM kills at every level, and what the agent reports about them.

use std::process::{Command, ExitCode};

use anyhow::Result;

use super::commit;
use crate::build;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Oom {
    /// Print JSON lines on standard output, and words on standard error
    #[arg(long)]
    json: bool,
    /// Kills at limits of containers and pods
    #[arg(long, default_value_t = 1000)]
    kills: usize,
    /// Pods of two containers each, in which they are
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// Kills of whole groups, where the machine has that
    #[arg(long, default_value_t = 50)]
    groups: usize,
    /// Backends that the agent must not use
    #[arg(long, value_name = "BACKEND")]
    disable_backend: Vec<String>,
}

pub(super) fn run(Oom { json, kills, pods, groups, disable_backend }: &Oom) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let agent = build::agent(true)?;
    let programs = build::programs(&["tests"], &tools)?;
    let mut bench = Command::new(programs.join("bench_oom"));
    bench.arg("--agent").arg(agent).args(["--commit", &commit()]);
    for (option, count) in [("--kills", kills), ("--pods", pods), ("--groups", groups)] {
        bench.args([option, &count.to_string()]);
    }
    for backend in disable_backend {
        bench.args(["--disable-backend", backend]);
    }
    if *json {
        bench.arg("--json");
    }
    Err(shell::become_program(&mut bench))
}
