//! The slowdown of page faults and processes by the agent. Each measurement with the agent is between two
//! without it. The same without the agent in between gives the noise.

use ::tests::agent::Agent;
use ::tests::bench::row::{Goal, Row};
use ::tests::empty_program::{BpfStats, EmptyProgram};
use ::tests::node::{MIB, Node, PodSpec};
use ::tests::workload::Workload;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::programs::{self, Runs, runs};
use crate::testbed::Testbed;

/// The memory limit of the test's node.
const BOUND: u64 = 256 * MIB;
/// The agent's memory capacity where every threshold must be far.
const FAR: u64 = 64 * 1024 * MIB;
/// The agent's memory capacity, and its threshold, where the threshold must be near and must not be crossed.
const NEAR: u64 = 96 * MIB;
const THRESHOLD: u64 = 32 * MIB;
/// The pause after the agent's start, which is not measured.
const SETTLE: Duration = Duration::from_millis(400);

/// The tasks, and their repetitions in one go, which takes about 10 ms.
const TASKS: [(&str, &str, &str); 2] =
    [("page-fault loop", "fault", "6144"), ("fork+exec loop", "fork", "10")];

/// A value is the best of so many goes: disturbances only make a go slower.
const GOES: usize = 12;

/// The number of empty programs at the hook, since entering a single one costs less than the noise.
const ENTERED: usize = 40;

/// The distance of the node to its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Calm,
    Near,
}

impl NodeState {
    /// Returns the source that watches charges there, as the agent names it.
    fn source(self) -> &'static str {
        match self {
            Self::Calm => "charge",
            Self::Near => "charge near",
        }
    }
}

/// Measures pairs for each place and each of `backends`; without any, the agent chooses. With `stories`, prints
/// a story of each task as well.
pub(crate) fn run(testbed: &mut Testbed, pairs: usize, backends: &[String], stories: bool) -> Result<()> {
    let mut site = Site::new()?;
    let agent = site.agent(testbed, NodeState::Calm, None)?;
    let backend = agent.backend("charge");
    agent.stop()?;
    testbed.print_machine(backend)?;
    let chosen = std::iter::once(None).chain(backends.iter().map(|backend| Some(backend.as_str())));
    for backend in chosen {
        for state in [NodeState::Calm, NodeState::Near] {
            let case = match (state, backend) {
                (NodeState::Calm, None) => "calm".to_owned(),
                (NodeState::Near, None) => "near".to_owned(),
                (NodeState::Calm, Some(backend)) => format!("calm, {backend}"),
                (NodeState::Near, Some(backend)) => format!("near, {backend}"),
            };
            if testbed.is_selected(&case) {
                let (measurements, clock, watched_by) = site.pairs(testbed, pairs, &case, state, backend)?;
                for ((task, ..), measurements) in TASKS.iter().zip(measurements) {
                    let rows = rows_of(task, &case, state, watched_by.as_deref(), measurements);
                    if stories {
                        testbed.emit(&story_line(task, &case, watched_by.as_deref(), &rows));
                    }
                    testbed.add_rows(rows)?;
                }
                testbed.add_rows([Row::new(
                    format!("a program that does nothing, {case}"),
                    "by the clock",
                    "ns",
                    clock,
                )])?;
            }
        }
    }
    Ok(())
}

/// A node with one process for each task. The process measures itself.
#[derive(Debug)]
struct Site {
    // The processes end before their cgroups are removed.
    tasks: Vec<Workload>,
    node: Node,
}

impl Site {
    fn new() -> Result<Self> {
        let mut node = Node::new("bench", BOUND, 200)?;
        let mut tasks = Vec::new();
        for (name, task, count) in TASKS {
            let pod = node.add(PodSpec::new("bench", name.replace([' ', '+'], "-"), &["main"], 8))?;
            let group = node.pods[pod].first()?;
            let mut workload = Workload::run(group, ["measure", "--what", task, "--count", count])?;
            workload.wait_event("go")?;
            tasks.push(workload);
        }
        let mut site = Self { tasks, node };
        // The first measurement only warms up the tasks.
        site.measure()?;
        Ok(site)
    }

    fn agent(&self, testbed: &Testbed, state: NodeState, backend: Option<&str>) -> Result<Agent> {
        let threshold = format!("{}Mi", THRESHOLD / MIB);
        let kubelet = json!({"evictionHard": {"memory.available": threshold}});
        let mut options = testbed.options(&self.node, &kubelet)?;
        options.action = "none";
        options.memory_capacity = match state {
            NodeState::Calm => FAR,
            NodeState::Near => NEAR,
        };
        if let Some(backend) = backend {
            options.more.extend(["--backend", backend].map(str::to_owned));
        }
        let agent = Agent::start(&options, &testbed.interrupt)?;
        testbed.interrupt.sleep(SETTLE)?;
        Ok(agent)
    }

    /// Measures each task, nanoseconds.
    fn measure(&mut self) -> Result<[f64; TASKS.len()]> {
        let mut measurements = [f64::INFINITY; TASKS.len()];
        for _ in 0..GOES {
            for (task, measurement) in self.tasks.iter_mut().zip(&mut measurements) {
                task.go()?;
                *measurement = measurement.min(cpu_ns(task)?);
            }
        }
        Ok(measurements)
    }

    /// Measures each task with [`ENTERED`] empty programs at the charge hook, nanoseconds; `None` where that
    /// hook is not a tracepoint.
    fn measure_entering(&mut self) -> Result<Option<[f64; TASKS.len()]>> {
        let programs: Result<Vec<_>, _> = (0..ENTERED).map(|_| EmptyProgram::attach_to_charges()).collect();
        if programs.is_err() {
            return Ok(None);
        }
        self.measure().map(Some)
    }

    /// Measures what the kernel's clock adds to each run of a program, nanoseconds. The agent must not run
    /// meanwhile: after its programs at the same hook, the clock would be in the processor's caches.
    fn clock_ns(&mut self) -> Result<f64> {
        let _measured = measured()?;
        let [_fault, fork] = &mut self.tasks[..] else { anyhow::bail!("the tasks are others") };
        programs::clock_ns(|| {
            fork.go()?;
            cpu_ns(fork).map(|_| ())
        })
    }

    /// Returns the share of the agent's programs in each task's time. `clock_ns` is subtracted from each run
    /// for the kernel's clock.
    fn shares(&mut self, agent: &Agent, clock_ns: f64) -> Result<[Shares; TASKS.len()]> {
        let _measured = measured()?;
        let mut shares: [Shares; TASKS.len()] = Default::default();
        for (task, share) in self.tasks.iter_mut().zip(&mut shares) {
            let before = runs(agent.pid())?;
            let mut whole = 0.0;
            for _ in 0..GOES {
                task.go()?;
                whole += cpu_ns(task)?;
            }
            let programs = runs(agent.pid())?.since(&before);
            // The task's time includes the kernel's clock. Subtracting the runs removes it, except for the part
            // of the clock that is outside of the measured time.
            let without = whole - programs.sum().ns;
            let of = |runs: Runs| runs.without_clock(clock_ns) / without * 100.0;
            let each = programs.by_name().into_iter();
            *share = each
                .map(|(name, runs)| (name, [of(runs), runs.without_clock(clock_ns) / runs.count]))
                .collect();
        }
        Ok(shares)
    }

    /// Returns the measurements of each task, the time that the kernel's clock adds to each run of a program,
    /// nanoseconds, and the backend that watches charges.
    fn pairs(
        &mut self,
        testbed: &Testbed,
        pairs: usize,
        case: &str,
        state: NodeState,
        backend: Option<&str>,
    ) -> Result<([Measurements; TASKS.len()], Vec<f64>, Option<String>)> {
        let mut measurements: [Measurements; TASKS.len()] = Default::default();
        let (mut watched_by, mut clock) = (None, Vec::new());
        for pair in 0..pairs {
            testbed.interrupt.check()?;
            let clock_ns = self.clock_ns()?;
            clock.push(clock_ns);
            let before = self.measure()?;
            let mut agent = self.agent(testbed, state, backend)?;
            let with = self.measure()?;
            let of_programs = self.shares(&agent, clock_ns)?;
            let decisions = agent.count_decisions()?;
            anyhow::ensure!(decisions == 0, "the threshold was crossed: {decisions} decisions");
            watched_by = agent.backend(state.source());
            agent.stop()?;
            let after = self.measure()?;
            let again = self.measure()?;
            let last = self.measure()?;
            // The cost of entering does not depend on the place, and near a threshold another hook matters.
            let entered = if state == NodeState::Calm { self.measure_entering()? } else { None };
            for (task, measurements) in measurements.iter_mut().enumerate() {
                measurements.slowdowns.push(percent(with[task], before[task], after[task]));
                measurements.noise.push(percent(again[task], after[task], last[task]));
                // A program with runs shorter than the clock does not lower the sum.
                measurements.shares.push(of_programs[task].values().map(|[share, _]| share).sum());
                for (name, [share, ns]) in &of_programs[task] {
                    let [shares, runs] = measurements.programs.entry(name.clone()).or_default();
                    shares.push(*share);
                    runs.push(*ns);
                }
                if let Some(entered) = entered {
                    measurements
                        .entering
                        .push(percent(entered[task], again[task], last[task]) / ENTERED as f64);
                }
            }
            if (pair + 1).is_multiple_of(10) {
                testbed.progress(&format!("{case}: {} of {pairs} pairs", pair + 1));
            }
        }
        Ok((measurements, clock, watched_by))
    }
}

fn measured() -> Result<BpfStats> {
    BpfStats::enable().context("have the kernel measure programs")
}

/// Returns the goal at a place, percent. The hook that fires at each page fault has another goal than those
/// that fire at each batch of charges.
fn goal_percent(task: &str, state: NodeState, watched_by: Option<&str>) -> f64 {
    match state {
        NodeState::Calm if task == TASKS[0].0 => 0.3,
        NodeState::Calm => 0.7,
        NodeState::Near if watched_by.is_some_and(|backend| backend.starts_with("tp_btf")) => 12.0,
        NodeState::Near => 3.0,
    }
}

fn rows_of(
    task: &str,
    case: &str,
    state: NodeState,
    watched_by: Option<&str>,
    measurements: Measurements,
) -> Vec<Row> {
    let Measurements { slowdowns, noise, shares, programs, entering } = measurements;
    let most = goal_percent(task, state, watched_by);
    let row = Row::new(format!("{task}, {case}"), "slowdown", "%", slowdowns);
    let sums: Vec<f64> = shares.iter().zip(&entering).map(|(share, way)| share + way).collect();
    let shares = Row::new(format!("{task}, {case}"), "programs alone", "%", shares);
    let mut rows = vec![
        row.goal(Goal::Median(most)).with("backend", watched_by),
        Row::new(format!("{task}, {case}, A/A"), "slowdown", "%", noise),
        shares.goal(Goal::Median(most)).with("backend", watched_by),
    ];
    if !entering.is_empty() {
        rows.push(Row::new(format!("{task}, {case}"), "way into the charge hook", "%", entering));
        let sum = Row::new(format!("{task}, {case}"), "programs and the way in", "%", sums);
        rows.push(sum.goal(Goal::Median(most)).with("backend", watched_by));
    }
    for (program, [shares, runs]) in programs {
        let case = format!("{task}, {case}, {program}");
        rows.push(Row::new(case.clone(), "program alone", "%", shares));
        rows.push(Row::new(case, "a run of it", "ns", runs));
    }
    rows
}

/// Returns a story for the table of guests, with the medians of the rows.
fn story_line(task: &str, case: &str, watched_by: Option<&str>, rows: &[Row]) -> Value {
    let mut story = json!({"story": format!("overhead, {case}, {task}"), "ok": true, "backend": watched_by});
    for (row, name) in rows.iter().zip(["slowdown", "noise", "programs"]) {
        story["values"][name] = json!(row.percentile(50));
    }
    story
}

/// The measurements of a task, one for each pair, percent.
#[derive(Debug, Default)]
struct Measurements {
    slowdowns: Vec<f64>,
    noise: Vec<f64>,
    shares: Vec<f64>,
    /// By program: the share of its runs in percent, and the nanoseconds of one run.
    programs: BTreeMap<String, [Vec<f64>; 2]>,
    entering: Vec<f64>,
}

/// By program: its share in a task's time in percent, and the nanoseconds of one run.
type Shares = BTreeMap<String, [f64; 2]>;

/// Waits for the end of a go of a task, and returns its processor time in nanoseconds.
pub(crate) fn cpu_ns(task: &mut Workload) -> Result<f64> {
    let measured = task.wait_event("measured")?;
    measured["cpu_ns"].as_f64().context("a measurement has no cpu_ns")
}

/// Returns by how many percent a value is above the mean of those before and after it.
pub(crate) fn percent(with: f64, before: f64, after: f64) -> f64 {
    (with / ((before + after) / 2.0) - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn slowdown_is_relative_to_the_mean_of_before_and_after() {
        assert_eq!(percent(150.0, 80.0, 120.0), 50.0);
        assert_eq!(percent(50.0, 100.0, 100.0), -50.0);
    }
}
