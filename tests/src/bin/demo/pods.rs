//! The three pods of the stories.

use std::time::Duration;

use anyhow::Result;
use tests::agent::Agent;
use tests::node::{MIB, Node, Pod, PodSpec};
use tests::workload::Workload;

use crate::testbed::Testbed;

/// A service with users: big, and within its request.
pub(crate) fn checkout() -> PodSpec {
    PodSpec { priority: Some(100), ..PodSpec::new("shop", "checkout", &["app"], 400) }
}

/// A static pod, so critical. It has no priority and exceeds its request, so that it would be evicted first if
/// that were overlooked.
pub(crate) fn etcd() -> PodSpec {
    PodSpec { is_static: true, ..PodSpec::new("kube-system", "etcd", &["etcd"], 16) }
}

/// The pod of the runaway.
pub(crate) fn report() -> PodSpec {
    PodSpec { priority: Some(100), ..PodSpec::new("batch", "report", &["job"], 32) }
}

/// A pod that must not be affected, and its first process.
#[derive(Debug)]
pub(crate) struct Bystander {
    pod: String,
    process: Workload,
    /// The processes of the pod before the story began.
    before: Vec<u32>,
}

impl Bystander {
    pub(crate) fn new(pod: &Pod, process: Workload) -> Self {
        Self { pod: pod.full_name(), process, before: pod.group.processes() }
    }

    /// Checks that every process of the pod is alive.
    pub(crate) fn check(&mut self, testbed: &mut Testbed<'_>, why: &str) -> Result<()> {
        let dead: Vec<u32> =
            self.before.iter().copied().filter(|pid| !tests::process::is_alive(*pid)).collect();
        let lives = self.process.process().is_running()? && dead.is_empty();
        let expected = format!("{} lives: {why}", self.pod);
        testbed.check(expected, lives, format_args!("{dead:?} of its processes are dead"));
        Ok(())
    }
}

/// Starts bystanders, usually `checkout` and `etcd`, and waits until each holds so many MiB.
pub(crate) fn bystanders(
    testbed: &Testbed<'_>,
    node: &Node,
    sizes: &[(usize, u64)],
) -> Result<Vec<Bystander>> {
    let mut settled = Vec::new();
    for (index, mib) in sizes {
        let pod = &node.pods[*index];
        let size = (mib * MIB).to_string();
        let process = testbed.start_and_wait(pod.first()?, &["hold", "--size", &size], "holding")?;
        settled.push(Bystander::new(pod, process));
    }
    Ok(settled)
}

/// Checks that the bystanders live; `reasons` are the reasons for each.
pub(crate) fn check_bystanders(
    testbed: &mut Testbed<'_>,
    bystanders: &mut [Bystander],
    reasons: [&str; 2],
) -> Result<()> {
    bystanders.iter_mut().zip(reasons).try_for_each(|(bystander, why)| bystander.check(testbed, why))
}

/// Checks that the agent has chosen one victim only, and that the bystanders live.
pub(crate) fn check_one_decision(
    testbed: &mut Testbed<'_>,
    agent: &mut Agent,
    bystanders: &mut [Bystander],
    reasons: [&str; 2],
) -> Result<()> {
    // After this time a second victim would have been chosen, if the first were not enough for the agent.
    testbed.interrupt.sleep(Duration::from_millis(1500))?;
    let decisions = agent.count_decisions()?;
    testbed.check("one decision, one victim", decisions == 1, format_args!("{decisions} decisions"));
    check_bystanders(testbed, bystanders, reasons)
}

/// Checks, at the end of a story, that this pod was evicted for that signal, and that nothing else was evicted
/// or killed by the kernel.
pub(crate) fn check_one_eviction(
    testbed: &mut Testbed<'_>,
    node: &Node,
    kills_before: u64,
    agent: Agent,
    (signal, pod): (&str, usize),
) -> Result<()> {
    let kills = node.oom_kills()?.saturating_sub(kills_before);
    testbed.check("the kernel counts no OOM kill: this was an eviction", kills == 0, format_args!("{kills}"));
    check_counters(testbed, &agent, &[(signal, &node.pods[pod])], 0)?;
    agent.stop()
}

/// Checks the agent's counters against what happened.
pub(crate) fn check_counters(
    testbed: &mut Testbed<'_>,
    agent: &Agent,
    evictions: &[(&str, &Pod)],
    oom_kills: u64,
) -> Result<()> {
    let metrics = agent.metrics()?;
    let count = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels);
    let name = "eviction_agent_evictions_total";
    let all = count(name, &[]);
    let (expected, matching) = match evictions {
        [] => ("/metrics counts no eviction".to_owned(), 0.0),
        list => (
            format!("/metrics counts {} eviction, by {}", list.len(), list[0].0),
            list.iter()
                .map(|(signal, pod)| {
                    count(name, &[("eviction_signal", signal), ("namespace", pod.namespace())])
                })
                .sum(),
        ),
    };
    let right = all == evictions.len() as f64 && matching == all;
    testbed.check(expected, right, format_args!("{all} evictions, {matching} of them as expected"));
    let kills = count("eviction_agent_oom_kills_total", &[]);
    let expected = format!("/metrics counts {oom_kills} OOM kills");
    testbed.check(expected, kills == oom_kills as f64, format_args!("{kills}"));
    Ok(())
}
