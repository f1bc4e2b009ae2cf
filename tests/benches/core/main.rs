//! The bench of the decision core: passes over nodes of three sizes beside those of the kubelet.
//!
//! `cargo xtask bench core` runs it, built as the agent is shipped. Every row is of one thread.
#![forbid(unsafe_code)]

mod baseline;
mod measure;
mod node;
mod table;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use eviction_agent::core::preferences::Profile;
use serde_json::Value;
use tests::allocations::Counting;
use tests::bench::machine;
use tests::bench::row::Row;
use tests::interrupt;
use tests::world::{Case, World};

use crate::measure::Drop;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The seed of all worlds.
const SEED: u64 = 20_260_105;
/// How many pods there are, and how many passes are measured.
const SIZES: [(usize, usize); 3] = [(110, 2000), (1000, 1000), (10_000, 300)];

#[derive(Debug, Parser)]
#[command(about = "Measures the decision core")]
struct Args {
    /// Print JSON lines on standard output, and the table on standard error
    #[arg(long)]
    json: bool,
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
    allocations: u64,
    baseline: Option<f64>,
}

fn main() -> ExitCode {
    interrupt::exit("bench core", run(&Args::parse()).map(|()| true))
}

fn run(Args { json, commit, bench: _ }: &Args) -> Result<()> {
    let emit = |line: &Value| match json {
        true => writeln!(std::io::stdout(), "{line}"),
        false => Ok(()),
    };
    emit(&machine::line("core", None, commit)?)?;
    let mut rows = Vec::new();
    for (pods, passes) in SIZES {
        eprintln!("measuring nodes of {pods} pods");
        let world = World::new(pods, SEED);
        let mut keep = |measured: Measured| -> Result<()> {
            for line in measured.lines() {
                emit(&line)?;
            }
            rows.push(measured);
            Ok(())
        };
        for profile in [Profile::Kubelet, Profile::Enhanced] {
            for case in Case::ALL {
                for drop_as in [Drop::Recycled, Drop::Freed] {
                    keep(measure::pass(&world, case, profile, drop_as, passes)?)?;
                }
            }
            keep(measure::report(&world, profile, passes.min(100))?)?;
        }
        keep(measure::index(&world, passes)?)?;
        keep(measure::decode(&world, passes.min(200_000 / pods))?)?;
    }
    let text = table::render(&rows);
    if *json {
        write!(std::io::stderr(), "{text}")?;
    } else {
        write!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}
