//! The agent's cost in a cluster while nothing happens, and the requests that it sends.

use std::time::Instant;

use ::tests::agent::Agent;
use ::tests::bench::row::{Goal, Row};
use ::tests::cluster::Cluster;
use ::tests::cluster::proxy::Proxy;
use ::tests::node::{MIB, Node};
use ::tests::workload::Workload;
use anyhow::{Context as _, Result};
use serde_json::json;

use super::population;
use crate::cost::CostSampler;
use crate::idle::{SETTLE, sample_calm};
use crate::testbed::Testbed;

/// A number of pods, and the containers of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pods: usize,
    containers: &'static [&'static str],
    /// The memory that the agent may occupy, MiB.
    rss: f64,
}

/// The memory limit of the test's node. The agent is started with 64 GiB of capacity, as such a node would
/// have.
const BOUND: u64 = 3072 * MIB;
const MEMORY: u64 = 64 * 1024 * MIB;
const PIDS: u64 = 4096;
/// The goal: requests per minute, without watches and keep-alive requests.
const REQUESTS: f64 = 1.0;

impl Case {
    /// 110 pods, which the kubelet allows on a node by default, and 500 pods, as on large nodes.
    pub(super) const ALL: [Self; 2] = [
        Self { pods: 110, containers: &["one", "two", "three"], rss: 16.0 },
        Self { pods: 500, containers: &["one"], rss: 20.0 },
    ];

    pub(super) fn name(self) -> String {
        format!("{} pods", self.pods)
    }
}

/// Measures a calm agent for so many seconds, through a proxy that counts its requests.
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
            processes.push(Workload::run(&container.group, ["hold", "--size", "64K"])?);
        }
    }
    let proxy = Proxy::start(cluster)?;
    let kubelet = json!({"evictionHard": {"memory.available": "1Gi", "pid.available": "256"}});
    let mut options = testbed.options(&node, &kubelet)?;
    (options.action, options.memory_capacity) = ("evict", MEMORY);
    let kubeconfig = cluster.kubeconfig_at("calm", &token, proxy.port())?;
    let options = options.in_cluster(kubeconfig, population::NODE);
    let mut agent = Agent::start(&options, &testbed.interrupt)?;
    agent.wait_for_pods(case.pods)?;
    testbed.interrupt.sleep(SETTLE)?;

    let mut samplers = [CostSampler::new(agent.pid())?];
    let before = proxy.requests().len();
    let start = Instant::now();
    sample_calm(testbed, &mut agent, seconds, &mut samplers, || Ok(()))?;
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let sent_requests: Vec<String> =
        proxy.requests().into_iter().skip(before).map(|seen| seen.request).collect();
    agent.stop()?;
    drop(processes);
    for pod in &node.pods {
        cluster.finish_pod("default", &pod.spec().name).context("clear away pods")?;
    }

    let per_minute =
        sent_requests.iter().filter(|request| is_counted_request(request)).count() as f64 / minutes;
    let [rss, cpu, wakeups] = samplers[0].rows(&name);
    let requests = Row::new(name, "requests", "a minute", vec![per_minute])
        .goal(Goal::Max(REQUESTS))
        .with("all", sent_requests.len());
    Ok(vec![rss.goal(Goal::Max(case.rss)), cpu, wakeups, requests])
}

/// Returns whether a request is neither a watch nor a keep-alive request.
fn is_counted_request(request: &str) -> bool {
    !request.contains("watch=true") && request != "GET /version"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_keep_alive_do_not_count() {
        let sent_requests = [
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&watch=true&timeoutSeconds=300",
            "GET /version",
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
            "PATCH /api/v1/nodes/n1/status",
        ];
        assert_eq!(sent_requests.map(is_counted_request), [false, false, true, true]);
    }
}
