//! `cargo xtask bench glance`: `tests/benches/glance`, built as the agent is shipped.

use std::process::ExitCode;

use anyhow::Result;

use super::commit;
use crate::build::TARGET;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Glance {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// Refreshes of each kind
    #[arg(long, default_value_t = 300)]
    refreshes: usize,
}

pub(super) fn run(Glance { json, refreshes }: &Glance) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", "glance", "--target", TARGET]);
    bench.args(["--", "--commit", &commit(), "--refreshes", &refreshes.to_string()]);
    if *json {
        bench.arg("--json");
    }
    tools.apply(&mut bench);
    Err(shell::become_program(&mut bench))
}
