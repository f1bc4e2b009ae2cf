//! Prometheus' own checks of the metrics that a real agent exports, in both text formats.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;
use tests::agent::{Agent, Options};
use tests::metrics;
use tests::node::{MIB, Node, PodSpec};
use tests::prometheus::promtool;
use tests::skip;

fn scrape(agent: &Agent, accept: &str) -> String {
    let accept = format!("Accept: {accept}\r\n");
    metrics::request(agent.address().unwrap(), "/metrics", &accept).unwrap().1
}

/// Starts an agent on a node with a pod.
fn start(label: &str) -> Option<(Node, Agent)> {
    let mut node = Node::new(label, 256 * MIB, 200).ok()?;
    node.add(PodSpec::new("shop", "web", &["main"], 8)).unwrap();
    node.write_pods().unwrap();
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi", "pid.available": "10%"}});
    let agent = Options::new(&node, &kubelet).unwrap().start().unwrap();
    Some((node, agent))
}

#[test]
fn promtool_accepts_a_scrape() {
    let Some(promtool) = promtool() else {
        skip!("there is no promtool: `cargo xtask test` unpacks Debian's package prometheus")
    };
    let Some((_node, agent)) = start("promtool") else { skip!("no cgroups can be made here") };
    let text = scrape(&agent, "text/plain");
    let mut check = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let found = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && found.is_empty(), "{found}\n{text}");

    // `check metrics` reads the older format only; the command that creates blocks reads OpenMetrics, with a time for
    // each sample.
    let open = scrape(&agent, "application/openmetrics-text; version=1.0.0");
    let stamped: Vec<_> = open
        .lines()
        .map(|line| if line.starts_with('#') { line.to_owned() } else { format!("{line} 1700000000") })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    fs::write(&file, stamped.join("\n") + "\n").unwrap();
    let output = Command::new(&promtool)
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .arg(&file)
        .arg(folder.path().join("blocks"))
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{found}\n{open}");
    agent.stop().unwrap();
}

#[test]
fn a_scrape_is_sorted_and_counters_exist_before_their_first_event() {
    let Some((_node, agent)) = start("scrape") else { skip!("no cgroups can be made here") };
    let text = scrape(&agent, "text/plain");
    let has = |line: &str| text.lines().any(|found| found == line);
    assert!(
        has("eviction_agent_evictions_total{eviction_signal=\"memory.available\",namespace=\"shop\"} 0"),
        "{text}"
    );
    assert!(has("eviction_agent_oom_kills_total{limit_scope=\"container\",namespace=\"shop\"} 0"), "{text}");
    let threshold = "eviction_agent_threshold_bytes{eviction_signal=\"memory.available\",threshold=\"hard\",source=\"agent\"}";
    assert!(has(&format!("{threshold} {}", 64 * MIB)), "{text}");
    assert!(!text.contains("_kube_") && !text.contains("node_status"), "{text}");
    assert!(text.contains("\nprocess_open_fds "), "{text}");
    let mut names = text.lines().filter_map(|line| line.split(['{', ' ']).next());
    assert!(!names.any(|name| name.ends_with("_created")), "the older form has no such series");
    let open = scrape(&agent, "application/openmetrics-text; version=1.0.0");
    let names: Vec<_> =
        open.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    assert!(names.is_sorted() && names.len() > 50, "{names:?}");
    assert!(
        open.contains(
            "\neviction_agent_evictions_created{eviction_signal=\"memory.available\",namespace=\"shop\"} "
        ),
        "{open}"
    );
    agent.stop().unwrap();
}
