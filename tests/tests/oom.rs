//! OOM kills as the agent reports them: each one, with the right victim and the right owner of the limit; and those
//! that no program saw.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;

fn node() -> Option<Node> {
    let mut node = Node::new("kills", 256 * MIB, 100).ok()?;
    let pod = PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", "web", &["app", "proxy"], 8) };
    node.add(pod).unwrap();
    Some(node)
}

fn start(node: &Node, more: &[String]) -> Agent {
    let kubelet = json!({"evictionHard": {"memory.available": "1Mi"}});
    let options = Options { action: "none", more: more.to_vec(), ..Options::new(node, &kubelet).unwrap() };
    options.start().unwrap()
}

/// Runs a process in the container `app` until the kernel kills it at the container's limit. Returns its pid.
fn cause_oom_kill(node: &Node) -> u32 {
    let group = &node.pods[0].containers[0].group;
    let before = group.oom_kills().unwrap();
    let mut process = node.run(0, &["grow", "--size", "64M"]).unwrap();
    process.process().wait().unwrap();
    assert_eq!(group.oom_kills().unwrap(), before + 1, "the kernel counts it");
    process.pid()
}

fn is_oom_kill(event: &Event) -> bool {
    event.kind() == "oom_kill"
}

#[test]
fn each_oom_kill_at_a_container_or_pod_limit_is_reported_once() {
    let Some(node) = node() else { skip!("no cgroups can be made here") };
    // A lockdown withholds what the programs need.
    if !start(&node, &[]).has_backend("oom") {
        skip!("no source of OOM kills can be used here");
    }
    drop(node);
    let output = Command::new(tests::binary::find("bench_oom").unwrap())
        .args(["--json", "--kills", "60", "--pods", "5", "--groups", "2", "--agent"])
        .arg(agent::binary().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let killed = |case: &str| {
        let row = rows.iter().find(|row| row["case"] == case);
        row.map_or(0, |row| row["killed"].as_u64().unwrap())
    };
    let of_levels = ["container", "container, removed at once", "pod"].map(killed);
    assert!(of_levels.iter().all(|killed| *killed > 0), "{of_levels:?}");
    assert_eq!(of_levels.iter().sum::<u64>(), 60);
}

#[test]
fn an_oom_kill_missed_by_bpf_is_reported_from_kernel_counters() {
    let Some(node) = node() else { skip!("no cgroups can be made here") };
    // Disables all backends that there are.
    let mut disabled = Vec::new();
    let mut agent = start(&node, &disabled);
    while agent.has_backend("oom") {
        disabled.extend(["--disable-backend".to_owned(), agent.backend("oom").unwrap()]);
        agent.stop().unwrap();
        agent = start(&node, &disabled);
    }
    cause_oom_kill(&node);
    let reported = agent.wait_for("of the kill", GUARD, is_oom_kill).unwrap();
    assert_eq!(reported.number("unattributed"), Some(1), "{reported:?}");
    assert_eq!((&*reported.pod(), reported.text("container")), ("shop/web", "app"));
    assert_eq!(reported.value.get("pid"), None, "the victim was not seen: {reported:?}");
    assert!(["memory.oom_control", "memory.events"].contains(&reported.text("detected_by")), "{reported:?}");
    let metrics = agent.metrics().unwrap();
    let labels = [("namespace", "shop"), ("detected_by", reported.text("detected_by"))];
    assert!((metrics.sum("eviction_agent_oom_kills_unattributed_total", &labels) - 1.0).abs() < 0.5);
    let noticed = metrics.sum("eviction_agent_syncs_total", &[("trigger", "memcg_oom_event")]);
    assert!(noticed > 0.5, "the kernel's own notice woke it");
    let of_shop = [("namespace", "shop")];
    assert!((metrics.sum("eviction_agent_oom_kills_total", &of_shop) - 1.0).abs() < 0.5);
    agent.stop().unwrap();
}

#[test]
fn an_oom_kill_reported_by_bpf_is_counted_once() {
    let Some(node) = node() else { skip!("no cgroups can be made here") };
    let mut agent = start(&node, &[]);
    if !agent.has_backend("oom") {
        skip!("no source of OOM kills can be used here");
    }
    let pid = cause_oom_kill(&node);
    let reported = agent.wait_for("of the kill", GUARD, is_oom_kill).unwrap();
    assert_eq!(reported.number("pid"), Some(pid.into()));
    assert_eq!(reported.text("limit_scope"), "container");
    assert_eq!(reported.number("trigger_pid"), Some(pid.into()));
    assert!(
        !reported.text("detected_by").is_empty() && reported.number("unattributed").is_none(),
        "{reported:?}"
    );
    // Longer than the time from one full sample to the next.
    std::thread::sleep(Duration::from_secs(13));
    let kills = agent.events().unwrap().iter().filter(|event| is_oom_kill(event)).count();
    assert_eq!(kills, 1);
    let counted = agent.metric("eviction_agent_vmstat_oom_kills", &[]).unwrap();
    assert!(counted > 0.5, "the kernel has counted it as well: {counted}");
    agent.stop().unwrap();
}
