//! How much slower page faults and processes are for the agent being there: a measurement with it
//! between two without it, again and again, and the same with nothing in between as the noise.

use ::tests::agent::Agent;
use ::tests::bench::row::{Goal, Row};
use ::tests::empty_program::{EmptyProgram, Measured};
use ::tests::node::{MIB, Node, PodSpec};
use ::tests::workload::Workload;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::programs::{self, Runs, runs};
use crate::testbed::Testbed;

/// A bound for what runs here.
const BOUND: u64 = 256 * MIB;
/// The agent gets so much where every threshold is to be far.
const FAR: u64 = 64 * 1024 * MIB;
/// And of so much, with this threshold, where the line is to be near and not to be crossed.
const NEAR: u64 = 96 * MIB;
const THRESHOLD: u64 = 32 * MIB;
/// What is left of the agent's start is not measured.
const SETTLE: Duration = Duration::from_millis(400);

/// What is repeated, and how often in one go: some 10 ms.
const TASKS: [(&str, &str, &str); 2] =
    [("page-fault loop", "fault", "6144"), ("fork+exec loop", "fork", "10")];

/// A figure is the best of so many goes: what disturbs them only ever makes them slower.
const GOES: usize = 12;

/// What is entered costs less than the noise, and so many at once more.
const ENTERED: usize = 40;

/// Where the node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Calm,
    Near,
}

impl Place {
    /// What watches charges there, as the agent calls it.
    fn source(self) -> &'static str {
        match self {
            Self::Calm => "charge",
            Self::Near => "charge near",
        }
    }
}

/// Pairs for each place and each of `backends`; without any the agent chooses. Prints `stories` of each task as well.
pub(crate) fn run(testbed: &mut Testbed, pairs: usize, backends: &[String], stories: bool) -> Result<()> {
    let mut site = Site::new(testbed)?;
    let agent = site.agent(testbed, Place::Calm, None)?;
    let backend = agent.backend("charge").map(|(backend, _)| backend);
    agent.stop()?;
    testbed.begin(backend)?;
    let chosen = std::iter::once(None).chain(backends.iter().map(|backend| Some(backend.as_str())));
    for backend in chosen {
        for place in [Place::Calm, Place::Near] {
            let case = match (place, backend) {
                (Place::Calm, None) => "calm".to_owned(),
                (Place::Near, None) => "near".to_owned(),
                (Place::Calm, Some(backend)) => format!("calm, {backend}"),
                (Place::Near, Some(backend)) => format!("near, {backend}"),
            };
            if testbed.wants(&case) {
                let Pairs { measurements, clock, watched_by } =
                    site.pairs(testbed, pairs, &case, place, backend)?;
                for ((task, ..), measurements) in TASKS.iter().zip(measurements) {
                    let rows = rows_of(task, &case, place, watched_by.as_deref(), measurements);
                    if stories {
                        testbed.emit(&story(task, &case, watched_by.as_deref(), &rows));
                    }
                    testbed.keep(rows)?;
                }
                testbed.keep([Row::new(
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

/// A node with one process for each task, which measures itself.
#[derive(Debug)]
struct Site {
    // The processes end before their groups go.
    tasks: Vec<Workload>,
    node: Node,
}

impl Site {
    fn new(testbed: &Testbed) -> Result<Self> {
        let mut node = Node::new("bench", BOUND, 200)?;
        let mut tasks = Vec::new();
        for (name, task, count) in TASKS {
            let pod = node.add(PodSpec::new("bench", name.replace([' ', '+'], "-"), &["main"], 8))?;
            let group = node.pods[pod].first()?;
            let mut workload =
                Workload::run(&testbed.workload, group, ["measure", "--what", task, "--count", count])?;
            workload.wait_event("go")?;
            tasks.push(workload);
        }
        let mut site = Self { tasks, node };
        // The first time everything is new.
        site.measure()?;
        Ok(site)
    }

    fn agent(&self, testbed: &Testbed, place: Place, backend: Option<&str>) -> Result<Agent> {
        let threshold = format!("{}Mi", THRESHOLD / MIB);
        let kubelet = json!({"evictionHard": {"memory.available": threshold}});
        let mut options = testbed.options(&self.node, &kubelet)?;
        options.action = "none";
        options.memory_capacity = match place {
            Place::Calm => FAR,
            Place::Near => NEAR,
        };
        if let Some(backend) = backend {
            options.more.extend(["--backend", backend].map(str::to_owned));
        }
        let agent = Agent::start(&options, &testbed.interrupt)?;
        testbed.interrupt.sleep(SETTLE)?;
        Ok(agent)
    }

    /// Nanoseconds of each task.
    fn measure(&mut self) -> Result<[f64; TASKS.len()]> {
        let mut measurements = [f64::INFINITY; TASKS.len()];
        for _ in 0..GOES {
            for (task, figure) in self.tasks.iter_mut().zip(&mut measurements) {
                task.go()?;
                *figure = figure.min(cpu_ns(task)?);
            }
        }
        Ok(measurements)
    }

    /// Nanoseconds of each task while [`ENTERED`] programs that do nothing are where the charge hook is; nothing where
    /// that is no tracepoint.
    fn measure_entering(&mut self) -> Result<Option<[f64; TASKS.len()]>> {
        let programs: Result<Vec<_>, _> = (0..ENTERED).map(|_| EmptyProgram::attach_to_charges()).collect();
        if programs.is_err() {
            return Ok(None);
        }
        self.measure().map(Some)
    }

    /// What the kernel's clock adds to each run of a program, nanoseconds. To be measured while the agent is not there:
    /// whoever runs behind its programs at the same hook finds the clock in the processor's caches.
    fn clock_ns(&mut self) -> Result<f64> {
        let _measured = measured()?;
        let [_fault, fork] = &mut self.tasks[..] else { anyhow::bail!("the tasks are others") };
        programs::clock_ns(|| {
            fork.go()?;
            cpu_ns(fork).map(|_| ())
        })
    }

    /// Of each task's time, what the agent's programs take, of whose runs each has so much for the kernel's clock.
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
            // Measured, a task takes longer by the clock, too; but for what of it is outside of what it measures.
            let without = whole - programs.sum().ns;
            let of = |runs: Runs| runs.less(clock_ns) / without * 100.0;
            let each = programs.by_name().into_iter();
            let each: BTreeMap<_, _> =
                each.map(|(name, runs)| (name, [of(runs), runs.less(clock_ns) / runs.count])).collect();
            // One whose runs are shorter than what the clock takes makes the others no cheaper.
            *share = Shares { all: each.values().map(|[share, _]| share).sum(), each };
        }
        Ok(shares)
    }

    fn pairs(
        &mut self,
        testbed: &Testbed,
        pairs: usize,
        case: &str,
        place: Place,
        backend: Option<&str>,
    ) -> Result<Pairs> {
        let mut measurements: [Measurements; TASKS.len()] = Default::default();
        let (mut watched_by, mut clock) = (None, Vec::new());
        for pair in 0..pairs {
            testbed.interrupt.check()?;
            let clock_ns = self.clock_ns()?;
            clock.push(clock_ns);
            let before = self.measure()?;
            let mut agent = self.agent(testbed, place, backend)?;
            let with = self.measure()?;
            let of_programs = self.shares(&agent, clock_ns)?;
            let decisions = agent.heard()?.iter().filter(|event| event.kind() == "eviction_decision").count();
            anyhow::ensure!(decisions == 0, "the line was crossed: {decisions} decisions");
            watched_by = agent.backend(place.source()).map(|(backend, _)| backend);
            agent.stop()?;
            let after = self.measure()?;
            let again = self.measure()?;
            let last = self.measure()?;
            // The same wherever the node stands; and near it is another hook that counts.
            let entered = if place == Place::Calm { self.measure_entering()? } else { None };
            for (task, measurements) in measurements.iter_mut().enumerate() {
                measurements.slowdowns.push(percent(with[task], before[task], after[task]));
                measurements.noise.push(percent(again[task], after[task], last[task]));
                measurements.shares.push(of_programs[task].all);
                for (name, [share, ns]) in &of_programs[task].each {
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
        Ok(Pairs { measurements, clock, watched_by })
    }
}

fn measured() -> Result<Measured> {
    Measured::begin().context("have the kernel measure programs")
}

/// What pairs came to.
#[derive(Debug)]
struct Pairs {
    measurements: [Measurements; TASKS.len()],
    /// What the kernel's clock adds to each run of a program, nanoseconds.
    clock: Vec<f64>,
    watched_by: Option<String>,
}

/// The goal at a place, percent: of the hook that fires at each page fault it is another than of those that fire at
/// each batch of charges.
fn most(task: &str, place: Place, watched_by: Option<&str>) -> f64 {
    match place {
        Place::Calm if task == TASKS[0].0 => 0.3,
        Place::Calm => 0.7,
        Place::Near if watched_by.is_some_and(|backend| backend.starts_with("tp_btf")) => 12.0,
        Place::Near => 3.0,
    }
}

fn rows_of(
    task: &str,
    case: &str,
    place: Place,
    watched_by: Option<&str>,
    measurements: Measurements,
) -> Vec<Row> {
    let Measurements { slowdowns, noise, shares, programs, entering } = measurements;
    let most = most(task, place, watched_by);
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

/// As the table of guests has it: that it was measured, and what came of it.
fn story(task: &str, case: &str, watched_by: Option<&str>, rows: &[Row]) -> Value {
    let mut story = json!({"story": format!("overhead, {case}, {task}"), "ok": true, "backend": watched_by});
    for (row, name) in rows.iter().zip(["slowdown", "noise", "programs"]) {
        story["values"][name] = json!(row.percentile(50));
    }
    story
}

/// Those of a task, one for each pair, in percent.
#[derive(Debug, Default)]
struct Measurements {
    slowdowns: Vec<f64>,
    noise: Vec<f64>,
    shares: Vec<f64>,
    /// By program, the share of its runs and the nanoseconds of one.
    programs: BTreeMap<String, [Vec<f64>; 2]>,
    entering: Vec<f64>,
}

/// Of a task's time, what the agent's programs take.
#[derive(Debug, Default)]
struct Shares {
    /// All together, percent.
    all: f64,
    /// Each by its name, percent and nanoseconds of a run.
    each: BTreeMap<String, [f64; 2]>,
}

/// What the processor has spent on a go of a task.
pub(crate) fn cpu_ns(task: &mut Workload) -> Result<f64> {
    let measured = task.wait_event("measured")?;
    measured["cpu_ns"].as_f64().context("a measurement has no figure")
}

/// By how much a figure is above the mean of those before and after it.
pub(crate) fn percent(with: f64, before: f64, after: f64) -> f64 {
    (with / ((before + after) / 2.0) - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_slowdown_is_held_against_both_sides() {
        assert_eq!(percent(150.0, 80.0, 120.0), 50.0);
        assert_eq!(percent(50.0, 100.0, 100.0), -50.0);
    }
}
