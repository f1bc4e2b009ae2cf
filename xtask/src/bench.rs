//! `cargo xtask bench`: what is measured, on the agent as it is shipped.

mod core;
mod oom;
mod storm;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::build;
use crate::setup::{self, Need};
use crate::shell;

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Passes of the decision core beside those of the kubelet
    Core(core::Core),
    /// OOM kills at every level: each one told, with the right owner of the limit
    Oom(oom::Oom),
    /// Every hook at once from many cgroups: what is lost, and when a crossing is seen
    Storm(storm::Storm),
    /// Kernel stamp to decision, growth beyond the threshold, cost when calm, size
    Skeleton(Skeleton),
}

#[derive(clap::Args)]
struct Skeleton {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// Crossings by fresh pages
    #[arg(long, default_value_t = 120)]
    crossings: usize,
    /// Crossings by each other kind of growth
    #[arg(long, default_value_t = 30)]
    runs: usize,
    /// How long the calm agent is watched
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    calm: u64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.bench {
        Bench::Core(args) => core::run(args),
        Bench::Oom(args) => oom::run(args),
        Bench::Storm(args) => storm::run(args),
        Bench::Skeleton(args) => skeleton(args),
    }
}

fn skeleton(args: &Skeleton) -> Result<ExitCode> {
    let Skeleton { json, crossings, runs, calm } = args;
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let agent = build::agent(true)?;
    let programs = build::programs(&["tests"], &tools)?;
    let mut bench = Command::new(programs.join("bench_skeleton"));
    bench.arg("--agent").arg(agent);
    bench.args(["--commit", &commit()]);
    bench.args(["--crossings", &crossings.to_string()]);
    bench.args(["--runs", &runs.to_string(), "--calm", &calm.to_string()]);
    if *json {
        bench.arg("--json");
    }
    Err(shell::become_program(&mut bench))
}

/// What is measured; empty outside a clone.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(shell::root());
    shell::read(&mut git).map(|text| text.trim().to_owned()).unwrap_or_default()
}
