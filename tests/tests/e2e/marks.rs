//! The node's own object says how hard the node is pressed: conditions and taints of the agent's,
//! beside those of others.

use std::sync::atomic::{AtomicBool, Ordering};

use eviction_core::time::Timestamp;
use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, GUARD, Options, binary};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::cluster::{self, Account, Client, Cluster, Patch, manifest};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;

use crate::agent::{self, NODE, wait_for_metric};
use crate::fixture;

const MEMORY: u64 = 320 * MIB;
const PATH: &str = "/api/v1/nodes/n1";
const CONDITION: &str = "EvictionAgentMemoryPressure";
const TAINT: &str = "eviction-agent.io/memory-pressure";

/// A node on this machine with its pods, in a cluster that knows them, and whom the agent is there.
struct World {
    cluster: Cluster,
    node: Node,
    account: Account,
}

impl World {
    fn new(label: &str, options: &cluster::Options) -> Option<Self> {
        let mut cluster = fixture::cluster(options)?;
        let Ok(node) = Node::new(label, MEMORY, 200) else {
            tests::report_skip("no cgroups can be made here");
            return None;
        };
        cluster.add_node(NODE).unwrap();
        let account = agent::account(&mut cluster, "agent", &rules());
        Some(Self { cluster, node, account })
    }

    /// Cgroups for a pod of the cluster.
    fn house(&mut self, pod: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
        self.node.add_as(PodSpec::new("default", text("name"), &["main"], 8), text("uid")).unwrap();
    }

    fn start(&self, kubelet: &Value, port: u16) -> Agent {
        self.start_with(kubelet, port, &[])
    }

    fn start_with(&self, kubelet: &Value, port: u16, further: &[&str]) -> Agent {
        let kubeconfig = self.cluster.kubeconfig_at(&self.account.name, &self.account.token, port).unwrap();
        let options = Options::of(&binary().unwrap(), &self.node, kubelet).unwrap();
        let kubeconfig = kubeconfig.display().to_string();
        let given = ["--kubeconfig", &kubeconfig, "--node-name", NODE];
        let more = given.into_iter().chain(further.iter().copied()).map(str::to_owned).collect();
        let config = Some(tests::agent::at_the_line(&self.node).unwrap());
        Agent::start_recorded(
            &Options { pods: None, config, action: "evict", more, ..options },
            fixture::interrupt(),
        )
        .unwrap()
    }

    fn hog(&self, pod: usize, size: &str) -> Workload {
        agent::hog(&self.node, pod, size)
    }

    fn patch(&self, operations: &Value) {
        self.cluster.admin().patch(Patch::Json, PATH, operations).unwrap().ok().unwrap();
    }

    fn until<T>(&mut self, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        self.cluster.until(what, |it| Ok(look(&it.admin().get(PATH)?.body))).unwrap()
    }

    /// Waits until the agent's condition of memory has that status and reason.
    fn condition(&mut self, status: &str, reason: &str) -> Value {
        self.until(&format!("the condition is {status} for {reason}"), |node| {
            condition(node, CONDITION).filter(|it| it["status"] == status && it["reason"] == reason).cloned()
        })
    }

    /// Waits until the agent's taint of memory has that effect, or is gone.
    fn taint(&mut self, effect: Option<&str>) {
        self.until(&format!("the taint is {effect:?}"), |node| (own_taint(node) == effect).then_some(()));
    }
}

/// All that an agent asks of its pods and its node.
pub(crate) fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ])
}

/// The soft threshold evicts nobody in the time of a story.
fn kubelet(period: &str) -> Value {
    json!({
        "evictionHard": {"memory.available": "64Mi"},
        "evictionSoft": {"memory.available": "160Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1h"},
        "evictionPressureTransitionPeriod": period,
    })
}

fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    node["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == kind)
}

fn taints(node: &Value) -> &[Value] {
    node["spec"]["taints"].as_array().map_or(&[], Vec::as_slice)
}

fn own_taint(node: &Value) -> Option<&str> {
    let own = taints(node).iter().find(|it| it["key"] == TAINT && it.get("value").is_none())?;
    own["effect"].as_str()
}

fn time(condition: &Value, field: &str) -> Timestamp {
    condition[field].as_str().unwrap().parse().unwrap()
}

#[test]
fn conditions_and_taints_follow_the_pressure_over_a_restart_and_a_new_node() {
    let Some(mut world) = World::new("e2e-marks", &cluster::Options::default()) else { return };
    for name in ["steady", "hog"] {
        let pod = world.cluster.run_pod(&manifest::pod(name, NODE)).unwrap();
        world.house(&pod);
    }
    let proxy = Proxy::start(&world.cluster).unwrap();
    let agent = world.start(&kubelet("60s"), proxy.port());
    for kind in [CONDITION, "EvictionAgentDiskPressure", "EvictionAgentPIDPressure"] {
        world.until(kind, |node| condition(node, kind).filter(|it| it["status"] == "False").cloned());
    }
    let calm = world.condition("False", "NoEvictionThresholdMet");
    assert_eq!(calm["lastHeartbeatTime"], calm["lastTransitionTime"], "{calm}");
    let ready = world.until("the kubelet's condition", |node| condition(node, "Ready").cloned());
    assert_eq!(ready["reason"], "KubeletReady");

    let mut steady = world.hog(0, "190M");
    let soft = world.condition("True", "SoftEvictionThresholdMet");
    assert_eq!(soft["message"], "memory.available is below 160Mi (soft threshold, grace period 1h0m0s)");
    world.taint(Some("PreferNoSchedule"));
    let mut hog = world.hog(1, "100M");
    let hard = world.condition("True", "HardEvictionThresholdMet");
    assert_eq!(hard["lastTransitionTime"], soft["lastTransitionTime"], "it held all the time");
    world.taint(Some("NoSchedule"));
    // The taint was asked for before the eviction was.
    let place = |begin: &str, part: &str| {
        let seen = proxy.seen();
        seen.iter().rposition(|it| it.request.starts_with(begin) && it.request.contains(part))
    };
    let evicted = world.cluster.until("an eviction", |_| Ok(place("POST", "/eviction"))).unwrap();
    assert!(place("PATCH", "/nodes/n1?").is_some_and(|tainted| tainted < evicted), "{:#?}", proxy.seen());

    // The cause goes; the condition stays for its period, also over a restart.
    hog.process().child().kill().unwrap();
    steady.process().child().kill().unwrap();
    // What a kubelet does in the end; until then there is no other look.
    for name in ["steady", "hog"] {
        world.cluster.finish_pod("default", name).unwrap();
    }
    let over = world.condition("True", "InPressureTransitionPeriod");
    assert_eq!(over["lastTransitionTime"], soft["lastTransitionTime"]);
    let since = over["message"].as_str().unwrap();
    let since = since.strip_prefix("eviction thresholds were met until ").unwrap();
    let since: Timestamp = since.split(';').next().unwrap().parse().unwrap();
    assert!(agent.stop().unwrap().success());
    let mut agent = world.start(&kubelet("60s"), proxy.port());
    agent
        .wait_for("that the condition still holds", GUARD, |it| {
            it.kind() == "condition" && it.text("status") == "True"
        })
        .unwrap();
    let cleared = world.condition("False", "NoEvictionThresholdMet");
    world.taint(None);
    let held = time(&cleared, "lastTransitionTime").duration_since(since);
    assert!(held.as_secs() >= 60, "it held for {held:?} after its cause");
    assert!(
        agent.metrics().unwrap().sum("eviction_agent_node_status_patches_total", &[("result", "accepted")])
            >= 1.0
    );
    wait_for_metric(&agent, "eviction_agent_node_status_out_of_sync", &[], |due| due == 0.0);

    // Another node under the name of this one is reported as well, and is no change of the pressure.
    let mut steady = world.hog(0, "190M");
    world.taint(Some("PreferNoSchedule"));
    let before = world.condition("True", "SoftEvictionThresholdMet");
    world.cluster.admin().delete(PATH, &Value::Null).unwrap().ok().unwrap();
    let made = world.cluster.add_node(NODE).unwrap();
    world.taint(Some("PreferNoSchedule"));
    let again = world.condition("True", "SoftEvictionThresholdMet");
    assert_eq!(again["lastTransitionTime"], before["lastTransitionTime"]);
    world.until("it is that node", |node| (node["metadata"]["uid"] == made["metadata"]["uid"]).then_some(()));
    steady.process().child().kill().unwrap();
    assert!(agent.stop().unwrap().success());
}

/// Adds and removes a taint of its own, as those do who test the version, until stopped.
fn rival(client: &Client, key: &str, stop: &AtomicBool) -> u32 {
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let node = client.get(PATH).unwrap().ok().unwrap();
        let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]});
        let operation = match taints(&node).iter().position(|it| it["key"] == key) {
            Some(place) => json!({"op": "remove", "path": format!("/spec/taints/{place}")}),
            None => {
                let taint = json!({"key": key, "effect": "PreferNoSchedule"});
                json!({"op": "add", "path": "/spec/taints/-", "value": taint})
            }
        };
        let answer = client.patch(Patch::Json, PATH, &json!([version, operation])).unwrap();
        assert!(matches!(answer.status, 200 | 409 | 422), "{answer:?}");
        writes += u32::from(answer.status == 200);
    }
    writes
}

#[test]
fn taints_of_others_stay_as_they_are_among_rival_writers() {
    let Some(mut world) = World::new("e2e-rivals", &cluster::Options::default()) else { return };
    let pod = world.cluster.run_pod(&manifest::pod("steady", NODE)).unwrap();
    world.house(&pod);
    let foreign =
        |nth: usize| json!({"key": format!("example.com/t{nth}"), "value": "x", "effect": "NoSchedule"});
    let mut others: Vec<Value> = (0..98).map(foreign).collect();
    // Under the agent's key, and not the agent's.
    others.push(json!({"key": TAINT, "value": "by-hand", "effect": "NoSchedule"}));
    others.push(json!({"key": TAINT, "effect": "NoExecute"}));
    world.patch(&json!([{"op": "add", "path": "/spec/taints", "value": others}]));
    let is_others = |taint: &&Value| !taint["key"].as_str().unwrap().starts_with("rival");

    let mut agent = world.start(&kubelet("1s"), world.cluster.port());
    let stop = AtomicBool::new(false);
    let clients: Vec<Client> = (0..3).map(|_| world.cluster.client(&world.account.token).unwrap()).collect();
    std::thread::scope(|scope| {
        let stop = &stop;
        let rivals: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(nth, client)| scope.spawn(move || rival(client, &format!("rival-{nth}"), stop)))
            .collect();
        let is_soft = |node: &Value| {
            taints(node).iter().any(|it| it["key"] == TAINT && it["effect"] == "PreferNoSchedule")
        };
        for _ in 0..3 {
            let mut hog = world.hog(0, "190M");
            world.until("the agent's taint", |node| is_soft(node).then_some(()));
            hog.process().child().kill().unwrap();
            world.until("no taint of the agent's", |node| (!is_soft(node)).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
        for rival in rivals {
            assert!(rival.join().unwrap() > 0, "a rival never got through");
        }
    });
    let node = world.cluster.admin().get(PATH).unwrap().ok().unwrap();
    let left: Vec<Value> = taints(&node).iter().filter(is_others).cloned().collect();
    assert_eq!(left, others);
    assert!(agent.heard().is_ok());
    assert!(agent.stop().unwrap().success());
}

#[test]
fn what_the_node_says_is_true_again_after_an_outage() {
    let Some(mut world) = World::new("e2e-behind", &cluster::Options::default()) else { return };
    let pod = world.cluster.run_pod(&manifest::pod("steady", NODE)).unwrap();
    world.house(&pod);
    let proxy = Proxy::start(&world.cluster).unwrap();
    let mut agent = world.start(&kubelet("1s"), proxy.port());
    let calm = world.condition("False", "NoEvictionThresholdMet");
    proxy.refuse();
    // It came and went while nothing could be reported, and came again.
    let raised = |agent: &mut Agent, times: usize| {
        fixture::interrupt()
            .until("the condition is raised", GUARD, || {
                let is_raised =
                    |it: &&tests::agent::Event| it.kind() == "condition" && it.text("status") == "True";
                Ok((agent.heard()?.iter().filter(is_raised).count() >= times).then_some(()))
            })
            .unwrap();
    };
    let mut hog = world.hog(0, "190M");
    raised(&mut agent, 1);
    hog.process().child().kill().unwrap();
    agent
        .wait_for("that the condition is cleared", GUARD, |it| {
            it.kind() == "condition" && it.text("status") == "False"
        })
        .unwrap();
    let mut hog = world.hog(0, "190M");
    raised(&mut agent, 2);
    wait_for_metric(&agent, "eviction_agent_node_status_out_of_sync", &[], |due| due == 2.0);
    let reopened = Timestamp::now();
    proxy.reopen();
    world.taint(Some("PreferNoSchedule"));
    let late = world.condition("True", "SoftEvictionThresholdMet");
    assert!(
        time(&late, "lastTransitionTime") <= reopened,
        "it changed before anything could be reported: {late}"
    );
    assert!(time(&late, "lastTransitionTime") >= time(&calm, "lastTransitionTime"), "{late}");
    // Nothing of what was the case meanwhile is replayed.
    let events = agent.heard().unwrap().iter().filter(|it| it.kind() == "condition").count();
    assert_eq!(events, 3);
    let of_taints = [("kind", "taints"), ("result", "accepted")];
    wait_for_metric(&agent, "eviction_agent_node_status_patches_total", &of_taints, |written| written == 1.0);
    hog.process().child().kill().unwrap();
    assert!(agent.stop().unwrap().success());
}

#[test]
fn what_a_killed_agent_could_not_tell_the_next_one_tells() {
    let Some(mut world) = World::new("e2e-untold", &cluster::Options::default()) else { return };
    let pod = world.cluster.run_pod(&manifest::pod("steady", NODE)).unwrap();
    world.house(&pod);
    let proxy = Proxy::start(&world.cluster).unwrap();
    let state = world.node.file("run").display().to_string();
    let start = |world: &World| world.start_with(&kubelet("60s"), proxy.port(), &["--state-dir", &state]);
    let agent = start(&world);
    world.condition("False", "NoEvictionThresholdMet");
    proxy.on(When::any().method(Method::PATCH), Fault::status(503));
    let mut hog = world.hog(0, "190M");
    wait_for_metric(&agent, "eviction_agent_node_status_out_of_sync", &[], |due| due == 2.0);
    agent.kill().unwrap();
    let killed = Timestamp::now();
    hog.process().child().kill().unwrap();
    proxy.heal();
    // Nothing presses any more, and the node's object has never heard of it.
    let agent = start(&world);
    let over = world.condition("True", "InPressureTransitionPeriod");
    assert!(time(&over, "lastTransitionTime") <= killed, "it was before {killed}: {over}");
    world.taint(Some("PreferNoSchedule"));
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_replacement_does_not_come_back_to_the_node() {
    let options = cluster::Options { controllers: true, scheduler: true };
    let Some(mut world) = World::new("e2e-elsewhere", &options) else { return };
    world.cluster.add_node("n2").unwrap();
    // It would rather run on this node than on the other one.
    let prefers = json!([{"weight": 100, "preference": {"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]},
    ]}}]);
    let mut template = manifest::pod("web", NODE);
    let spec = template["spec"].as_object_mut().unwrap();
    spec.remove("nodeName");
    spec.insert(
        "affinity".to_owned(),
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}}),
    );
    let set = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    });
    world.cluster.admin().post("/apis/apps/v1/namespaces/default/replicasets", &set).unwrap().ok().unwrap();
    let pods = |cluster: &Cluster| {
        let path = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb";
        let list = cluster.admin().get(path).unwrap().ok().unwrap();
        list["items"].as_array().unwrap().clone()
    };
    let bound = |pod: &&Value| pod["spec"]["nodeName"].is_string();
    let first =
        world.cluster.until("the first is scheduled", |it| Ok(pods(it).iter().find(bound).cloned())).unwrap();
    assert_eq!(first["spec"]["nodeName"], NODE, "that is where it prefers to be");
    let name = first["metadata"]["name"].as_str().unwrap();
    let id = |_| tests::cgroup::container_id(1);
    let running = world.cluster.set_running("default", name, id).unwrap();
    world.house(&running);
    let mut agent = world.start(&kubelet("5m"), world.cluster.port());
    world.condition("False", "NoEvictionThresholdMet");
    let _hog = world.hog(0, "290M");
    agent
        .wait_for("an eviction", GUARD, |it| {
            it.kind() == "eviction_progress" && it.text("result") == "accepted"
        })
        .unwrap();
    let second = world
        .cluster
        .until("its replacement is scheduled", |it| {
            let other = |pod: &&Value| bound(pod) && pod["metadata"]["uid"] != first["metadata"]["uid"];
            Ok(pods(it).iter().find(other).cloned())
        })
        .unwrap();
    assert_eq!(second["spec"]["nodeName"], "n2");
    world.taint(Some("NoSchedule"));
    assert!(agent.stop().unwrap().success());
}
