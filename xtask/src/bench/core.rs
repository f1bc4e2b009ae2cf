//! `cargo xtask bench core`: `tests/benches/core`, built as the agent is shipped.

use std::process::ExitCode;

use anyhow::Result;

use super::commit;
use crate::build::TARGET;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the bench.
#[derive(clap::Args)]
pub(super) struct Core {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
}

pub(super) fn run(Core { json }: &Core) -> Result<ExitCode> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", "core", "--target", TARGET]);
    bench.args(["--", "--commit", &commit()]);
    if *json {
        bench.arg("--json");
    }
    tools.apply(&mut bench);
    Err(shell::become_program(&mut bench))
}
