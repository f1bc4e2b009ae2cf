//! Reports about memory limits: which container comes near one, which is away from it again, and how long it was near
//! when the kernel killed. The agent also decides at the limit of all pods together.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::Workload;

const CONTAINERS: &[&str] = &["main", "side"];

fn pod(name: &str, limit_mib: Option<u64>) -> PodSpec {
    PodSpec { limit_mib, ..PodSpec::new("shop", name, CONTAINERS, 8) }
}

fn start(node: &Node, config: &Value) -> Agent {
    let options = Options { action: "none", ..Options::new(node, config).unwrap() };
    options.start().unwrap()
}

fn config_without_pressure() -> Value {
    json!({"evictionHard": {"memory.available": "16Mi", "pid.available": "20"}})
}

fn is_limit_event(event: &Event, state: &str, owner: &str) -> bool {
    event.kind() == "memory_limit" && (event.text("state"), event.text("limit_scope")) == (state, owner)
}

/// Waits until so many limits of this level are in this state. Where nothing more is charged, only a full sample,
/// every ten seconds, finds that a limit is no longer near; a changed limit may take twelve full samples.
fn wait_for_limits(agent: &Agent, owner: &str, state: &str, expected: f64) {
    let labels = [("level", owner), ("state", state)];
    agent.wait_for_metric("eviction_agent_memory_limits", &labels, |found| found == expected).unwrap();
}

#[test]
fn a_container_is_reported_near_and_away_from_its_limit_and_at_its_kill() {
    let Ok(mut node) = Node::new("limits", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let web = node.add(pod("web", Some(100))).unwrap();
    let free = node.add(pod("free", None)).unwrap();
    let other_usage = node.hold(free, "100M").unwrap();
    let base = node.hold(web, "60M").unwrap();
    let mut agent = start(&node, &config_without_pressure());
    wait_for_limits(&agent, "container", "watched", 2.0);
    wait_for_limits(&agent, "pod", "watched", 1.0);
    let backend = agent.backend("charge").unwrap();
    let has_backend = agent.has_backend("charge");
    if has_backend {
        wait_for_limits(&agent, "container", "armed", 2.0);
        wait_for_limits(&agent, "pod", "armed", 1.0);
    }
    assert!(
        agent.events().unwrap().iter().all(|event| event.kind() != "memory_limit"),
        "no cgroup is near its limit"
    );

    let more = node.hold(web, "33M").unwrap();
    let near = agent
        .wait_for("that the limit is near", GUARD, |event| is_limit_event(event, "near", "container"))
        .unwrap();
    assert_eq!((&*near.pod(), near.text("container")), ("shop/web", "main"), "{near:?}");
    assert_eq!(
        (near.text("pod_uid"), near.number("limit")),
        (node.pods[web].uid(), Some(100 * MIB)),
        "{near:?}"
    );
    assert!(near.number("working_set").is_some_and(|bytes| bytes >= 90 * MIB), "{near:?}");
    assert!(near.number("usage").is_some_and(|bytes| bytes <= 100 * MIB), "{near:?}");
    if has_backend {
        // The growth is over in some milliseconds, and the next full sample is far away: a BPF program reported it.
        assert_eq!(near.text("detected_by"), backend, "{near:?}");
        assert!(near.number("crossed_mono_ns").unwrap() <= near.number("mono_ns").unwrap(), "{near:?}");
    }
    wait_for_limits(&agent, "container", "near", 1.0);

    drop(more);
    let away = agent
        .wait_for("that it is so no more", GUARD, |event| is_limit_event(event, "away", "container"))
        .unwrap();
    assert_eq!((&*away.pod(), away.text("container")), ("shop/web", "main"), "{away:?}");
    assert!(away.number("working_set").is_some_and(|bytes| bytes < 85 * MIB), "{away:?}");
    assert!(away.number("near_limit_us").is_some_and(|us| us > 0), "{away:?}");
    wait_for_limits(&agent, "container", "near", 0.0);

    let side = &node.pods[web].containers[1].group;
    let mut grower = Workload::run(side, ["grow", "--size", "200M", "--rate", "60M"]).unwrap();
    let is_oom_kill = |event: &Event| event.kind() == "oom_kill" && event.text("container") == "side";
    if agent.has_backend("oom") {
        let kill = agent.wait_for("the kill", GUARD, is_oom_kill).unwrap();
        assert_eq!((kill.text("limit_scope"), &*kill.pod()), ("container", "shop/web"), "{kill:?}");
        if has_backend {
            assert!(kill.number("near_limit_us").is_some_and(|us| us > 0), "{kill:?}");
        }
    }
    grower.process().wait().unwrap();
    let transitions = |agent: &Agent, state| {
        let labels = [("level", "container"), ("state", state)];
        agent.metric("eviction_agent_memory_limit_transitions_total", &labels).unwrap()
    };
    if has_backend {
        assert_eq!(transitions(&agent, "near"), 2.0);
    }
    assert!(transitions(&agent, "away") >= 1.0);
    let reported = agent.events().unwrap().iter().filter(|event| event.kind() == "memory_limit");
    assert!(reported.clone().all(|event| event.pod() == "shop/web"), "{:?}", reported.collect::<Vec<_>>());
    let decided = agent.count_decisions().unwrap();
    assert_eq!(decided, 0, "nothing is decided by it");
    drop((other_usage, base));
    agent.stop().unwrap();
}

#[test]
fn changed_limits_are_detected_and_removed_cgroups_are_no_longer_watched() {
    let Ok(mut node) = Node::new("limits", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let web = node.add(pod("web", Some(100))).unwrap();
    let removed = node.add(pod("gone", Some(64))).unwrap();
    let base = node.hold(web, "60M").unwrap();
    let full = node.hold(removed, "60M").unwrap();
    let mut agent = start(&node, &config_without_pressure());
    let is_near_removed =
        |event: &Event| is_limit_event(event, "near", "container") && event.pod() == "shop/gone";
    agent.wait_for("the container that is near its limit at the start", GUARD, is_near_removed).unwrap();

    // As when a pod is resized in place.
    let container = &node.pods[web].containers[0].group;
    container.limit_memory(64 * MIB).unwrap();
    let is_of_web = |event: &Event| event.pod() == "shop/web" && event.text("container") == "main";
    let near = agent.wait_for("the lower limit", GUARD, |event| {
        is_limit_event(event, "near", "container") && is_of_web(event)
    });
    assert_eq!(near.unwrap().number("limit"), Some(64 * MIB));
    container.limit_memory(160 * MIB).unwrap();
    let away = agent.wait_for("the higher limit", GUARD, |event| {
        is_limit_event(event, "away", "container") && is_of_web(event)
    });
    assert_eq!(away.unwrap().number("limit"), Some(160 * MIB));

    drop(full);
    node.pods[removed].group.destroy().unwrap();
    wait_for_limits(&agent, "container", "watched", 2.0);
    wait_for_limits(&agent, "container", "near", 0.0);
    wait_for_limits(&agent, "pod", "watched", 1.0);
    drop(base);
    agent.stop().unwrap();
}

#[test]
fn the_agent_decides_at_the_node_allocatable_limit() {
    let Ok(mut node) = Node::new("limits", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    let web = node.add(pod("web", None)).unwrap();
    let pods = node.root().group("kubepods").unwrap();
    pods.limit_memory(200 * MIB).unwrap();
    let base = Workload::hold(&node.pods[web].containers[1].group, "80M").unwrap();
    let mut config = config_without_pressure();
    config["evictionHard"]["memory.available"] = json!("40Mi");
    config["enforceNodeAllocatable"] = json!(["pods"]);
    let mut agent = start(&node, &config);
    let grower = node.run(web, &["grow", "--size", "110M", "--rate", "200M"]).unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!((decision.text("signal"), &*decision.pod()), ("allocatableMemory.available", "shop/web"));
    let available = decision.value.get("available").and_then(Value::as_i64).unwrap();
    assert!(available < 40 * MIB as i64, "{decision:?}");
    if agent.has_backend("charge") {
        assert!(
            decision.number("crossed_mono_ns").is_some() || decision.text("detected_by") == "timer",
            "{decision:?}"
        );
    }
    let is_met = |event: &Event| event.kind() == "threshold" && event.text("signal") == "memory.available";
    assert!(!agent.events().unwrap().iter().any(is_met), "the node itself has enough");
    let signal = [("eviction_signal", "allocatableMemory.available")];
    let metrics = agent.metrics().unwrap();
    assert_eq!(metrics.sum("eviction_agent_signal_capacity_bytes", &signal), 200.0 * MIB as f64);
    assert!(metrics.sum("eviction_agent_signal_available_bytes", &signal) < 40.0 * MIB as f64);
    // Less than a tenth of the limit is left: the agent reports that as well.
    let near = agent
        .wait_for("that the limit is near", GUARD, |event| is_limit_event(event, "near", "kubepods"))
        .unwrap();
    assert_eq!((near.number("limit"), &*near.pod()), (Some(200 * MIB), ""));
    drop((base, grower));
    let cleared = |event: &Event| {
        event.is_threshold("cleared") && event.text("signal") == "allocatableMemory.available"
    };
    agent.wait_for("the end of the pressure", GUARD, cleared).unwrap();
    agent.stop().unwrap();
}

#[test]
fn truncated_cgroup_paths_are_counted_and_the_pod_is_still_selected() {
    let Ok(mut node) = Node::new("deep", 256 * MIB, 400) else { skip!("no cgroups can be made here") };
    let web = node.add(pod("web", None)).unwrap();
    let deep = node.pods[web].containers[0].group.group(["g"; 30].join("/")).unwrap();
    let mut hog = Workload::start(&deep, ["grow", "--size", "250M"]).unwrap();
    let mut agent = start(&node, &json!({"evictionHard": {"memory.available": "96Mi"}}));
    if !agent.has_backend("charge") {
        skip!("no BPF program for charges can be used here");
    }
    hog.go().unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/web");
    agent.wait_for_metric("eviction_agent_bpf_paths_truncated_total", &[], |count| count > 0.0).unwrap();
}
