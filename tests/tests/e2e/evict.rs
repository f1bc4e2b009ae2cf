//! The agent with a real API server: it decides on real cgroups, and requests evictions.

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::cluster::proxy::Proxy;
use tests::cluster::{self, Cluster, manifest};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;

use crate::fixture;
use crate::node_conditions;

const MEMORY: u64 = 320 * MIB;
const PIDS: u64 = 200;

pub(crate) struct Testbed {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
    margin: Value,
}

impl Testbed {
    /// Creates a node with these pods, in a cluster that has them.
    pub(crate) fn new(pods: &[&str]) -> Option<Self> {
        let cluster = fixture::cluster(&cluster::Options::default())?;
        let mut node = tests::or_skip!(Node::new("evict", MEMORY, PIDS), "no cgroups can be made here");
        cluster.add_node("n1").unwrap();
        for name in pods {
            let spec = PodSpec::new("default", *name, &["main"], 8);
            cluster.place_pod(&manifest::pod(name, "n1"), &mut node, spec).unwrap();
        }
        Some(Self { cluster, node, margin: json!({"mode": "Never"}) })
    }

    /// Starts an agent with the rights to evict and to delete pods.
    fn start(&self, kubelet: &Value, eviction: &Value) -> Agent {
        let options = self.options(kubelet, eviction, self.cluster.port());
        Agent::start_recorded(&options, fixture::interrupt()).unwrap()
    }

    /// Starts an agent with the hard threshold that uses the proxy as the API server.
    pub(crate) fn start_at(&self, proxy: &Proxy, eviction: &Value) -> Agent {
        let options = self.options(&hard(), eviction, proxy.port());
        Agent::start_recorded(&options, fixture::interrupt()).unwrap()
    }

    /// Returns the options of an agent that uses this port as the API server's.
    pub(crate) fn options(&self, kubelet: &Value, eviction: &Value, port: u16) -> Options {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        ]);
        self.options_with(&rules, kubelet, eviction, port)
    }

    /// Returns the options of an agent that reads its pods and its node from the server.
    pub(crate) fn watching_options(&self, kubelet: &Value, eviction: &Value, port: u16) -> Options {
        let mut options = self.options_with(&node_conditions::rules(), kubelet, eviction, port);
        options.pods = None;
        options.more.extend(["--node-name", "n1"].map(str::to_owned));
        options
    }

    fn options_with(&self, rules: &Value, kubelet: &Value, eviction: &Value, port: u16) -> Options {
        let account = self.cluster.account("agent", rules).unwrap();
        let kubeconfig = self.cluster.kubeconfig_at(&account.name, &account.token, port).unwrap();
        let config = json!({
            "profile": "Enhanced",
            "policy": {"soft": {"evictPodsWithoutController": true}},
            "eviction": eviction,
            "thresholdMargin": self.margin,
        });
        let config = Some(self.node.write_agent_config(&config).unwrap());
        let more = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
        Options { config, action: "evict", more, ..Options::new(&self.node, kubelet).unwrap() }
    }

    pub(crate) fn hog(&self, pod: usize, size: &str) -> Workload {
        crate::agent::hog(&self.node, pod, size)
    }

    /// Ends a hog, and waits until its memory is back: before that, other pods would be evicted.
    pub(crate) fn kill_hog(&self, mut hog: Workload) {
        hog.process().child().kill().unwrap();
        hog.process().wait().unwrap();
        let is_back = || Ok((self.node.working_set()? < MEMORY / 2).then_some(()));
        fixture::interrupt().until("that memory is back", GUARD, is_back).unwrap();
    }

    /// Removes the first pod, which has ended, from the cluster and from the node.
    pub(crate) fn remove_first_pod(&mut self, name: &str) {
        self.cluster.finish_pod("default", name).unwrap();
        self.node.pods.remove(0);
        self.node.write_pods().unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.cluster.pod("default", name).unwrap().unwrap()
    }

    pub(crate) fn is_terminating(&self, name: &str) -> bool {
        self.pod(name)["metadata"]["deletionTimestamp"].is_string()
    }
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
    let Some(mut testbed) = Testbed::new(&["hog", "quiet"]) else { return };
    let mut agent = testbed.start(&hard(), &json!({}));
    let mut hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "accepted");
    let pod = testbed.pod("hog");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1, "{pod}");
    assert!(hog.process().is_running().unwrap(), "that is the kubelet's to end");
    assert!(!testbed.is_terminating("quiet"), "who is on the way makes up for the deficit");
    // As a kubelet does in the end.
    let process = hog.process().child();
    process.kill().unwrap();
    // The memory is back before the object is removed.
    process.wait().unwrap();
    testbed.remove_first_pod("hog");
    wait_for_result(&mut agent, "hog", "terminated");
    let evictions = agent.metrics().unwrap();
    let labels = [("eviction_signal", "memory.available"), ("namespace", "default")];
    assert_eq!(evictions.sum("eviction_agent_evictions_total", &labels), 1.0);
    assert_eq!(agent.count_decisions().unwrap(), 1);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn the_agent_evicts_before_the_kubelets_threshold_is_met() {
    let Some(mut testbed) = Testbed::new(&["hog", "quiet"]) else { return };
    testbed.margin = json!({});
    let mut agent = testbed.start(&hard(), &json!({}));
    // Some 80 MiB are left of 320: more than the kubelet's 64Mi, less than the 96Mi of the agent.
    let _hog = testbed.hog(0, "238M");
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("quiet"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_soft_threshold_evicts_the_next_pod_if_a_pdb_refuses() {
    let Some(testbed) = Testbed::new(&["web", "next"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = testbed.start(&soft(), &json!({}));
    let _hogs = [testbed.hog(0, "150M"), testbed.hog(1, "120M")];
    let refused = wait_for_result(&mut agent, "web", "pdb_denied");
    assert!(refused.text("reason").contains("one"), "{refused:?}");
    wait_for_result(&mut agent, "next", "accepted");
    assert!(testbed.is_terminating("next") && !testbed.is_terminating("web"));
    assert_eq!(testbed.pod("next")["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_hard_threshold_deletes_the_only_pod_if_its_pdb_refuses() {
    let Some(testbed) = Testbed::new(&["web"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = testbed.start(&hard(), &json!({}));
    let _hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "web", "pdb_denied");
    let accepted = wait_for_result(&mut agent, "web", "accepted");
    assert_eq!(accepted.text("reason"), "request: deletion");
    let pod = testbed.pod("web");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "TerminationByEvictionAgent");
    assert!(testbed.is_terminating("web"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_hard_threshold_respects_a_pdb_if_configured() {
    let Some(testbed) = Testbed::new(&["web"]) else { return };
    testbed.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = testbed.start(&hard(), &json!({"hardIgnoresPDB": false}));
    let _hog = testbed.hog(0, "270M");
    let first = wait_for_result(&mut agent, "web", "pdb_denied");
    // The agent asks again, and the PDB refuses again.
    let is_later = |event: &Event| {
        event.text("result") == "pdb_denied" && event.number("mono_ns") > first.number("mono_ns")
    };
    agent.wait_for("the budget's second no", GUARD, is_later).unwrap();
    assert!(!testbed.is_terminating("web"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn evict_and_kill_mode_kills_the_evicted_pod() {
    let Some(testbed) = Testbed::new(&["hog", "quiet"]) else { return };
    let mut quiet = testbed.hog(1, "8M");
    let mut agent = testbed.start(&hard(), &json!({"hardMode": "EvictAndKill"}));
    let mut hog = testbed.hog(0, "270M");
    wait_for_result(&mut agent, "hog", "killed");
    wait_for_result(&mut agent, "hog", "terminated");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(hog.process().wait().unwrap().signal(), Some(9));
    wait_for_result(&mut agent, "hog", "accepted");
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("quiet"));
    assert!(quiet.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_server_dry_run_reports_the_response_and_evicts_no_pod() {
    let Some(testbed) = Testbed::new(&["hog"]) else { return };
    let before = testbed.pod("hog");
    let mut options = testbed.options(&hard(), &json!({}), testbed.cluster.port());
    options.more.push("--dry-run=server".to_owned());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let mut hog = testbed.hog(0, "270M");
    assert_eq!(wait_for_result(&mut agent, "hog", "dry_run").text("reason"), "accepted");
    assert_eq!(testbed.pod("hog"), before);
    assert!(hog.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}
