//! `cargo xtask demo`: four short stories on real cgroups, told by `tests/src/bin/demo`.

use std::process::ExitCode;

use anyhow::Result;

use crate::build;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the verdicts as JSON lines on standard output, and the tale on standard error
    #[arg(long)]
    json: bool,
    /// Fail if a story was skipped, as on a machine that is known to tell them all
    #[arg(long)]
    deny_skips: bool,
    /// Tell only the stories of these names
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { json, deny_skips, stories } = args;
    let tools = setup::ensure(&[Need::Bpf])?;
    // Not optimised: a newcomer waits for the build much longer than for the reaction, and the
    // tests need the same one.
    let programs = build::programs(&["eviction-agent", "tests"], &tools)?;
    let mut demo = std::process::Command::new(programs.join("demo"));
    demo.arg("--agent").arg(programs.join("eviction-agent"));
    if *json {
        demo.arg("--json");
    }
    if *deny_skips {
        demo.arg("--deny-skips");
    }
    demo.arg("--").args(stories);
    Err(shell::become_program(&mut demo))
}
