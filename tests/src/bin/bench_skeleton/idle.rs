//! What the agent costs while nothing happens.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use tests::agent::{Agent, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;

use crate::{Bench, MOST_PODS};
use tests::bench::row::{Goal, Row};

const CONTAINERS: &[&str] = &["one", "two", "three"];
/// A bound for what runs here. The agent is told of a node of 64 GiB, as such a node would have:
/// it looks more often where a threshold could be reached within a second.
const BOUND: u64 = 2048 * MIB;
const MEMORY: u64 = 64 * 1024 * MIB;
const PIDS: u64 = 4096;
/// What is left of the start must not be counted.
const SETTLE: Duration = Duration::from_secs(5);
/// The time is cut into pieces of this length, a figure each.
const PIECE: Duration = Duration::from_secs(5);

pub(crate) fn measure(bench: &Bench<'_>, seconds: u64) -> Result<Vec<Row>> {
    let mut node = Node::new("bench", BOUND, PIDS)?;
    let mut processes = Vec::new();
    for nth in 0..MOST_PODS {
        let pod = node.add(PodSpec {
            namespace: "bench",
            name: format!("calm-{nth:03}"),
            containers: CONTAINERS,
            request_mib: 16,
            limit_mib: None,
            priority: None,
            is_static: false,
        })?;
        for container in &node.pods[pod].containers {
            bench.interrupt.check()?;
            let arguments = ["hold", "--size", "64K"];
            processes.push(Workload::run(bench.workload, &container.group, arguments)?);
        }
    }
    let containers = MOST_PODS * CONTAINERS.len();
    bench.tell(&format!("calm agent, {containers} containers, {seconds} s"));
    let config = json!({"evictionHard": {"memory.available": "1Gi", "pid.available": "256"}});
    let options = Options {
        binary: bench.agent,
        kubelet_config: &node.write_config(&config)?,
        pods: &node.write_pods()?,
        cgroup_root: &node.cgroup_root(),
        memory_capacity: MEMORY,
        pid_capacity: node.pid_capacity(),
        act: "dry-run",
        config: None,
    };
    let mut agent = Agent::start(&options, bench.interrupt)?;
    bench.interrupt.sleep(SETTLE)?;

    let pieces = (seconds / PIECE.as_secs()).max(1);
    let (mut rss, mut cpu, mut wakeups) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = Cost::of(agent.pid())?;
    for _ in 0..pieces {
        bench.interrupt.sleep(PIECE)?;
        let now = Cost::of(agent.pid())?;
        let time = now.at.duration_since(before.at).as_secs_f64();
        cpu.push(now.cpu.saturating_sub(before.cpu).as_secs_f64() / time * 100.0);
        wakeups.push(now.wakeups.saturating_sub(before.wakeups) as f64 / time);
        rss.push(now.rss as f64 / MIB as f64);
        before = now;
    }
    let decisions = agent.heard()?.iter().filter(|event| event.kind() == "decision").count();
    anyhow::ensure!(decisions == 0, "the agent was not calm: {decisions} decisions");
    agent.stop()?;
    let case = format!("{containers} containers");
    Ok(vec![
        Row::new(case.as_str(), "rss", "MiB", rss).goal(Goal::Max(12.0)),
        Row::new(case.as_str(), "cpu", "% of a core", cpu).goal(Goal::Mean(0.2)),
        Row::new(case, "wakeups", "1/s", wakeups),
    ])
}

/// What a process has cost until now.
#[derive(Clone, Copy, Debug)]
struct Cost {
    at: Instant,
    /// Bytes of memory that it occupies.
    rss: u64,
    /// On a processor, all threads together; the scheduler's own account, exact to the nanosecond.
    cpu: Duration,
    /// Times that a thread had gone to sleep by itself.
    wakeups: u64,
}

impl Cost {
    fn of(pid: u32) -> Result<Self> {
        let smaps = read(&format!("/proc/{pid}/smaps_rollup"))?;
        let kib = number(&smaps, "Rss:").context("smaps_rollup has no Rss")?;
        let (mut cpu, mut wakeups) = (0, 0);
        let tasks = format!("/proc/{pid}/task");
        for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
            let folder = task.with_context(|| format!("list {tasks}"))?.path();
            let schedstat = read(&folder.join("schedstat").display().to_string())?;
            let nanos = schedstat.split(' ').next().unwrap_or_default();
            cpu += nanos.parse::<u64>().with_context(|| format!("schedstat `{schedstat}`"))?;
            let status = read(&folder.join("status").display().to_string())?;
            wakeups += number(&status, "voluntary_ctxt_switches:").context("status has no switches")?;
        }
        Ok(Self { at: Instant::now(), rss: kib * 1024, cpu: Duration::from_nanos(cpu), wakeups })
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {path}"))
}

/// The number behind a key at the start of a line.
fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
}
