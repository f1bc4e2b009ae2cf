//! The agent beside a real API server: from the crossing to the eviction that is granted, what the
//! server itself takes, and what the agent costs while nothing happens.

mod calm;
mod crossing;
mod measurements;
mod population;
mod way;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use tests::bench::row::{Goal, Row};
use tests::cluster::{Binaries, Cluster, Options};

use crate::testbed::Testbed;
use measurements::Measurements;
use population::PodPopulation;
use way::Way;

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

/// At most so many runs for each that counts.
const TRIES: usize = 3;

/// From the crossing to the answer, half of them, and 99 of 100.
const GRANTED_US: (f64, f64) = (5_000.0, 15_000.0);
/// The same where another answer is awaited first.
const TAINTED_US: (f64, f64) = (10_000.0, 30_000.0);

/// From the crossing to the last process's death, 99 of 100.
const DEAD_US: f64 = 20_000.0;

/// Beyond what the server itself takes, half of them.
const BEYOND_FLOOR_US: f64 = 3_000.0;

pub(crate) fn run(testbed: &mut Testbed, counts: &Counts) -> Result<()> {
    let Counts { crossings, calm } = *counts;
    ensure!(crossings > 0, "no crossing was asked for");
    let binaries = Binaries::find().map_err(anyhow::Error::msg)?;
    let mut cluster = Cluster::start(&binaries, &Options::default(), &testbed.interrupt)?;
    let backend = {
        let population = PodPopulation::new(testbed, &mut cluster, Way::Evict)?;
        population.backend("charge").context("the agent names no source of charges")?
    };
    testbed.begin(Some(backend))?;
    for way in Way::ALL {
        if testbed.wants(&way.name()) {
            let rows = cross(testbed, &mut cluster, way, crossings)?;
            testbed.keep(rows)?;
        }
    }
    for case in calm::Case::ALL {
        if testbed.wants(&case.name()) {
            let rows = calm::measure(testbed, &mut cluster, case, calm)?;
            testbed.keep(rows)?;
        }
    }
    Ok(())
}

/// Lets hogs cross the line, one after the other, and a new agent watch every few of them.
fn cross(testbed: &Testbed, cluster: &mut Cluster, way: Way, n: usize) -> Result<Vec<Row>> {
    let mut measurements = Measurements::new(way);
    while measurements.good() < n && measurements.number() < n * TRIES {
        let mut population = PodPopulation::new(testbed, cluster, way)?;
        for pod in 0..population::HOGS {
            if measurements.good() < n {
                let which = || format!("{}, run {}", way.name(), measurements.number() + 1);
                let run = population.cross(pod).with_context(which)?;
                measurements.add(run)?;
            }
        }
        population.end()?;
        testbed.progress(&measurements.progress(n));
    }
    Ok(measurements.rows().into_iter().map(|row| goal(row, way, n)).collect())
}

/// What is to be reached (the project's own goals, not a standard).
fn goal(row: Row, way: Way, n: usize) -> Row {
    let n = n.min(100);
    match row.metric {
        measurements::TO_GRANTED if !way.kills() => {
            let (p50, p99) = if way.taints() { TAINTED_US } else { GRANTED_US };
            row.goal(Goal::Stamp { n, p50, p99 })
        }
        measurements::BEYOND_FLOOR if !way.kills() => row.goal(Goal::Median(BEYOND_FLOOR_US)),
        measurements::TO_DEATH if way.is_moderate() => {
            row.goal(Goal::Stamp { n, p50: DEAD_US, p99: DEAD_US })
        }
        _ => row,
    }
}
