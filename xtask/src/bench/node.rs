//! The benches on real cgroups: `tests/src/bin/bench`, with the agent as it is shipped.

use std::process::{Command, ExitCode};

use anyhow::Result;

use super::commit;
use crate::build;
use crate::e2e::kubernetes;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of such a bench.
#[derive(clap::Args)]
pub(super) struct Node {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// Measure this agent instead of one that is built for it
    #[arg(long, value_name = "FILE")]
    agent: Option<std::path::PathBuf>,
    /// Tell the agent this as well; may be given more than once
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    agent_arg: Vec<String>,
    /// Only cases whose names contain this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Arguments of the bench: `-- --help` lists them
    #[arg(last = true)]
    more: Vec<String>,
}

/// Runs the bench of that name, which starts these programs as well.
pub(super) fn run(name: &str, args: &Node, others: &[Need]) -> Result<ExitCode> {
    let Node { json, agent, agent_arg, only, more } = args;
    let tools = setup::ensure(&[&[Need::Bpf, Need::Musl][..], others].concat())?;
    let kubernetes = (name == "api").then(kubernetes::ensure).transpose()?;
    let agent = match agent {
        Some(agent) => agent.clone(),
        None => build::agent(true)?,
    };
    let programs = build::programs(&["tests"], &tools)?;
    let mut bench = Command::new(programs.join("bench"));
    bench.arg("--agent").arg(agent).args(["--commit", &commit()]);
    if let Some(competitors) = &tools.competitors {
        bench.arg("--competitors").arg(competitors);
    }
    bench.envs(kubernetes.map(|folder| (kubernetes::FOLDER, folder)));
    for argument in agent_arg {
        bench.args(["--agent-arg", argument]);
    }
    for part in only {
        bench.args(["--only", part]);
    }
    if *json {
        bench.arg("--json");
    }
    bench.arg(name).args(more);
    Err(shell::become_program(&mut bench))
}
