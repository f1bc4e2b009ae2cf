//! Benches on real cgroups: how late the agent decides and how far a process has grown by then, what the agent
//! costs while nothing happens, and how much it slows down other processes. Each is compared with existing
//! programs in the same run.
//!
//! `cargo xtask bench` builds the agent as it is shipped and runs this program.
#![forbid(unsafe_code)]

mod agent_watcher;
mod api;
mod case;
mod competitor;
mod competitor_namespace;
mod cost;
mod disk;
mod hog_node;
mod hogs;
mod idle;
mod kernel_kill;
mod load;
mod observer;
mod overhead;
mod pollers;
mod programs;
mod reaction;
mod runs;
mod table;
mod testbed;
mod top;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use tests::bench::row::{Goal, Row};
use tests::interrupt;
use tests::node::MIB;

use crate::case::{Case, Hog};
use crate::observer::Observer;
use crate::testbed::Testbed;

#[derive(Debug, Parser)]
#[command(about = "Measures the agent on real cgroups, beside what there is otherwise")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// The agent's file; default: beside this program
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// A folder that has the other programs as `/` would; default: `/`
    #[arg(long, value_name = "DIR")]
    competitors: Option<PathBuf>,
    /// Pass this argument to the agent as well; may be given more than once
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    agent_arg: Vec<String>,
    /// Only cases whose names contain this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Slowdown of page faults and of processes
    Overhead {
        /// Measurements with the agent, each between two without it
        #[arg(long, default_value_t = 30)]
        pairs: usize,
        /// Measure this backend as well; may be given more than once
        #[arg(long, value_name = "NAME")]
        backend: Vec<String>,
        /// Report each loop as a story as well, for the kernel matrix (with --json)
        #[arg(long)]
        stories: bool,
    },
    /// Time from a threshold crossing to the decision and to the death of the victim
    Reaction {
        /// Crossings of each case
        #[arg(long, default_value_t = 10)]
        runs: usize,
    },
    /// Growth beyond the threshold with kernel kill and without it
    KernelKill {
        /// Crossings of each case
        #[arg(long, default_value_t = 10)]
        runs: usize,
    },
    /// Programs of others that go on growing after SIGTERM, beside earlyoom
    Hogs {
        /// Runs of each stressor
        #[arg(long, default_value_t = 5)]
        runs: usize,
    },
    /// Cost of an idle node
    Idle {
        /// How long it is watched
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        seconds: u64,
        /// The agent alone
        #[arg(long)]
        alone: bool,
    },
    /// Crossing of a disk's threshold to the decision, and what watching disks costs
    Disk {
        /// Crossings of each case
        #[arg(long, default_value_t = 10)]
        runs: usize,
        /// Measurements of writes near a threshold, each between two without the agent
        #[arg(long, default_value_t = 12)]
        pairs: usize,
        /// How long the calm agent is watched
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        seconds: u64,
    },
    /// What a recorder and ten screens cost the agent
    Top {
        /// Crossings of each case
        #[arg(long, default_value_t = 50)]
        runs: usize,
        /// How long the calm agent is watched
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        seconds: u64,
    },
    /// Reaction, idle cost and size in short
    Skeleton {
        /// Crossings by fresh pages
        #[arg(long, default_value_t = 120)]
        crossings: usize,
        /// Crossings by each other kind of growth
        #[arg(long, default_value_t = 30)]
        runs: usize,
        /// How long the calm agent is watched
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        calm: u64,
    },
    /// Crossing to the eviction that a real API server grants, and cost in a cluster
    Api(api::Counts),
    /// One crossing in a namespace of its own; for this program itself
    #[command(hide = true)]
    Inside(competitor_namespace::Inside),
    /// One hog beside earlyoom in a namespace of its own; for this program itself
    #[command(hide = true)]
    BesideEarlyoom(hogs::BesideEarlyoom),
}

fn main() -> ExitCode {
    interrupt::exit("bench", run(&Args::parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let name = match &args.bench {
        Bench::Overhead { .. } => "overhead",
        Bench::Reaction { .. } => "reaction",
        Bench::KernelKill { .. } => "reflex",
        Bench::Idle { .. } => "idle",
        Bench::Disk { .. } => "disk",
        Bench::Top { .. } => "top",
        Bench::Skeleton { .. } => "skeleton",
        Bench::Api(_) => "api",
        Bench::Hogs { .. } => "hogs",
        Bench::Inside(inside) => return competitor_namespace::inside(inside),
        Bench::BesideEarlyoom(args) => return hogs::beside_earlyoom(args),
    };
    let mut testbed = Testbed::new(name, args)?;
    match &args.bench {
        Bench::Overhead { pairs, backend, stories } => {
            overhead::run(&mut testbed, *pairs, backend, *stories)?
        }
        Bench::Reaction { runs } => reaction::run(&mut testbed, *runs)?,
        Bench::KernelKill { runs } => kernel_kill::run(&mut testbed, *runs)?,
        Bench::Hogs { runs } => hogs::run(&mut testbed, *runs)?,
        Bench::Idle { seconds, alone } => {
            testbed.print_machine(None)?;
            let rows = idle::measure(&testbed, *seconds, !alone, Observer::None)?;
            testbed.add_rows(rows)?;
        }
        Bench::Disk { runs, pairs, seconds } => disk::run(&mut testbed, *runs, *pairs, *seconds)?,
        Bench::Top { runs, seconds } => top::run(&mut testbed, *runs, *seconds)?,
        Bench::Skeleton { crossings, runs, calm } => skeleton(&mut testbed, *crossings, *runs, *calm)?,
        Bench::Api(counts) => api::run(&mut testbed, counts)?,
        Bench::Inside(_) | Bench::BesideEarlyoom(_) => {}
    }
    testbed.print_table();
    Ok(())
}

fn skeleton(testbed: &mut Testbed, crossings: usize, runs: usize, calm: u64) -> Result<()> {
    reaction::print_machine(testbed)?;
    let cases = [
        Case::new(crossings),
        Case { pods: idle::MOST_PODS, ..Case::new(runs) },
        Case { hog: Hog::Refault, ..Case::new(runs) },
        Case { cache_full: true, ..Case::new(runs) },
    ];
    for case in cases {
        let rows = reaction::agent_rows(testbed, case)?;
        testbed.add_rows(rows)?;
    }
    let rows = idle::measure(testbed, calm, false, Observer::None)?;
    testbed.add_rows(rows)?;
    let size = size(&testbed.agent)?;
    testbed.add_rows([size])
}

fn size(agent: &Path) -> Result<Row> {
    let bytes = std::fs::metadata(agent).with_context(|| format!("read {}", agent.display()))?.len();
    Ok(Row::new("binary", "size", "MiB", vec![bytes as f64 / MIB as f64]).goal(Goal::Max(16.0)))
}
