//! Reports about tasks and time in reclaim: which pod comes near its limit of tasks, which forked, and which waits in
//! reclaim. No pod may be named for what another one did.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Instant;

use serde_json::json;
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

fn pod(name: &str) -> PodSpec {
    PodSpec::new("default", name, &["main"], 8)
}

fn start(node: &Node) -> Agent {
    let config = json!({"evictionHard": {"memory.available": "16Mi", "pid.available": "100"}});
    let options = Options { action: "none", ..Options::new(node, &config).unwrap() };
    options.start().unwrap()
}

#[test]
fn tasks_and_reclaim_are_reported_with_their_pod() {
    // Many of the unknown processes that are killed below may wait to be reaped, for any time: they still count, and
    // must not bring the node near its own limit.
    let Ok(mut node) = Node::new("tasks", 400 * MIB, 4000) else { skip!("no cgroups can be made here") };
    let [forker, reader, idler] = ["forker", "reader", "idler"].map(|name| node.add(pod(name)).unwrap());
    node.pods[forker].group.limit_pids(64).unwrap();
    node.pods[reader].group.limit_memory(32 * MIB).unwrap();
    let mut forks = node.workload(forker, &["forks", "--max", "60"]).unwrap();
    let mut reads = node.workload(reader, &["cache", "--size", "128M"]).unwrap();
    let idle = node.workload(idler, &["hold", "--size", "8M"]).unwrap();
    let mut agent = start(&node);
    for source in ["task", "reclaim"] {
        if !agent.has_backend(source) {
            skip!("the kernel's {source} tracepoints cannot be used here");
        }
    }

    forks.go().unwrap();
    let near = |event: &Event| event.kind() == "task_alarm" && event.text("alarm") == "pids_limit";
    let reported = agent.wait_for("a pod near its limit of tasks", GUARD, near).unwrap();
    assert_eq!((&*reported.pod(), reported.text("container")), ("default/forker", "main"), "{reported:?}");
    assert_eq!(
        (reported.text("limit_scope"), reported.text("pod_uid")),
        ("pod", node.pods[forker].uid()),
        "{reported:?}"
    );
    assert_eq!(
        (reported.number("tasks"), reported.number("tasks_limit")),
        (Some(56), Some(64)),
        "{reported:?}"
    );
    assert_eq!(reported.number("forks_rejected"), Some(0), "reported before a fork fails: {reported:?}");

    reads.go().unwrap();
    // Unknown pods are created, fork and are removed meanwhile; none of this may count for a known pod.
    let start = Instant::now();
    let pod_labels = |pod: &'static str| [("namespace", "default"), ("pod", pod)];
    let (metrics, churned) = {
        let mut churned = 0_u64;
        loop {
            let group =
                node.root().group(format!("kubepods/pod{}", tests::cgroup::pod_uid(900 + churned))).unwrap();
            let container = group.group(tests::cgroup::container_id(900 + churned)).unwrap();
            let mut unknown = Workload::run(&container, ["forks", "--max", "3"]).unwrap();
            unknown.wait_event("forked").unwrap();
            group.destroy().unwrap();
            churned += 1;
            let metrics = agent.metrics().unwrap();
            let stalled =
                metrics.sum("eviction_agent_pod_reclaim_stall_seconds_total", &pod_labels("reader"));
            let forked = metrics.sum("eviction_agent_pod_forks_total", &pod_labels("forker"));
            if stalled > 0.0 && forked >= 60.0 {
                break (metrics, churned);
            }
            assert!(start.elapsed() < GUARD, "stalled {stalled} s, forked {forked}");
        }
    };
    println!("{churned} pods made and removed meanwhile");
    assert_eq!(metrics.sum("eviction_agent_pod_forks_total", &pod_labels("forker")), 60.0);
    let idle_pod = pod_labels("idler");
    for name in ["eviction_agent_pod_reclaim_stall_seconds_total", "eviction_agent_pod_forks_total"] {
        assert_eq!(metrics.sum(name, &idle_pod), 0.0, "{name}");
    }
    assert_eq!(metrics.sum("eviction_agent_pod_reclaim_stall_seconds_total", &pod_labels("forker")), 0.0);
    assert_eq!(metrics.sum("eviction_agent_bpf_events_lost_total", &[]), 0.0);
    assert_eq!(metrics.sum("eviction_agent_task_alarms_total", &[("alarm", "pids_limit")]), 1.0);
    let others = agent.events().unwrap().iter().filter(|event| event.kind() == "task_alarm");
    assert!(others.clone().all(|event| event.pod() == "default/forker"), "{:?}", others.collect::<Vec<_>>());
    drop((forks, reads, idle));
    agent.stop().unwrap();
}
