//! /metrics of a running agent while the node changes.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::agent::{Agent, GUARD, Options};
use tests::metrics::Metrics;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;

/// The signal with the limit of `kubepods` as its capacity.
const SIGNAL: &str = "allocatableMemory.available";
const LIMIT: u64 = 128 * MIB;
const OOM_KILLS: &str = "eviction_agent_oom_kills_total";

fn start(node: &Node, kubelet: &Value) -> Agent {
    Options { action: "none", ..Options::new(node, kubelet).unwrap() }.start().unwrap()
}

/// Reads the metrics until a page fits, and returns that page.
fn until(agent: &Agent, what: &str, fits: impl Fn(&Metrics) -> bool) -> Metrics {
    let start = Instant::now();
    loop {
        let page = agent.metrics().unwrap();
        if fits(&page) {
            return page;
        }
        assert!(start.elapsed() < GUARD, "{what}: {}", page.nonzero_series("eviction_agent_"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_signal_has_no_series_while_its_cgroup_is_missing() {
    let Ok(mut node) = Node::new("series", 512 * MIB, 400) else { skip!("no cgroups can be made here") };
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    node.root().group("kubepods").unwrap().limit_memory(LIMIT).unwrap();
    let kubelet = json!({
        "evictionHard": {"memory.available": "40Mi", "pid.available": "20"},
        "enforceNodeAllocatable": ["pods"],
    });
    let agent = start(&node, &kubelet);
    let names = ["signal_available_bytes", "signal_capacity_bytes", "threshold_met"]
        .map(|name| format!("eviction_agent_{name}"));
    let labels = [("eviction_signal", SIGNAL)];
    let series = |page: &Metrics| names.iter().filter(|name| page.has_series(name, &labels)).count();
    let errors = |page: &Metrics| page.sum("eviction_agent_signal_read_errors_total", &labels);

    let page = until(&agent, "the series", |page| series(page) == names.len());
    assert_eq!(
        page.sum("eviction_agent_signal_capacity_bytes", &labels),
        f64::from(u32::try_from(LIMIT).unwrap())
    );
    let before = errors(&page);
    let pod = node.pods.pop().unwrap();
    node.root().group("kubepods").unwrap().destroy().unwrap();
    let page = until(&agent, "no series, and an error", |page| series(page) == 0 && errors(page) > before);
    assert!(
        page.has_series("eviction_agent_signal_available_bytes", &[("eviction_signal", "memory.available")])
    );

    drop(pod);
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    node.root().group("kubepods").unwrap().limit_memory(LIMIT).unwrap();
    node.write_pods().unwrap();
    until(&agent, "the series again", |page| series(page) == names.len());
    agent.stop().unwrap();
}

/// Writes a pods file with one pod in each of these namespaces.
fn write_pods(node: &Node, namespaces: &[String]) {
    let pod = |namespace: &String| {
        let uid: String = namespace.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let metadata = json!({"name": "web", "namespace": namespace, "uid": uid});
        json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}})
    };
    let items: Vec<Value> = namespaces.iter().map(pod).collect();
    let half = node.file("pods.json.half");
    fs::write(&half, json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()).unwrap();
    fs::rename(half, node.file("pods.json")).unwrap();
}

#[test]
fn the_number_of_namespaces_in_metrics_is_bounded() {
    const ROUNDS: usize = 40;
    const EACH: usize = 20;
    let Ok(node) = Node::new("namespaces", 256 * MIB, 200) else { skip!("no cgroups can be made here") };
    let kubelet = json!({"evictionHard": {"memory.available": "40Mi", "pid.available": "20"}});
    let agent = start(&node, &kubelet);
    let is_counted = |page: &Metrics, namespace: &str| {
        page.has_series(OOM_KILLS, &[("namespace", namespace), ("limit_scope", "container")])
    };

    // No API server accepts these names, but a file may have them.
    let odd = ["a \"quoted\" one", "two\nlines", "back\\slash", &"x".repeat(253)].map(str::to_owned);
    write_pods(&node, &odd);
    until(&agent, "odd names", |page| odd.iter().all(|name| is_counted(page, name)));

    let name = |nth: usize| format!("n{nth}");
    let mut most = 0;
    for round in 0..ROUNDS {
        let namespaces: Vec<_> = (round * EACH..(round + 1) * EACH).map(name).collect();
        write_pods(&node, &namespaces);
        let last = &namespaces[EACH - 1];
        let page = until(&agent, last, |page| is_counted(page, last) || is_counted(page, "_other"));
        let counted: BTreeSet<_> = page.values(OOM_KILLS, "namespace").collect();
        most = most.max(counted.len());
    }
    // The limit, the name of unknown pods, and that of all others.
    assert_eq!(most, 512 + 2);
    let page = agent.metrics().unwrap();
    assert!(odd.iter().all(|name| is_counted(&page, name)), "counters stay");
    assert!(is_counted(&page, "n0") && !is_counted(&page, &name(ROUNDS * EACH - 1)));
    agent.stop().unwrap();
}
