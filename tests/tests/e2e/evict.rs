//! The agent beside a real API server: it decides on real cgroups, and asks for evictions.

use std::time::Duration;

use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, Options};
use tests::cluster::{self, Cluster, manifest};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;

use crate::fixture;
use crate::marks;

/// A guard against an agent that hangs.
pub(crate) const GUARD: Duration = Duration::from_secs(90);

const MEMORY: u64 = 320 * MIB;
const PIDS: u64 = 200;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
    margin: Value,
}

impl World {
    /// A node with these pods, in a cluster that knows them.
    pub(crate) fn new(pods: &[&str]) -> Option<Self> {
        let cluster = fixture::cluster(&cluster::Options::default())?;
        let Ok(mut node) = Node::new("evict", MEMORY, PIDS) else {
            tests::report_skip("no cgroups can be made here");
            return None;
        };
        cluster.add_node("n1").unwrap();
        for name in pods {
            let pod = cluster.run_pod(&manifest::pod(name, "n1")).unwrap();
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            node.add_as(PodSpec::new("default", *name, &["main"], 8), uid).unwrap();
        }
        Some(Self { cluster, node, margin: json!({"mode": "Never"}) })
    }

    /// An agent with the right to evict, and with `delete` to delete.
    fn start(&self, kubelet: &Value, eviction: &Value) -> Agent {
        Agent::start_recorded(
            &self.options("evict", kubelet, eviction, self.cluster.port()),
            fixture::interrupt(),
        )
        .unwrap()
    }

    /// How an agent is started that takes this port for the API server's.
    pub(crate) fn options(
        &self,
        action: &'static str,
        kubelet: &Value,
        eviction: &Value,
        port: u16,
    ) -> Options {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        ]);
        self.options_with(&rules, action, kubelet, eviction, port)
    }

    /// The same for one that learns of its pods and its node from the server.
    pub(crate) fn watching(&self, kubelet: &Value, eviction: &Value, port: u16) -> Options {
        let mut options = self.options_with(&marks::rules(), "evict", kubelet, eviction, port);
        options.pods = None;
        options.more.extend(["--node-name", "n1"].map(str::to_owned));
        options
    }

    fn options_with(
        &self,
        rules: &Value,
        action: &'static str,
        kubelet: &Value,
        eviction: &Value,
        port: u16,
    ) -> Options {
        let account = self.cluster.account("agent", rules).unwrap();
        let kubeconfig = self.cluster.kubeconfig_at(&account.name, &account.token, port).unwrap();
        let config = self.node.file("agent.yaml");
        let policy = json!({
            "apiVersion": "eviction-agent.io/v1alpha1",
            "kind": "AgentConfiguration",
            "profile": "Enhanced",
            "policy": {"soft": {"evictPodsWithoutController": true}},
            "eviction": eviction,
            "thresholdMargin": self.margin,
        });
        std::fs::write(&config, policy.to_string()).unwrap();
        let options = Options::of(&agent::binary().unwrap(), &self.node, kubelet).unwrap();
        let more = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
        Options { config: Some(config), action, more, ..options }
    }

    pub(crate) fn hog(&self, pod: usize, size: &str) -> Workload {
        crate::agent::hog(&self.node, pod, size)
    }

    /// Ends a hog, and waits until its memory is back: before that others would have to go.
    pub(crate) fn end(&self, mut hog: Workload) {
        hog.process().child().kill().unwrap();
        hog.process().wait().unwrap();
        let is_back = || Ok((self.node.working_set()? < MEMORY / 2).then_some(()));
        fixture::interrupt().until("that memory is back", GUARD, is_back).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.cluster.pod("default", name).unwrap().unwrap()
    }

    pub(crate) fn is_going(&self, name: &str) -> bool {
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

pub(crate) fn outcome(agent: &mut Agent, pod: &str, outcome: &str) -> Event {
    let full = format!("default/{pod}");
    let is_it = |event: &Event| {
        event.kind() == "eviction_progress" && event.text("result") == outcome && event.pod() == full
    };
    agent.wait_for(&format!("that {pod} is {outcome}"), GUARD, is_it).unwrap()
}

#[test]
fn a_hog_is_evicted_and_on_its_way_until_its_pod_is_gone() {
    let Some(mut world) = World::new(&["hog", "quiet"]) else { return };
    let mut agent = world.start(&hard(), &json!({}));
    let mut hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "accepted");
    let pod = world.pod("hog");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1, "{pod}");
    assert!(hog.process().is_running().unwrap(), "that is the kubelet's to end");
    assert!(!world.is_going("quiet"), "who is on the way makes up for the deficit");
    // What a kubelet does in the end.
    let process = hog.process().child();
    process.kill().unwrap();
    // Its memory is back before its object goes.
    process.wait().unwrap();
    world.cluster.finish_pod("default", "hog").unwrap();
    world.node.pods.remove(0);
    world.node.write_pods().unwrap();
    outcome(&mut agent, "hog", "terminated");
    let evictions = agent.metrics().unwrap();
    let labels = [("eviction_signal", "memory.available"), ("namespace", "default")];
    assert_eq!(evictions.sum("eviction_agent_evictions_total", &labels), 1.0);
    let decisions = agent.heard().unwrap().iter().filter(|event| event.kind() == "eviction_decision").count();
    assert_eq!(decisions, 1);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn it_acts_before_the_kubelets_line_is_reached() {
    let Some(mut world) = World::new(&["hog", "quiet"]) else { return };
    world.margin = json!({});
    let mut agent = world.start(&hard(), &json!({}));
    // Some 80 MiB are left of 320: more than the kubelet's 64Mi, less than the 96Mi of the agent.
    let _hog = world.hog(0, "238M");
    outcome(&mut agent, "hog", "accepted");
    assert!(world.is_going("hog") && !world.is_going("quiet"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_soft_threshold_takes_the_next_where_a_budget_says_no() {
    let Some(world) = World::new(&["web", "next"]) else { return };
    world.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = world.start(&soft(), &json!({}));
    let _hogs = [world.hog(0, "150M"), world.hog(1, "120M")];
    let refused = outcome(&mut agent, "web", "pdb_denied");
    assert!(refused.text("reason").contains("one"), "{refused:?}");
    outcome(&mut agent, "next", "accepted");
    assert!(world.is_going("next") && !world.is_going("web"));
    assert_eq!(world.pod("next")["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_hard_threshold_deletes_where_nobody_else_can_go() {
    let Some(world) = World::new(&["web"]) else { return };
    world.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = world.start(&hard(), &json!({}));
    let _hog = world.hog(0, "270M");
    outcome(&mut agent, "web", "pdb_denied");
    let accepted = outcome(&mut agent, "web", "accepted");
    assert_eq!(accepted.text("reason"), "request: deletion");
    let pod = world.pod("web");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|it| it["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "TerminationByEvictionAgent");
    assert!(world.is_going("web"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_hard_threshold_that_honours_budgets_evicts_nobody_against_them() {
    let Some(world) = World::new(&["web"]) else { return };
    world.cluster.add_budget("one", "web", 1, 0).unwrap();
    let mut agent = world.start(&hard(), &json!({"hardIgnoresPDB": false}));
    let _hog = world.hog(0, "270M");
    let first = outcome(&mut agent, "web", "pdb_denied");
    // It is asked again, and says no again.
    let is_later = |event: &Event| {
        event.text("result") == "pdb_denied" && event.number("mono_ns") > first.number("mono_ns")
    };
    agent.wait_for("the budget's second no", GUARD, is_later).unwrap();
    assert!(!world.is_going("web"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn evicted_and_killed_at_once_where_that_is_asked_for() {
    let Some(world) = World::new(&["hog", "quiet"]) else { return };
    let mut quiet = world.hog(1, "8M");
    let mut agent = world.start(&hard(), &json!({"hardMode": "EvictAndKill"}));
    let mut hog = world.hog(0, "270M");
    outcome(&mut agent, "hog", "killed");
    outcome(&mut agent, "hog", "terminated");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(hog.process().wait().unwrap().signal(), Some(9));
    outcome(&mut agent, "hog", "accepted");
    assert!(world.is_going("hog") && !world.is_going("quiet"));
    assert!(quiet.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_dry_run_tells_what_the_server_would_answer() {
    let Some(world) = World::new(&["hog"]) else { return };
    let before = world.pod("hog");
    let mut options = world.options("evict", &hard(), &json!({}), world.cluster.port());
    options.more.push("--dry-run=server".to_owned());
    let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
    let mut hog = world.hog(0, "270M");
    assert_eq!(outcome(&mut agent, "hog", "dry_run").text("reason"), "accepted");
    assert_eq!(world.pod("hog"), before);
    assert!(hog.process().is_running().unwrap());
    assert!(agent.stop().unwrap().success());
}
