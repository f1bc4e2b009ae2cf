//! The agent's cost while nothing happens, and the cost of other programs at the same time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::agent::{Agent, GUARD};
use tests::bench::row::{Goal, Row};
use tests::metrics::Metrics;
use tests::node::{MIB, Node, PodSpec};
use tests::process::Process;
use tests::workload::Workload;

use crate::competitor::{self, Competitor};
use crate::cost::CostSampler;
use crate::observer::{Observer, check_screens};
use crate::testbed::Testbed;

/// The number of pods that the kubelet allows on a node by default.
pub(crate) const MOST_PODS: usize = 110;
const CONTAINERS: &[&str] = &["one", "two", "three"];
/// The memory limit of the test's node. The agent is started with 64 GiB of capacity, as such a node would
/// have: it samples more often where a threshold could be reached within a second.
const BOUND: u64 = 2048 * MIB;
const MEMORY: u64 = 64 * 1024 * MIB;
const PIDS: u64 = 4096;
/// The pause before the measurement, so that the cost of the start is not counted.
pub(crate) const SETTLE: Duration = Duration::from_secs(12);
/// The length of one measurement, which gives one value; a full sample falls into each.
pub(crate) const PIECE: Duration = Duration::from_secs(10);
/// The interval at which the metrics of the agent and of node-exporter are read.
const SCRAPE: Duration = Duration::from_secs(15);

/// Measures a calm agent for so many seconds; with `beside`, other programs watch the machine at the same time.
pub(crate) fn measure(testbed: &Testbed, seconds: u64, beside: bool, observer: Observer) -> Result<Vec<Row>> {
    let mut node = Node::new("bench", BOUND, PIDS)?;
    let _processes = populate(testbed, &mut node)?;
    let containers = MOST_PODS * CONTAINERS.len();
    let case = format!("{containers} containers{}", observer.suffix());
    testbed.progress(&format!("calm agent, {case}, {seconds} s"));
    let kubelet = json!({"evictionHard": {"memory.available": "1Gi", "pid.available": "256"}});
    let mut options = testbed.options(&node, &kubelet)?;
    options.memory_capacity = MEMORY;
    options.action = "none";
    observer.prepare(&node, &mut options)?;
    let mut agent = Agent::start(&options, &testbed.interrupt)?;
    let mut screens = observer.start(&node, &options)?;
    let others = if beside { OtherPrograms::start(testbed)? } else { OtherPrograms::default() };
    testbed.interrupt.sleep(SETTLE)?;

    let pids = std::iter::once(agent.pid()).chain(others.running.iter().map(|other| other.pid));
    let mut samplers = pids.map(CostSampler::new).collect::<Result<Vec<_>>>()?;
    sample_calm(testbed, &mut agent, seconds, &mut samplers, || others.scrape())?;
    check_screens(&mut screens)?;
    agent.stop()?;

    let [rss, cpu, wakeups] = samplers[0].rows(&case);
    let mut rows =
        vec![rss.goal(Goal::Max(16.0)), cpu.goal(Goal::Mean(0.1)), wakeups.goal(Goal::Mean(300.0))];
    for (other, watched) in others.running.iter().zip(&samplers[1..]) {
        rows.extend(watched.rows(&case).map(|row| row.program(other.program)));
    }
    Ok(rows)
}

/// Samples for so many seconds. Reads the agent's metrics and calls `scrape` meanwhile. Fails if the agent
/// was not calm.
pub(crate) fn sample_calm(
    testbed: &Testbed,
    agent: &mut Agent,
    seconds: u64,
    samplers: &mut [CostSampler],
    scrape: impl Fn() -> Result<()>,
) -> Result<()> {
    let mut scraped = Instant::now();
    for _ in 0..pieces(seconds) {
        let end = Instant::now() + PIECE;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            testbed.interrupt.sleep(left.min(Duration::from_secs(1)))?;
            if scraped.elapsed() >= SCRAPE {
                scraped = Instant::now();
                agent.metrics()?;
                scrape()?;
            }
        }
        samplers.iter_mut().try_for_each(CostSampler::sample)?;
    }
    let decisions = agent.count_decisions()?;
    ensure!(decisions == 0, "the agent was not calm: {decisions} decisions");
    Ok(())
}

/// Returns how many measurements are made in so many seconds.
pub(crate) fn pieces(seconds: u64) -> u64 {
    (seconds / PIECE.as_secs()).max(1)
}

fn populate(testbed: &Testbed, node: &mut Node) -> Result<Vec<Workload>> {
    let mut processes = Vec::new();
    for nth in 0..MOST_PODS {
        let pod = node.add(PodSpec::new("bench", format!("calm-{nth:03}"), CONTAINERS, 16))?;
        for container in &node.pods[pod].containers {
            testbed.interrupt.check()?;
            let arguments = ["hold", "--size", "64K"];
            processes.push(Workload::run(&container.group, arguments)?);
        }
    }
    Ok(processes)
}

/// The other programs that watch the machine.
#[derive(Debug, Default)]
struct OtherPrograms {
    running: Vec<OtherProgram>,
    exporter: Option<SocketAddr>,
}

#[derive(Debug)]
struct OtherProgram {
    program: &'static str,
    pid: u32,
    _process: Process,
}

impl OtherPrograms {
    fn start(testbed: &Testbed) -> Result<Self> {
        let folder = testbed.competitors.as_deref();
        let mut running = Vec::new();
        for competitor in Competitor::ALL {
            let process = Process::spawn(&mut competitor::in_own_namespace(&competitor.by_default(folder)?))?;
            let what = format!("{} is in its namespace", competitor.program());
            let pid = testbed.interrupt.until(&what, GUARD, || competitor::child_of(&process))?;
            running.push(OtherProgram { program: competitor.program(), pid, _process: process });
        }
        let (mut command, address) = competitor::node_exporter(folder)?;
        let process = Process::spawn(&mut command)?;
        let pid = process.pid();
        running.push(OtherProgram { program: "node-exporter 1.5", pid, _process: process });
        let others = Self { running, exporter: Some(address) };
        testbed
            .interrupt
            .until("node-exporter answers", GUARD, || Ok(others.scrape().ok()))
            .context("start node-exporter")?;
        Ok(others)
    }

    fn scrape(&self) -> Result<()> {
        match self.exporter {
            Some(address) => Metrics::read(address).map(drop),
            None => Ok(()),
        }
    }
}
