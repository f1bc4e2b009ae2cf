//! The bench of the decision core: passes over nodes of three sizes beside those of the kubelet.
//!
//! `cargo xtask bench core` runs it, built as the agent is shipped. Every row of ours is of one thread.
#![forbid(unsafe_code)]

mod kubelet;
mod measure;
mod node;
mod table;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use eviction_core::policy::preferences::Profile;
use serde_json::{Value, json};
use tests::allocations::CountingAllocator;
use tests::bench::machine;
use tests::bench::row::Row;
use tests::interrupt;
use tests::simulated_node::{Case, SimulatedNode};

use crate::measure::Drop;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The seed of all simulated nodes.
const SEED: u64 = 20_260_105;
/// How many pods there are, how many passes are measured, and how many of the kubelet's.
const SIZES: [(usize, usize, usize); 3] = [(110, 2000, 300), (1000, 1000, 60), (10_000, 300, 12)];

#[derive(Debug, Parser)]
#[command(about = "Measures the decision core")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// The program of tests/oracle, to measure the kubelet's passes beside ours
    #[arg(long, value_name = "FILE")]
    kubelet: Option<PathBuf>,
    /// What is measured, for the machine line
    #[arg(long, value_name = "COMMIT", default_value = "")]
    commit: String,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A row of a node of so many pods.
#[derive(Debug)]
struct Measured {
    pods: usize,
    row: Row,
    /// The most that one run made; unknown of other programs.
    allocations: Option<u64>,
    /// The kubelet's median of the same.
    kubelet: Option<f64>,
}

impl Measured {
    /// Held against the kubelet's median, if that was measured. The goal is for the way that the agent goes: giving
    /// a thousand pages back to the system takes longer than the pass over what they hold, and is the system's time.
    fn against(mut self, case: Case, kubelet: Option<f64>) -> Self {
        self.kubelet = kubelet;
        if let (Some(kubelet), "pass") = (kubelet, self.row.metric) {
            self.row = self.row.goal(kubelet::goal(case, kubelet));
        }
        self
    }

    /// How many times faster than the kubelet.
    fn ratio(&self) -> Option<f64> {
        Some(self.kubelet? / self.row.percentile(50)?)
    }

    fn line(&self) -> Value {
        let mut line = self.row.json("core");
        line["pods"] = json!(self.pods);
        line["allocations"] = json!(self.allocations);
        if let Some(ratio) = self.ratio() {
            line["ratio"] = json!((ratio * 10.0).round() / 10.0);
        }
        line
    }
}

fn main() -> ExitCode {
    interrupt::exit("bench core", run(&Args::parse()).map(|()| true))
}

fn run(Args { json, kubelet, commit, bench: _ }: &Args) -> Result<()> {
    let emit = |line: &Value| match json {
        true => writeln!(std::io::stdout(), "{line}"),
        false => Ok(()),
    };
    emit(&machine::line("core", None, commit)?)?;
    let mut rows = Vec::new();
    for (pods, passes, theirs) in SIZES {
        eprintln!("measuring nodes of {pods} pods");
        let simulated = SimulatedNode::new(pods, SEED);
        let mut keep = |measured: Measured| -> Result<()> {
            emit(&measured.line())?;
            rows.push(measured);
            Ok(())
        };
        for case in Case::ALL {
            let theirs = kubelet.as_ref().map(|oracle| kubelet::passes(oracle, &simulated, case, theirs));
            let theirs = theirs.transpose()?;
            let median = theirs.as_ref().and_then(|row| row.percentile(50));
            for drop_as in [Drop::Recycled, Drop::Freed] {
                keep(
                    measure::pass(&simulated, case, Profile::Kubelet, drop_as, passes)?.against(case, median),
                )?;
            }
            if let Some(row) = theirs {
                keep(Measured { pods, row, allocations: None, kubelet: None })?;
            }
            for drop_as in [Drop::Recycled, Drop::Freed] {
                keep(measure::pass(&simulated, case, Profile::Enhanced, drop_as, passes)?)?;
            }
        }
        for profile in [Profile::Kubelet, Profile::Enhanced] {
            keep(measure::report(&simulated, profile, passes.min(100))?)?;
        }
        keep(measure::index(&simulated, passes)?)?;
        keep(measure::decode(&simulated, passes.min(200_000 / pods))?)?;
    }
    let text = table::render(&rows);
    if *json {
        write!(std::io::stderr(), "{text}")?;
    } else {
        write!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}
