//! `cargo xtask demo`: short stories on real cgroups and, with `--cluster`, with a real API server,
//! run by `tests/src/bin/demo`.

use std::process::ExitCode;

use anyhow::Result;

use crate::build;
use crate::e2e::kubernetes;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the results as JSON lines on standard output, and the text on standard error
    #[arg(long)]
    json: bool,
    /// Fail if a story was skipped, as on a machine that is known to run them all
    #[arg(long)]
    deny_skips: bool,
    /// Tell the story with a real API server instead (its programs are built once, which takes long)
    #[arg(long, conflicts_with = "stories")]
    cluster: bool,
    /// Tell only the stories of these names
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Args { json, deny_skips, cluster, stories } = args;
    let tools = setup::ensure(&[Need::Bpf])?;
    let kubernetes = cluster.then(kubernetes::ensure).transpose()?;
    // Not optimised: for a new user the build takes much longer than the reaction, and the tests need the same
    // build.
    let programs = build::programs(&["eviction-agent", "tests"], &tools)?;
    let mut demo = std::process::Command::new(programs.join("demo"));
    demo.arg("--agent").arg(programs.join("eviction-agent"));
    for (option, is_given) in [("--json", json), ("--deny-skips", deny_skips), ("--cluster", cluster)] {
        demo.args(is_given.then_some(option));
    }
    demo.envs(kubernetes.map(|folder| (kubernetes::FOLDER, folder)));
    demo.arg("--").args(stories);
    Err(shell::become_program(&mut demo))
}
