//! The agent with a real API server: from the crossing to the granted eviction, the time that the server itself
//! takes, and the agent's cost while nothing happens.

mod calm;
mod crossing;
mod eviction_mode;
mod measurements;
mod population;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use tests::bench::row::{Goal, Row};
use tests::cluster::{Binaries, Cluster, Options};

use crate::runs::TRIES;
use crate::testbed::Testbed;
use eviction_mode::EvictionMode;
use measurements::Measurements;
use population::PodPopulation;

/// How often, and how long.
#[derive(Debug, Args)]
pub(crate) struct Counts {
    /// Crossings of each case
    #[arg(long, default_value_t = 200)]
    crossings: usize,
    /// How long the calm agent is watched, with each number of pods
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    calm: u64,
}

/// The goals from the crossing to the 201 response: median and 99th percentile.
const GRANTED_US: (f64, f64) = (5_000.0, 15_000.0);
/// The same goals where the response to the taint is awaited first.
const TAINTED_US: (f64, f64) = (10_000.0, 30_000.0);

/// The goal from the crossing to the death of the last process: 99th percentile.
const DEAD_US: f64 = 20_000.0;

/// The goal beyond the time that the server itself takes: median.
const BEYOND_FLOOR_US: f64 = 3_000.0;

pub(crate) fn run(testbed: &mut Testbed, counts: &Counts) -> Result<()> {
    let Counts { crossings, calm } = *counts;
    ensure!(crossings > 0, "no crossing was asked for");
    let binaries = Binaries::find().map_err(anyhow::Error::msg)?;
    let mut cluster = Cluster::start(&binaries, &Options::default(), &testbed.interrupt)?;
    let backend = {
        let population = PodPopulation::new(testbed, &mut cluster, EvictionMode::Evict)?;
        population.agent.backend("charge").context("the agent names no source of charges")?
    };
    testbed.print_machine(Some(backend))?;
    for mode in EvictionMode::ALL {
        if testbed.is_selected(&mode.name()) {
            let rows = cross(testbed, &mut cluster, mode, crossings)?;
            testbed.add_rows(rows)?;
        }
    }
    for case in calm::Case::ALL {
        if testbed.is_selected(&case.name()) {
            let rows = calm::measure(testbed, &mut cluster, case, calm)?;
            testbed.add_rows(rows)?;
        }
    }
    Ok(())
}

/// Runs crossings one after the other, with a new agent for every few of them.
fn cross(testbed: &Testbed, cluster: &mut Cluster, mode: EvictionMode, n: usize) -> Result<Vec<Row>> {
    let mut measurements = Measurements::new(mode);
    while measurements.good() < n && measurements.total() < n * TRIES {
        let mut population = PodPopulation::new(testbed, cluster, mode)?;
        for pod in 0..population::HOGS {
            if measurements.good() < n {
                let which = || format!("{}, run {}", mode.name(), measurements.total() + 1);
                let run = population.cross(pod).with_context(which)?;
                measurements.add(run)?;
            }
        }
        population.end()?;
        testbed.progress(&measurements.progress(n));
    }
    Ok(measurements.rows().into_iter().map(|row| goal(row, mode, n)).collect())
}

/// Adds the goal to a row (the project's own goals, not a standard).
fn goal(row: Row, mode: EvictionMode, n: usize) -> Row {
    let n = n.min(100);
    match row.metric {
        measurements::TO_GRANTED if !mode.kills() => {
            let (p50, p99) = if mode.taints() { TAINTED_US } else { GRANTED_US };
            row.goal(Goal::Percentiles { n, p50, p99 })
        }
        measurements::BEYOND_FLOOR if !mode.kills() => row.goal(Goal::Median(BEYOND_FLOOR_US)),
        measurements::TO_DEATH if mode.is_moderate() => {
            row.goal(Goal::Percentiles { n, p50: DEAD_US, p99: DEAD_US })
        }
        _ => row,
    }
}
