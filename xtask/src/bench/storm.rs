//! `cargo xtask bench storm`: `tests/benches/storm`, built for this machine.

use std::process::ExitCode;

use anyhow::Result;

use super::commit;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Storm {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// How many cgroups there are
    #[arg(long, default_value_t = 500)]
    cgroups: usize,
    /// How long it lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    seconds: u64,
}

pub(super) fn run(Storm { json, cgroups, seconds }: &Storm) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf])?;
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", "storm", "--", "--commit", &commit()]);
    bench.args(["--cgroups", &cgroups.to_string(), "--seconds", &seconds.to_string()]);
    if *json {
        bench.arg("--json");
    }
    tools.apply(&mut bench);
    Err(shell::become_program(&mut bench))
}
