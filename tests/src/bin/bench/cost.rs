//! The cost of a running program.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tests::bench::row::Row;
use tests::clock;
use tests::node::MIB;

/// A running program that is sampled repeatedly.
#[derive(Debug)]
pub(crate) struct CostSampler {
    pid: u32,
    /// The number of voluntary context switches of each thread, including threads that have ended.
    sleeps: BTreeMap<u32, u64>,
    before: Sample,
    costs: Vec<Cost>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    /// The processor time of all threads, including those that have ended.
    cpu: Duration,
    sleeps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    rss_mib: f64,
    /// Percent of one core.
    cpu_percent: f64,
    wakeups_per_second: f64,
}

/// The span to which the number of wake-ups is scaled.
const SPAN_SECONDS: f64 = 120.0;

impl CostSampler {
    pub(crate) fn new(pid: u32) -> Result<Self> {
        let mut sleeps = BTreeMap::new();
        let before = Sample::of(pid, &mut sleeps)?;
        Ok(Self { pid, sleeps, before, costs: Vec::new() })
    }

    /// Adds the cost since the last sample.
    pub(crate) fn sample(&mut self) -> Result<()> {
        let now = Sample::of(self.pid, &mut self.sleeps)?;
        let seconds = now.at.duration_since(self.before.at).as_secs_f64();
        self.costs.push(Cost {
            rss_mib: rss(self.pid)? as f64 / MIB as f64,
            cpu_percent: now.cpu.saturating_sub(self.before.cpu).as_secs_f64() / seconds * 100.0,
            wakeups_per_second: now.sleeps.saturating_sub(self.before.sleeps) as f64 / seconds,
        });
        self.before = now;
        Ok(())
    }

    /// Returns the rows for memory, processor time and wake-ups.
    pub(crate) fn rows(&self, case: &str) -> [Row; 3] {
        let of = |value: fn(&Cost) -> f64| self.costs.iter().map(value).collect();
        [
            Row::new(case, "rss", "MiB", of(|cost| cost.rss_mib)),
            Row::new(case, "cpu", "% of a core", of(|cost| cost.cpu_percent)),
            Row::new(case, "wakeups", "in 120 s", of(|cost| cost.wakeups_per_second * SPAN_SECONDS)),
        ]
    }
}

impl Sample {
    fn of(pid: u32, sleeps: &mut BTreeMap<u32, u64>) -> Result<Self> {
        let tasks = format!("/proc/{pid}/task");
        for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
            let task = task.with_context(|| format!("list {tasks}"))?;
            // A thread may end between the list and the read.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let id = task.file_name().to_string_lossy().parse().context("the id of a thread")?;
            let count = number(&status, "voluntary_ctxt_switches:").context("status has no switches")?;
            sleeps.insert(id, count);
        }
        Ok(Self { at: Instant::now(), cpu: clock::cpu_time(pid)?, sleeps: sleeps.values().sum() })
    }
}

/// Returns the bytes of memory that a process occupies.
fn rss(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    Ok(number(&text, "Rss:").context("smaps_rollup has no Rss")? * 1024)
}

/// Returns the number after a key at the start of a line.
fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
}
