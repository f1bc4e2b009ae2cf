//! `cargo xtask bench recorder`: `tests/benches/recorder.rs`, built for this machine, with the agent as it is
//! shipped.

use std::process::ExitCode;

use anyhow::Result;

use super::commit;
use crate::build;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Recorder {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// How much is recorded; sizes are those of 24 hours
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=240))]
    hours: u64,
}

pub(super) fn run(Recorder { json, hours }: &Recorder) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf])?;
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", "recorder", "--", "--commit", &commit()]);
    bench.args(["--hours", &hours.to_string()]).arg("--agent").arg(build::agent(true)?);
    if *json {
        bench.arg("--json");
    }
    tools.apply(&mut bench);
    Err(shell::become_program(&mut bench))
}
