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
    /// Memory in MiB, the share of one core in percent, and wake-ups per [`SPAN_SECONDS`].
    costs: [Vec<f64>; 3],
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    /// The processor time of all threads, including those that have ended.
    cpu: Duration,
    sleeps: u64,
}

/// The span to which the number of wake-ups is scaled.
const SPAN_SECONDS: f64 = 120.0;

impl CostSampler {
    pub(crate) fn new(pid: u32) -> Result<Self> {
        let mut sleeps = BTreeMap::new();
        let before = Sample::of(pid, &mut sleeps)?;
        Ok(Self { pid, sleeps, before, costs: Default::default() })
    }

    /// Adds the cost since the last sample.
    pub(crate) fn sample(&mut self) -> Result<()> {
        let now = Sample::of(self.pid, &mut self.sleeps)?;
        let seconds = now.at.duration_since(self.before.at).as_secs_f64();
        let cpu = now.cpu.saturating_sub(self.before.cpu).as_secs_f64() / seconds * 100.0;
        let wakeups = now.sleeps.saturating_sub(self.before.sleeps) as f64 / seconds * SPAN_SECONDS;
        let costs = [rss(self.pid)? as f64 / MIB as f64, cpu, wakeups];
        self.costs.iter_mut().zip(costs).for_each(|(values, value)| values.push(value));
        self.before = now;
        Ok(())
    }

    /// Returns the rows for memory, processor time and wake-ups.
    pub(crate) fn rows(&self, case: &str) -> [Row; 3] {
        let [rss, cpu, wakeups] = self.costs.clone();
        [
            Row::new(case, "rss", "MiB", rss),
            Row::new(case, "cpu", "% of a core", cpu),
            Row::new(case, "wakeups", "in 120 s", wakeups),
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
