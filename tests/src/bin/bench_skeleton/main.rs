//! The bench of the walking skeleton: how late the agent decides, how far a process has grown by
//! then, and what the agent costs while nothing happens.
//!
//! `cargo xtask bench skeleton` builds the agent as it is shipped and runs this.
#![forbid(unsafe_code)]

mod idle;
mod reaction;
mod table;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::Value;
use tests::bench::machine;
use tests::bench::row::{Goal, Row};
use tests::interrupt::{Interrupt, Interrupted};
use tests::{agent, workload};

use crate::reaction::{Case, FEW, Hog};

#[derive(Debug, Parser)]
#[command(about = "Measures the agent's reaction and what it costs when calm")]
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

/// As many as the kubelet allows on a node by default.
const MOST_PODS: usize = 110;

/// What every measurement needs.
#[derive(Debug)]
struct Bench<'a> {
    agent: &'a Path,
    workload: &'a Path,
    interrupt: &'a Interrupt,
    json: bool,
}

impl Bench<'_> {
    /// A line for machines.
    fn emit(&self, line: &Value) {
        if self.json {
            // Who no longer listens is no reason to stop: the groups must go.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }

    /// Progress, for people.
    fn tell(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("interrupted; everything is cleared away");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: bench skeleton: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let Args { json, agent, commit, crossings, runs, calm } = args;
    let interrupt = Interrupt::install()?;
    let agent = agent.clone().map_or_else(agent::binary, Ok)?;
    let workload = workload::binary()?;
    let bench = Bench { agent: &agent, workload: &workload, interrupt: &interrupt, json: *json };

    let rung = reaction::rung(&bench)?;
    bench.emit(&machine::line("skeleton", Some(&rung), commit)?);
    let mut rows = Vec::new();
    let mut keep = |bench: &Bench<'_>, new: Vec<Row>| {
        for row in new {
            bench.emit(&row.json("skeleton"));
            rows.push(row);
        }
    };
    let cases = [
        Case { hog: Hog::Fresh, pods: FEW, n: *crossings },
        Case { hog: Hog::Fresh, pods: MOST_PODS, n: *runs },
        Case { hog: Hog::Refault, pods: FEW, n: *runs },
        Case { hog: Hog::PageCache, pods: FEW, n: *runs },
    ];
    for case in cases {
        keep(&bench, reaction::measure(&bench, case)?);
    }
    keep(&bench, idle::measure(&bench, *calm)?);
    keep(&bench, vec![size(&agent)?]);

    let text = table::render(&rung, &rows);
    let _ = if *json { write!(std::io::stderr(), "{text}") } else { write!(std::io::stdout(), "{text}") };
    Ok(())
}

fn size(agent: &Path) -> Result<Row> {
    let bytes = std::fs::metadata(agent).with_context(|| format!("read {}", agent.display()))?.len();
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(Row::new("binary", "size", "MiB", vec![mib]).goal(Goal::Max(12.0)))
}
