//! Reports about OOM kills and container terminations: which process the kernel killed, and why each container ended,
//! by real kills in real cgroups.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

const MEMORY: u64 = 320 * MIB;
const LIMIT: u64 = 32;

fn pod(namespace: &'static str, name: &str, containers: &'static [&'static str]) -> PodSpec {
    PodSpec::new(namespace, name, containers, 8)
}

fn start(node: &Node) -> Agent {
    let config = json!({
        "evictionHard": {"memory.available": "16Mi"},
        "evictionSoft": {"memory.available": "128Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
        "evictionMaxPodGracePeriod": 5,
    });
    Options::new(node, &config).unwrap().start().unwrap()
}

fn wait_for_oom_kill(agent: &mut Agent, pid: u32) -> Event {
    let is_match = |event: &Event| event.kind() == "oom_kill" && event.number("pid") == Some(pid.into());
    agent.wait_for("the OOM kill", GUARD, is_match).unwrap()
}

fn wait_for_termination(agent: &mut Agent, pod: &str, container: &str) -> Event {
    let is_match = |event: &Event| {
        event.kind() == "container_terminated" && event.pod() == pod && event.text("container") == container
    };
    agent.wait_for("the termination cause of a container", GUARD, is_match).unwrap()
}

/// Writes into the pods file how the first container of a pod ended, as a kubelet does: in whole seconds.
fn write_status(node: &Node, pod: usize, killed: &Event, terminated: &Value) {
    let file = node.write_pods().unwrap();
    let mut list: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut terminated = terminated.clone();
    terminated["containerID"] = json!(format!("containerd://{}", node.pods[pod].containers[0].id));
    terminated["finishedAt"] = json!(format!("{}Z", &killed.text("at")[..19]));
    list["items"][pod]["status"]["containerStatuses"][0]["state"] = json!({"terminated": terminated});
    let new = file.with_extension("new");
    std::fs::write(&new, list.to_string()).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[test]
fn oom_kills_and_container_terminations_are_attributed_correctly() {
    let Ok(mut node) = Node::new("story", MEMORY, 200) else { skip!("no cgroups can be made here") };
    let web = node.add(pod("shop", "web", &["app"])).unwrap();
    let batch = node.add(pod("batch", "crunch", &["job"])).unwrap();
    let report = node.add(pod("batch", "report", &["job", "hog"])).unwrap();
    for pod in [web, batch, report] {
        node.pods[pod].containers[0].group.limit_memory(LIMIT * MIB).unwrap();
    }
    let mut main = node.workload(web, &["grow", "--size", "256M"]).unwrap();
    let mut parent = node.workload(batch, &["child", "--size", "256M"]).unwrap();
    let mut job = node.workload(report, &["--on-term", "ignore", "grow", "--size", "256M"]).unwrap();
    let second = &node.pods[report].containers[1].group;
    let mut hog = Workload::start(second, ["--on-term", "ignore", "hold", "--size", "230M"]).unwrap();
    let mut agent = start(&node);
    if !agent.has_backend("oom") {
        skip!("no source of OOM kills can be used here");
    }

    // The kernel kills a child: the container continues.
    parent.go().unwrap();
    let child = parent.wait_event("child").unwrap()["child"].as_u64().unwrap();
    let reported = wait_for_oom_kill(&mut agent, u32::try_from(child).unwrap());
    assert_eq!(
        (reported.text("victim"), reported.text("limit_scope")),
        ("child", "container"),
        "{reported:?}"
    );
    assert_eq!((&*reported.pod(), reported.text("container")), ("batch/crunch", "job"));
    assert!(parent.process().is_running().unwrap());

    // The kernel kills the main process: the container ended by it, and the kubelet's status has the same reason.
    main.go().unwrap();
    let reported = wait_for_oom_kill(&mut agent, main.pid());
    assert_eq!(
        (reported.text("victim"), reported.text("limit_scope")),
        ("init", "container"),
        "{reported:?}"
    );
    write_status(&node, web, &reported, &json!({"exitCode": 137, "reason": "OOMKilled"}));
    let end = wait_for_termination(&mut agent, "shop/web", "app");
    assert_eq!((end.text("cause"), end.text("limit_scope")), ("oom_killed", "container"), "{end:?}");
    assert_eq!(end.value["inferred"], false, "{end:?}");
    assert_eq!((&end.value["exit_code"], end.text("reason")), (&json!(137), "OOMKilled"), "{end:?}");
    assert_eq!(end.value.get("contributing"), None, "{end:?}");

    // The kernel kills inside a pod that is being evicted: the killed container has both causes, in order, the other
    // one only the eviction.
    hog.go().unwrap();
    let decided = agent.wait_for_decision().unwrap();
    assert_eq!(decided.pod(), "batch/report");
    job.go().unwrap();
    let reported = wait_for_oom_kill(&mut agent, job.pid());
    assert_eq!(
        (reported.text("victim"), reported.number("during_eviction")),
        ("init", decided.number("id")),
        "{reported:?}"
    );
    let end = wait_for_termination(&mut agent, "batch/report", "job");
    assert_eq!(end.text("cause"), "evicted_by_agent", "{end:?}");
    assert_eq!(
        (&end.value["contributing"], end.text("limit_scope")),
        (&json!(["oom_killed"]), "container"),
        "{end:?}"
    );
    let evidence: Vec<&String> = end.value["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| it.as_object().unwrap().keys())
        .collect();
    assert_eq!(evidence[..2], ["agent_evicts", "kernel_kills"], "in order");
    let end = wait_for_termination(&mut agent, "batch/report", "hog");
    assert_eq!((end.text("cause"), end.value.get("contributing")), ("evicted_by_agent", None), "{end:?}");

    let metrics = agent.metrics().unwrap();
    let ended = |cause, contributing| {
        let labels = [("cause", cause), ("contributing", contributing)];
        metrics.sum("eviction_agent_container_terminations_total", &labels)
    };
    assert_eq!(ended("oom_killed", ""), 1.0);
    assert_eq!((ended("evicted_by_agent", "oom_killed"), ended("evicted_by_agent", "")), (1.0, 1.0));
    assert_eq!(metrics.sum("eviction_agent_container_terminations_total", &[]), 3.0, "the parent's goes on");
    assert_eq!(metrics.sum("eviction_agent_oom_kills_total", &[("limit_scope", "container")]), 3.0);
    let by_kernel: u64 = [web, batch, report].map(|pod| node.pods[pod].oom_kills().unwrap()).iter().sum();
    assert_eq!(by_kernel, 3, "as the kernel counts");
    assert_eq!(metrics.sum("eviction_agent_evictions_total", &[]), 1.0);
    assert!(parent.process().is_running().unwrap());
    agent.stop().unwrap();
}
