//! What the agent costs in a cluster while nothing happens, and what it asks of the server.

use std::time::{Duration, Instant};

use ::tests::agent::Agent;
use ::tests::bench::row::{Goal, Row};
use ::tests::cluster::Cluster;
use ::tests::cluster::proxy::Proxy;
use ::tests::node::{MIB, Node};
use ::tests::workload::Workload;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::population;
use crate::cost::Watched;
use crate::testbed::Testbed;

/// So many pods, of so many containers each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pods: usize,
    containers: &'static [&'static str],
    /// MiB of memory that the agent may occupy.
    rss: f64,
}

/// A bound for what runs here; the agent gets a node of 64 GiB, as such a node would have.
const BOUND: u64 = 3072 * MIB;
const MEMORY: u64 = 64 * 1024 * MIB;
const PIDS: u64 = 4096;
/// What is left of the start must not be counted.
const SETTLE: Duration = Duration::from_secs(12);
const PIECE: Duration = Duration::from_secs(10);
/// How often metrics are read.
const SCRAPE: Duration = Duration::from_secs(15);
/// Requests beside watches and what keeps the connection open.
const REQUESTS: f64 = 1.0;

impl Case {
    /// As many pods as the kubelet allows on a node by default, and as large nodes have.
    pub(super) const ALL: [Self; 2] = [
        Self { pods: 110, containers: &["one", "two", "three"], rss: 16.0 },
        Self { pods: 500, containers: &["one"], rss: 20.0 },
    ];

    pub(super) fn name(self) -> String {
        format!("{} pods", self.pods)
    }
}

/// Watches a calm agent for so many seconds, by a proxy that counts what it asks.
pub(super) fn measure(
    testbed: &Testbed,
    cluster: &mut Cluster,
    case: Case,
    seconds: u64,
) -> Result<Vec<Row>> {
    let name = case.name();
    testbed.progress(&format!("calm agent, {name}, {seconds} s"));
    let token = population::token(cluster)?;
    let mut node = Node::new("bench-api", BOUND, PIDS)?;
    let mut processes = Vec::new();
    for nth in 0..case.pods {
        testbed.interrupt.check()?;
        population::add_pod(cluster, &mut node, &format!("calm-{nth}"), case.containers)?;
        for container in &node.pods[nth].containers {
            processes.push(Workload::run(&testbed.workload, &container.group, ["hold", "--size", "64K"])?);
        }
    }
    let proxy = Proxy::start(cluster)?;
    let kubelet = json!({"evictionHard": {"memory.available": "1Gi", "pid.available": "256"}});
    let mut options = testbed.options(&node, &kubelet)?;
    (options.pods, options.action, options.memory_capacity) = (None, "evict", MEMORY);
    options.more.extend(population::in_cluster(cluster.kubeconfig_at("calm", &token, proxy.port())?));
    let mut agent = Agent::start(&options, &testbed.interrupt)?;
    population::knows_pods(&mut agent, case.pods)?;
    testbed.interrupt.sleep(SETTLE)?;

    let mut watched = Watched::new(agent.pid())?;
    let before = proxy.seen().len();
    let start = Instant::now();
    let mut scraped = start;
    for _ in 0..(seconds / PIECE.as_secs()).max(1) {
        let end = Instant::now() + PIECE;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            testbed.interrupt.sleep(left.min(Duration::from_secs(1)))?;
            if scraped.elapsed() >= SCRAPE {
                scraped = Instant::now();
                agent.metrics()?;
            }
        }
        watched.sample()?;
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let asked: Vec<String> = proxy.seen().into_iter().skip(before).map(|seen| seen.request).collect();
    let decisions = agent.heard()?.iter().filter(|event| event.kind() == "eviction_decision").count();
    ensure!(decisions == 0, "the agent was not calm: {decisions} decisions");
    agent.stop()?;
    drop(processes);
    for pod in &node.pods {
        cluster.finish_pod("default", &pod.spec().name).context("clear away pods")?;
    }

    let per_minute = asked.iter().filter(|request| counts(request)).count() as f64 / minutes;
    let [rss, cpu, wakeups] = watched.rows(&name);
    let requests = Row::new(name, "requests", "a minute", vec![per_minute])
        .goal(Goal::Max(REQUESTS))
        .with("all", asked.len());
    Ok(vec![rss.goal(Goal::Max(case.rss)), cpu, wakeups, requests])
}

/// Neither a watch nor what keeps the connection open.
fn counts(request: &str) -> bool {
    !request.contains("watch=true") && request != "GET /version"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_keep_alive_do_not_count() {
        let asked = [
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&watch=true&timeoutSeconds=300",
            "GET /version",
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
            "PATCH /api/v1/nodes/n1/status",
        ];
        assert_eq!(asked.map(counts), [false, false, true, true]);
    }
}
