//! The agent with a real API server: it decides on real cgroups, and requests evictions.

use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::workload::Workload;

use crate::fixture;
use crate::testbed::{Testbed, pod};

/// Creates a node with these pods, in a cluster that has them.
pub(crate) fn testbed(pods: &[&str]) -> Option<Testbed> {
    Testbed::new("evict", pods.iter().map(|name| pod(name)))
}

/// Returns the agent's configuration with these `eviction` settings.
pub(crate) fn config(eviction: &Value) -> Value {
    json!({
        "profile": "Enhanced",
        "policy": {"soft": {"evictPodsWithoutController": true}},
        "eviction": eviction,
        "thresholdMargin": {"mode": "Never"},
    })
}

/// Returns the options of an agent that reads its pods from a file, with this port as the API server's. It has no
/// right but those that evictions need.
pub(crate) fn options(testbed: &Testbed, kubelet: &Value, eviction: &Value, port: u16) -> Options {
    restrict_rights(testbed);
    let config = Some(testbed.node.write_agent_config(&config(eviction)).unwrap());
    let options = Options::new(&testbed.node, kubelet).unwrap();
    Options { config, action: "evict", ..options }.with_path("--kubeconfig", testbed.kubeconfig(port))
}

fn restrict_rights(testbed: &Testbed) {
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ]);
    testbed.cluster.set_rules(&testbed.account.name, &rules).unwrap();
    let client = testbed.cluster.client(&testbed.account.token).unwrap();
    let is_refused = || Ok((client.get("/api/v1/nodes")?.status == 403).then_some(()));
    fixture::interrupt().until("the other rights are gone", GUARD, is_refused).unwrap();
}

fn start(testbed: &Testbed, kubelet: &Value, eviction: &Value) -> Agent {
    fixture::start(&options(testbed, kubelet, eviction, testbed.cluster.port()))
}

pub(crate) fn hard() -> Value {
    json!({"evictionHard": {"memory.available": "64Mi"}})
}

fn soft() -> Value {
    json!({
        "evictionHard": {"memory.available": "16Mi"},
        "evictionSoft": {"memory.available": "64Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
    })
}

pub(crate) fn wait_for_result(agent: &mut Agent, pod: &str, result: &str) -> Event {
    agent.wait_for_result(&format!("default/{pod}"), result).unwrap()
}

#[test]
fn a_hog_is_evicted_and_in_flight_until_its_pod_is_removed() {
    let Some(mut testbed) = testbed(&["hog", "quiet"]) else { return };
    let mut agent = start(&testbed, &hard(), &json!({}));
    let mut hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "accepted");
    let pod = testbed.pod("hog");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1, "{pod}");
    assert!(hog.process().is_running().unwrap(), "that is the kubelet's to end");
    assert!(!testbed.is_terminating("quiet"), "the in-flight eviction makes up for the deficit");
    // As a kubelet does in the end.
    let process = hog.process().child();
    process.kill().unwrap();
    // The memory is back before the object is removed.
    process.wait().unwrap();
    testbed.remove_first_pod("hog");
    wait_for_result(&mut agent, "hog", "terminated");
    let labels = [("eviction_signal", "memory.available"), ("namespace", "default")];
    assert_eq!(agent.metric("eviction_agent_evictions_total", &labels).unwrap(), 1.0);
    assert_eq!(agent.count_decisions().unwrap(), 1);
    agent.stop().unwrap();
}

#[test]
fn the_agent_evicts_before_the_kubelets_threshold_is_met() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let options = options(&testbed, &hard(), &json!({}), testbed.cluster.port());
    let mut config = config(&json!({}));
    config["thresholdMargin"] = json!({});
    testbed.node.write_agent_config(&config).unwrap();
    let mut agent = fixture::start(&options);
    // Some 80 MiB are left of 320: more than the kubelet's 64Mi, less than the 96Mi of the agent.
    let _hog = testbed.hog(0, "238M");
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("quiet"));
    agent.stop().unwrap();
}

#[test]
fn a_soft_threshold_evicts_the_next_pod_if_a_pdb_refuses() {
    let Some(testbed) = testbed(&["web", "next"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = start(&testbed, &soft(), &json!({}));
    let _hogs = [testbed.hog(0, "150M"), testbed.hog(1, "120M")];
    let refused = wait_for_result(&mut agent, "web", "pdb_denied");
    assert!(refused.text("reason").contains("one"), "{refused:?}");
    wait_for_result(&mut agent, "next", "accepted");
    assert!(testbed.is_terminating("next") && !testbed.is_terminating("web"));
    assert_eq!(testbed.pod("next")["metadata"]["deletionGracePeriodSeconds"], 30);
    agent.stop().unwrap();
}

/// Starts a hog that meets the soft threshold, and waits until its pod is terminating.
fn evict_for_soft_threshold(testbed: &Testbed, agent: &mut Agent) -> Workload {
    let hog = testbed.hog(0, "262M");
    wait_for_result(agent, "hog", "accepted");
    assert_eq!(testbed.pod("hog")["metadata"]["deletionGracePeriodSeconds"], 30);
    hog
}

#[test]
fn a_hard_threshold_shortens_the_grace_period_of_a_soft_eviction() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let mut agent = start(&testbed, &soft(), &json!({}));
    let _hog = evict_for_soft_threshold(&testbed, &mut agent);
    let _more = testbed.hog(0, "45M");
    let is_short = || {
        let grace = &testbed.pod("hog")["metadata"]["deletionGracePeriodSeconds"];
        Ok((grace == 1).then_some(()))
    };
    fixture::interrupt().until("the shorter grace period", GUARD, is_short).unwrap();
    assert!(!testbed.is_terminating("quiet"));
    agent.stop().unwrap();
}

#[test]
fn an_eviction_goes_on_if_its_grace_period_cannot_be_shortened() {
    let Some(mut testbed) = testbed(&["hog", "quiet"]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = fixture::start(&options(&testbed, &soft(), &json!({}), proxy.port()));
    let hog = evict_for_soft_threshold(&testbed, &mut agent);
    proxy.on(When::any().method(Method::POST), Fault::status(403));
    let more = testbed.hog(0, "45M");
    wait_for_result(&mut agent, "hog", "rejected");
    proxy.heal();
    drop(more);
    testbed.kill_hog(hog);
    testbed.remove_first_pod("hog");
    wait_for_result(&mut agent, "hog", "terminated");
    assert!(!testbed.is_terminating("quiet"));
    agent.stop().unwrap();
}

#[test]
fn a_hard_threshold_deletes_the_only_pod_if_its_pdb_refuses() {
    let Some(testbed) = testbed(&["web"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = start(&testbed, &hard(), &json!({}));
    let _hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "web", "pdb_denied");
    let accepted = wait_for_result(&mut agent, "web", "accepted");
    assert_eq!(accepted.text("reason"), "request: deletion");
    let pod = testbed.pod("web");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "TerminationByEvictionAgent");
    assert!(testbed.is_terminating("web"));
    agent.stop().unwrap();
}

#[test]
fn a_hard_threshold_respects_a_pdb_if_configured() {
    let Some(testbed) = testbed(&["web"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = start(&testbed, &hard(), &json!({"hardIgnoresPDB": false}));
    let _hog = testbed.hog(0, "270M");
    let first = wait_for_result(&mut agent, "web", "pdb_denied");
    // The agent asks again, and the PDB refuses again.
    let is_later = |event: &Event| {
        event.text("result") == "pdb_denied" && event.number("mono_ns") > first.number("mono_ns")
    };
    agent.wait_for("the budget's second no", GUARD, is_later).unwrap();
    assert!(!testbed.is_terminating("web"));
    agent.stop().unwrap();
}

#[test]
fn evict_and_kill_mode_kills_the_evicted_pod() {
    let Some(testbed) = testbed(&["hog", "quiet"]) else { return };
    let mut quiet = testbed.hog(1, "8M");
    let mut agent = start(&testbed, &hard(), &json!({"hardMode": "EvictAndKill"}));
    let mut hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "killed");
    wait_for_result(&mut agent, "hog", "terminated");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(hog.process().wait().unwrap().signal(), Some(9));
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("quiet"));
    assert!(quiet.process().is_running().unwrap());
    agent.stop().unwrap();
}

#[test]
fn a_server_dry_run_reports_the_response_and_evicts_no_pod() {
    let Some(testbed) = testbed(&["hog"]) else { return };
    let before = testbed.pod("hog");
    let mut options = options(&testbed, &hard(), &json!({}), testbed.cluster.port());
    options.more.push("--dry-run=server".to_owned());
    let mut agent = fixture::start(&options);
    let mut hog = testbed.hog(0, "270M");
    assert_eq!(wait_for_result(&mut agent, "hog", "dry_run").text("reason"), "accepted");
    assert_eq!(testbed.pod("hog"), before);
    assert!(hog.process().is_running().unwrap());
    agent.stop().unwrap();
}
