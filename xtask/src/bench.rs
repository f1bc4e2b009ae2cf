//! `cargo xtask bench`: the benches of the agent as it is shipped.

mod core;
mod node;
mod oom;
mod recorder;
mod storm;

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::setup::Need;
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
    /// OOM kills at every level: each one reported, with the right owner of the limit
    Oom(oom::Oom),
    /// Every hook at once from many cgroups: what is lost, and when a crossing is seen
    Storm(storm::Storm),
    /// Size and cost of a day of recordings
    Recorder(recorder::Recorder),
    /// Slowdown of page faults and processes by the agent, far from every line and near one
    Overhead(node::Node),
    /// Crossing to decision and to death, beside polls, notifications, earlyoom and nohang
    Reaction(node::Node),
    /// Growth beyond the threshold with kernel kill and without
    #[command(name = "kernel-kill", alias = "reflex")]
    KernelKill(node::Node),
    /// Growth of stress-ng beyond the threshold and after SIGTERM, beside earlyoom
    Hogs(node::Node),
    /// What a recorder and ten screens cost the agent
    Top(node::Node),
    /// Cost while nothing happens, beside earlyoom, nohang and node-exporter
    Idle(node::Node),
    /// Crossing of a disk's threshold to the decision, beside polls, and what watching disks costs
    Disk(node::Node),
    /// Reaction, idle cost and size in short
    Skeleton(node::Node),
    /// Crossing to the eviction that a real API server grants, and cost in a cluster
    Api(node::Node),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.bench {
        Bench::Core(args) => core::run(args),
        Bench::Oom(args) => oom::run(args),
        Bench::Storm(args) => storm::run(args),
        Bench::Recorder(args) => recorder::run(args),
        Bench::Overhead(args) => node::run("overhead", args, &[]),
        Bench::Reaction(args) => node::run("reaction", args, &[Need::Competitors]),
        Bench::KernelKill(args) => node::run("kernel-kill", args, &[Need::Competitors]),
        Bench::Hogs(args) => node::run("hogs", args, &[Need::Competitors, Need::Stressors]),
        Bench::Idle(args) => node::run("idle", args, &[Need::Competitors]),
        Bench::Top(args) => node::run("top", args, &[]),
        Bench::Disk(args) => node::run("disk", args, &[]),
        Bench::Skeleton(args) => node::run("skeleton", args, &[]),
        Bench::Api(args) => node::run("api", args, &[]),
    }
}

/// Returns the commit that is measured; empty outside a clone.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(shell::root());
    shell::read(&mut git).map(|text| text.trim().to_owned()).unwrap_or_default()
}
