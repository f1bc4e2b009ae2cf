//! From the crossing to the decision and to the victim's death, by the kernel's stamps and by the
//! growing process's own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, Options};
use tests::clock;
use tests::death::Death;
use tests::growth::{Climb, Growth, Pages};
use tests::node::{MIB, Node, PodSpec};
use tests::stamps::Record;
use tests::workload::Workload;

use crate::Bench;
use tests::bench::row::{Goal, Row};

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hog {
    /// Fresh pages.
    Fresh,
    /// Pages given back before with `MADV_DONTNEED`.
    Refault,
    /// Fresh pages, where page cache has filled the node to its limit.
    PageCache,
}

impl Hog {
    fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Refault => "refault",
            Self::PageCache => "page cache",
        }
    }

    fn kind(self) -> &'static str {
        if self == Self::Refault { "refault" } else { "fresh" }
    }

    fn pages(self) -> Pages {
        if self == Self::Refault { Pages::Refault } else { Pages::Fresh }
    }
}

const MEMORY: u64 = 384 * MIB;
const PIDS: u64 = 200;
const THRESHOLD: u64 = 128 * MIB;
const LINE: u64 = MEMORY - THRESHOLD;
/// A hog grows beyond the line by half of what is left to the bound, and no further.
const GROWTH: u64 = LINE + THRESHOLD / 2;
/// 1 GB/s.
const RATE: u64 = 1_000_000_000;
/// A run in which the hog was slower than this over its last piece has measured the machine.
const SLOWEST: f64 = 0.8 * RATE as f64;
const PIECE_NS: u64 = 50_000_000;
/// How long a decision may be outstanding before it counts as missed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The agent refuses to kill pod after pod; a new one counts anew.
const PER_AGENT: usize = 8;
/// At most so many runs for each that counts.
const TRIES: usize = 3;

/// What is let across the line, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// What grows.
    pub(crate) hog: Hog,
    /// Pods of the node.
    pub(crate) pods: usize,
    /// Crossings that count.
    pub(crate) n: usize,
}

/// The fewest pods that a node here can have: the hogs of one agent, and the reader.
pub(crate) const FEW: usize = PER_AGENT + 1;

impl Case {
    fn name(self) -> String {
        let Self { hog, pods, n: _ } = self;
        let few = format!("idle, {}, 1 GB/s", hog.name());
        if pods == FEW { few } else { format!("{few}, {pods} pods") }
    }
}

/// The rung by which the agent watches charges here.
pub(crate) fn rung(bench: &Bench<'_>) -> Result<String> {
    let lab = Lab::new(bench, FEW)?;
    let (rung, _) = lab.agent.rung("charge").context("the agent names no source of charges")?;
    lab.agent.stop()?;
    Ok(rung)
}

/// Lets hogs cross the line, one after the other, and a new agent watch every few of them.
pub(crate) fn measure(bench: &Bench<'_>, case: Case) -> Result<Vec<Row>> {
    ensure!(case.n > 0, "no run was asked for");
    let mut runs = Runs::default();
    for _ in 0..(case.n * TRIES).div_ceil(PER_AGENT) {
        let mut lab = Lab::new(bench, case.pods.max(FEW))?;
        for pod in 1..=PER_AGENT {
            if runs.good.len() < case.n {
                let run = lab.run(bench, case.hog, pod);
                runs.add(run.with_context(|| format!("{}, run {}", case.name(), runs.number() + 1))?)?;
            }
        }
        lab.agent.stop()?;
        let Runs { good, void, missed } = &runs;
        let (name, good) = (case.name(), good.len());
        bench.tell(&format!("{name}: {good} of {} runs, {void} void, {missed} missed", case.n));
        if good == case.n {
            break;
        }
    }
    Ok(runs.rows(case))
}

/// The node and the agent of one series of runs. The agent goes first, then the groups.
struct Lab {
    agent: Agent,
    node: Node,
    /// Decisions of this agent before the run at hand.
    decisions: usize,
    random: u64,
}

impl Lab {
    /// A node with so many pods; the first one reads files, the others are for hogs.
    fn new(bench: &Bench<'_>, pods: usize) -> Result<Self> {
        let mut node = Node::new("bench", MEMORY, PIDS)?;
        for nth in 0..pods {
            bench.interrupt.check()?;
            node.add(PodSpec {
                namespace: "bench",
                name: if nth == 0 { "reader".to_owned() } else { format!("hog-{nth:03}") },
                containers: &["main"],
                request_mib: 8,
                limit_mib: None,
                priority: None,
                is_static: false,
            })?;
        }
        let config = json!({"evictionHard": {"memory.available": format!("{}Mi", THRESHOLD / MIB)}});
        let options = Options {
            binary: bench.agent,
            kubelet_config: &node.write_config(&config)?,
            pods: &node.write_pods()?,
            cgroup_root: &node.cgroup_root(),
            memory_capacity: node.memory_capacity(),
            pid_capacity: node.pid_capacity(),
            act: "kill",
            config: None,
        };
        let agent = Agent::start(&options, bench.interrupt)?;
        Ok(Self { agent, node, decisions: 0, random: clock::now() | 1 })
    }

    /// Any moment of the agent's own timers is as good as any other.
    fn random_pause(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_millis(200 + self.random % 500)
    }

    fn run(&mut self, bench: &Bench<'_>, hog: Hog, pod: usize) -> Result<Run> {
        let reader = match hog {
            Hog::PageCache => Some(self.fill(bench)?),
            Hog::Fresh | Hog::Refault => None,
        };
        let stamps = self.node.file(&format!("stamps-{pod}"));
        let mut process = self.start(bench, hog, pod, &stamps)?;
        bench.interrupt.sleep(self.random_pause())?;
        let base = self.node.working_set()?;
        ensure!(base < LINE / 2, "the node is not empty before a run: {} MiB", base / MIB);
        let death = Death::of(&self.node.pods[pod].group, process.pid())?;
        process.go()?;

        let decision = self.decision(bench, &stamps)?;
        let dead = match &decision {
            Some(_) => Some(death.at(bench.interrupt, agent::GUARD)?),
            None => None,
        };
        drop(process);
        drop(reader);
        let climb = Climb::new(Growth::of(&Record::read(&stamps)?), base, LINE, hog.pages());
        std::fs::remove_file(&stamps).context("remove the stamps of a run")?;
        let name = self.node.pods[pod].full_name();
        if let Some(decision) = &decision {
            let victim = decision.text("pod");
            ensure!(victim == name, "{victim} was chosen, and not {name}");
            self.settle(bench)?;
        }
        Ok(Run { climb, decision, dead })
    }

    fn start(&self, bench: &Bench<'_>, hog: Hog, pod: usize, stamps: &Path) -> Result<Workload> {
        let (size, rate, file) = (GROWTH.to_string(), RATE.to_string(), stamps.display().to_string());
        let kind = ["grow", "--kind", hog.kind(), "--size", &size, "--rate", &rate, "--stamps", &file];
        let first = (hog.kind() == "fresh").then_some("--touch-first");
        Workload::start(bench.workload, self.node.pods[pod].first()?, kind.into_iter().chain(first))
    }

    /// Fills the node with page cache up to its limit.
    fn fill(&self, bench: &Bench<'_>) -> Result<Workload> {
        let size = (MEMORY + 32 * MIB).to_string();
        // Beside the programs is a disk; the folder for temporary files may be memory.
        let folder = bench.workload.parent().context("the folder of the workload")?.display().to_string();
        let arguments = ["cache", "--size", &size, "--dir", &folder];
        let mut reader = Workload::run(bench.workload, self.node.pods[0].first()?, arguments)?;
        reader.wait_event("cached")?;
        let usage = self.node.root().memory()?;
        ensure!(usage > MEMORY - 8 * MIB, "the page cache did not fill: usage {} MiB", usage / MIB);
        Ok(reader)
    }

    /// The next decision; `None` if the hog grew to its end and none came.
    fn decision(&mut self, bench: &Bench<'_>, stamps: &Path) -> Result<Option<Event>> {
        let mut grown: Option<u64> = None;
        let decision = loop {
            bench.interrupt.check()?;
            let mut decisions = self.agent.heard()?.iter().filter(|event| event.kind() == "decision");
            if let Some(event) = decisions.nth(self.decisions) {
                break event.clone();
            }
            match grown {
                None => grown = Record::read(stamps)?.done,
                Some(done) if clock::now() > done + u64::try_from(PATIENCE.as_nanos())? => return Ok(None),
                Some(_) => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.decisions += 1;
        Ok(Some(decision))
    }

    /// Waits until the agent knows that its victim is gone and the pressure over.
    fn settle(&mut self, bench: &Bench<'_>) -> Result<()> {
        let (agent, decisions) = (&mut self.agent, self.decisions);
        bench.interrupt.until("the agent sees the end of its victim", agent::GUARD, || {
            let heard = agent.heard()?;
            let gone = heard
                .iter()
                .filter(|event| event.kind() == "eviction" && event.text("outcome") == "gone")
                .count();
            let met = heard.iter().rev().find(|event| event.kind() == "threshold");
            let over = met.is_none_or(|event| event.text("state") == "cleared");
            Ok((gone >= decisions && over).then_some(()))
        })
    }
}

/// One crossing.
struct Run {
    climb: Climb,
    decision: Option<Event>,
    dead: Option<u64>,
}

/// What was measured in a crossing.
struct Figures {
    /// The kernel's stamp to the decision.
    stamped_us: Option<f64>,
    /// The crossing by the hog's own clock to the decision.
    crossed_us: Option<f64>,
    decision_mib: f64,
    death_mib: f64,
    rate: f64,
    seen_by: String,
}

#[derive(Default)]
struct Runs {
    good: Vec<Figures>,
    void: usize,
    missed: usize,
}

impl Runs {
    fn add(&mut self, run: Run) -> Result<()> {
        let Run { climb, decision, dead } = run;
        // The kernel charges ahead of what is touched, so a prompt decision may precede the
        // crossing by the hog's own clock, and the hog then never get there.
        let crossed = climb.crossed();
        let last = climb.growth().last().context("the hog has stamped nothing")?;
        let at = crossed.unwrap_or(last.ns);
        let rate = climb.growth().rate(at.saturating_sub(PIECE_NS), at).unwrap_or(0.0);
        if rate < SLOWEST {
            self.void += 1;
            return Ok(());
        }
        let (Some(decision), Some(dead)) = (decision, dead) else {
            self.missed += 1;
            return Ok(());
        };
        let decided = decision.number("decided_mono_ns").context("a decision has no time")?;
        let since = |ns: u64| (decided as f64 - ns as f64) / 1000.0;
        let mib = |ns| climb.overshoot(ns).map_or(f64::NAN, |bytes| bytes as f64 / MIB as f64);
        self.good.push(Figures {
            stamped_us: decision.number("crossed_mono_ns").map(since),
            crossed_us: crossed.map(since),
            decision_mib: mib(decided),
            death_mib: mib(dead),
            rate: rate / 1e9,
            seen_by: decision.text("seen_by").to_owned(),
        });
        Ok(())
    }

    fn number(&self) -> usize {
        let Self { good, void, missed } = self;
        good.len() + void + missed
    }

    fn rows(self, case: Case) -> Vec<Row> {
        let Self { good, void, missed } = self;
        let name = case.name();
        let mut seen_by: BTreeMap<&str, usize> = BTreeMap::new();
        for figures in &good {
            *seen_by.entry(&figures.seen_by).or_default() += 1;
        }
        let seen_by = json!(seen_by);
        let row = |metric, unit, of: fn(&Figures) -> Option<f64>| {
            let row = Row::new(name.as_str(), metric, unit, good.iter().filter_map(of).collect())
                .with("void", void)
                .with("missed", missed)
                .with("seen_by", Value::clone(&seen_by));
            if missed > 0 { row.spoiled() } else { row }
        };
        let stamped = row("stamp to decision", "us", |figures| figures.stamped_us);
        vec![
            match case {
                Case { hog: Hog::Fresh, pods: FEW, n: _ } => {
                    stamped.goal(Goal::Stamp { n: 100, p50: 500.0, p99: 5000.0 })
                }
                _ => stamped,
            },
            row("crossing to decision", "us", |figures| figures.crossed_us),
            row("overshoot at decision", "MiB", |figures| Some(figures.decision_mib)).goal(Goal::Max(4.0)),
            row("overshoot at death", "MiB", |figures| Some(figures.death_mib)),
            row("rate reached", "GB/s", |figures| Some(figures.rate)),
        ]
    }
}
