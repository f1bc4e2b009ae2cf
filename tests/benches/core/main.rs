//! The bench of the decision core: syncs of nodes of three sizes, and those of the kubelet.
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
/// The number of pods, of measured syncs, and of the kubelet's syncs.
const SIZES: [(usize, usize, usize); 3] = [(110, 2000, 300), (1000, 1000, 60), (10_000, 300, 12)];

#[derive(Debug, Parser)]
#[command(about = "Measures the decision core")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
    /// The program of tests/oracle, to measure the kubelet's syncs as well
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
    /// The maximum number of allocations of one run; `None` for other programs.
    allocations: Option<u64>,
    /// The kubelet's median of the same case.
    kubelet: Option<f64>,
}

impl Measured {
    /// Compares it with the kubelet's median, if that was measured. The goal applies to the metric "pass", in which
    /// memory is used again, as in the agent. To free thousands of pages takes longer than to evaluate their content.
    fn compare(mut self, case: Case, kubelet: Option<f64>) -> Self {
        self.kubelet = kubelet;
        if let (Some(kubelet), "pass") = (kubelet, self.row.metric) {
            self.row = self.row.goal(kubelet::goal(case, kubelet));
        }
        self
    }

    /// Returns how many times faster it is than the kubelet.
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
    for (pods, syncs, theirs) in SIZES {
        eprintln!("measuring nodes of {pods} pods");
        let simulated = SimulatedNode::new(pods, SEED);
        let mut keep = |measured: Measured| -> Result<()> {
            emit(&measured.line())?;
            rows.push(measured);
            Ok(())
        };
        for case in Case::ALL {
            let theirs =
                kubelet.as_ref().map(|oracle| kubelet::measure_syncs(oracle, &simulated, case, theirs));
            let theirs = theirs.transpose()?;
            let median = theirs.as_ref().and_then(|row| row.percentile(50));
            for drop_as in [Drop::Recycled, Drop::Freed] {
                keep(
                    measure::sync(&simulated, case, Profile::Kubelet, drop_as, syncs)?.compare(case, median),
                )?;
            }
            if let Some(row) = theirs {
                keep(Measured { pods, row, allocations: None, kubelet: None })?;
            }
            for drop_as in [Drop::Recycled, Drop::Freed] {
                keep(measure::sync(&simulated, case, Profile::Enhanced, drop_as, syncs)?)?;
            }
        }
        for profile in [Profile::Kubelet, Profile::Enhanced] {
            keep(measure::report(&simulated, profile, syncs.min(100))?)?;
        }
        keep(measure::index(&simulated, syncs)?)?;
        keep(measure::decode(&simulated, syncs.min(200_000 / pods))?)?;
    }
    let text = table::render(&rows);
    if *json {
        write!(std::io::stderr(), "{text}")?;
    } else {
        write!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}
