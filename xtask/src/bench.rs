//! `cargo xtask bench`: the benches of the agent as it is shipped.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::build;
use crate::e2e::kubernetes;
use crate::setup::{self, Need, Tools};
use crate::shell;

/// Arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// Passes of the decision core beside those of the kubelet
    Core {
        /// Without the kubelet's passes, which take Go and a minute: no ratio and no goal then
        #[arg(long)]
        alone: bool,
    },
    /// OOM kills at every level: each one reported, with the right owner of the limit
    Oom {
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
    },
    /// Every hook at once from many cgroups: what is lost, and when a crossing is seen
    Storm {
        /// How many cgroups there are
        #[arg(long, default_value_t = 500)]
        cgroups: usize,
        /// How long it lasts
        #[arg(long, value_name = "SECONDS", default_value_t = 20)]
        seconds: u64,
    },
    /// Size and cost of a day of recordings
    Recorder {
        /// How much is recorded; sizes are those of 24 hours
        #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=240))]
        hours: u64,
    },
    /// Slowdown of page faults and processes by the agent, far from every line and near one
    Overhead(Node),
    /// Crossing to decision and to death, beside polls, notifications, earlyoom and nohang
    Reaction(Node),
    /// Growth beyond the threshold with kernel kill and without
    #[command(name = "kernel-kill", alias = "reflex")]
    KernelKill(Node),
    /// Growth of stress-ng beyond the threshold and after SIGTERM, beside earlyoom
    Hogs(Node),
    /// What a recorder and ten screens cost the agent
    Top(Node),
    /// Cost while nothing happens, beside earlyoom, nohang and node-exporter
    Idle(Node),
    /// Crossing of a disk's threshold to the decision, beside polls, and what watching disks costs
    Disk(Node),
    /// Reaction, idle cost and size in short
    Skeleton(Node),
    /// Crossing to the eviction that a real API server grants, and cost in a cluster
    Api(Node),
}

/// Arguments of a bench on real cgroups.
#[derive(clap::Args)]
struct Node {
    /// Measure this agent instead of one that is built for it
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
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

pub(crate) fn run(Args { json, bench }: &Args) -> Result<ExitCode> {
    let common = common_arguments(*json);
    let mut command = match bench {
        Bench::Core { alone } => core(*alone, &common)?,
        Bench::Oom { kills, pods, groups, disable_backend } => {
            let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
            let mut bench = program("bench_oom", build::agent(true)?, &tools, &common)?;
            for (option, count) in [("--kills", kills), ("--pods", pods), ("--groups", groups)] {
                bench.args([option, &count.to_string()]);
            }
            bench.args(disable_backend.iter().flat_map(|backend| ["--disable-backend", backend]));
            bench
        }
        Bench::Storm { cgroups, seconds } => {
            let tools = setup::ensure(&[Need::Bpf])?;
            let mut bench = bench_target("storm", &[], &tools, &common);
            bench.args(["--cgroups", &cgroups.to_string(), "--seconds", &seconds.to_string()]);
            bench
        }
        Bench::Recorder { hours } => {
            let tools = setup::ensure(&[Need::Bpf])?;
            let mut bench = bench_target("recorder", &[], &tools, &common);
            bench.args(["--hours", &hours.to_string()]).arg("--agent").arg(build::agent(true)?);
            bench
        }
        Bench::Overhead(args) => node("overhead", args, &[], &common)?,
        Bench::Reaction(args) => node("reaction", args, &[Need::Competitors], &common)?,
        Bench::KernelKill(args) => node("kernel-kill", args, &[Need::Competitors], &common)?,
        Bench::Hogs(args) => node("hogs", args, &[Need::Competitors, Need::Stressors], &common)?,
        Bench::Idle(args) => node("idle", args, &[Need::Competitors], &common)?,
        Bench::Top(args) => node("top", args, &[], &common)?,
        Bench::Disk(args) => node("disk", args, &[], &common)?,
        Bench::Skeleton(args) => node("skeleton", args, &[], &common)?,
        Bench::Api(args) => node("api", args, &[], &common)?,
    };
    Err(shell::become_program(&mut command))
}

/// Returns the arguments of every bench, among them the commit that is measured; empty outside a clone.
fn common_arguments(json: bool) -> Vec<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(shell::root());
    let commit = shell::read(&mut git).map(|text| text.trim().to_owned()).unwrap_or_default();
    let json = json.then(|| "--json".to_owned());
    ["--commit".to_owned(), commit].into_iter().chain(json).collect()
}

/// Returns the command of a bench of `tests/benches`, which cargo builds with these options.
fn bench_target(name: &str, options: &[&str], tools: &Tools, common: &[String]) -> Command {
    let mut bench = shell::cargo();
    bench.args(["bench", "--package", "tests", "--bench", name]).args(options).arg("--").args(common);
    tools.apply(&mut bench);
    bench
}

/// Returns the command of a bench of `tests/src/bin`, which measures this agent.
fn program(name: &str, agent: PathBuf, tools: &Tools, common: &[String]) -> Result<Command> {
    let mut bench = Command::new(build::programs(&["tests"], tools)?.join(name));
    bench.arg("--agent").arg(agent).args(common);
    Ok(bench)
}

/// Returns the command of `tests/benches/core`, built as the agent is shipped, beside the kubelet's eviction manager,
/// which `tests/oracle` builds from the published module. Go rebuilds only what has changed.
fn core(alone: bool, common: &[String]) -> Result<Command> {
    let tools = setup::ensure(&[Need::Bpf, Need::Musl])?;
    let mut bench = bench_target("core", &["--target", build::TARGET], &tools, common);
    if !alone {
        let folder = shell::root().join("tests/oracle");
        eprintln!("kubelet: building tests/oracle, which takes some minutes the first time");
        shell::run(&mut Command::new(folder.join("build.sh"))).context(
            "build the kubelet's eviction manager (it takes Go and a module proxy; --alone leaves it out)",
        )?;
        bench.arg("--kubelet").arg(folder.join("oracle"));
    }
    Ok(bench)
}

/// Returns the command of the bench of that name on real cgroups, which starts these programs as well.
fn node(name: &str, args: &Node, others: &[Need], common: &[String]) -> Result<Command> {
    let Node { agent, agent_arg, only, more } = args;
    let tools = setup::ensure(&[&[Need::Bpf, Need::Musl][..], others].concat())?;
    let kubernetes = (name == "api").then(kubernetes::ensure).transpose()?;
    let agent = agent.clone().map_or_else(|| build::agent(true), Ok)?;
    let mut bench = program("bench", agent, &tools, common)?;
    if let Some(competitors) = &tools.competitors {
        bench.arg("--competitors").arg(competitors);
    }
    bench.envs(kubernetes.map(|folder| (kubernetes::FOLDER, folder)));
    bench.args(agent_arg.iter().flat_map(|argument| ["--agent-arg", argument]));
    bench.args(only.iter().flat_map(|part| ["--only", part]));
    bench.arg(name).args(more);
    Ok(bench)
}
