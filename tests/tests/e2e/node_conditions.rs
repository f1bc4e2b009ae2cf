//! The Node object reports the pressure on the node: conditions and taints of the agent, beside those of others.

use std::sync::atomic::{AtomicBool, Ordering};

use eviction_core::time::Timestamp;
use hyper::Method;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::proxy::{Fault, Proxy, When};
use tests::cluster::{self, Client, Cluster, Patch, manifest};
use tests::process::Stop;

use crate::agent::NODE;
use crate::fixture;
use crate::testbed::{MEMORY, Testbed, pod};

const PATH: &str = "/api/v1/nodes/n1";
const CONDITION: &str = "EvictionAgentMemoryPressure";
const TAINT: &str = "eviction-agent.io/memory-pressure";

/// Starts an agent that uses this port as the API server's.
fn start(testbed: &Testbed, kubelet: &Value, port: u16) -> Agent {
    fixture::start(&testbed.options(kubelet, port))
}

impl Testbed {
    fn until<T>(&mut self, what: &str, find: impl Fn(&Value) -> Option<T>) -> T {
        self.cluster.until(what, |it| Ok(find(&it.admin().get(PATH)?.body))).unwrap()
    }

    /// Waits until the agent's memory condition has that status and reason.
    fn wait_for_condition(&mut self, status: &str, reason: &str) -> Value {
        self.until(&format!("the condition is {status} for {reason}"), |node| {
            condition(node, CONDITION).filter(|it| it["status"] == status && it["reason"] == reason).cloned()
        })
    }

    /// Waits until the agent's memory taint has that effect, or is removed.
    fn wait_for_taint(&mut self, effect: Option<&str>) {
        self.until(&format!("the taint is {effect:?}"), |node| (own_taint(node) == effect).then_some(()));
    }
}

/// Returns a kubelet configuration with a soft threshold that evicts no pod during a test.
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

/// Returns whether an event reports that the condition has this status.
fn is_condition(status: &'static str) -> impl Fn(&Event) -> bool {
    move |event| event.kind() == "condition" && event.text("status") == status
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
fn conditions_and_taints_survive_a_restart_and_a_new_node() {
    let Some(mut testbed) = Testbed::new("e2e-conditions", ["steady", "hog"].map(pod)) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let agent = start(&testbed, &kubelet("60s"), proxy.port());
    for kind in [CONDITION, "EvictionAgentDiskPressure", "EvictionAgentPIDPressure"] {
        testbed.until(kind, |node| condition(node, kind).filter(|it| it["status"] == "False").cloned());
    }
    let calm = testbed.wait_for_condition("False", "NoEvictionThresholdMet");
    assert_eq!(calm["lastHeartbeatTime"], calm["lastTransitionTime"], "{calm}");
    let ready = testbed.until("the kubelet's condition", |node| condition(node, "Ready").cloned());
    assert_eq!(ready["reason"], "KubeletReady");

    let mut steady = testbed.hog(0, "190M");
    let soft = testbed.wait_for_condition("True", "SoftEvictionThresholdMet");
    assert_eq!(soft["message"], "memory.available is below 160Mi (soft threshold, grace period 1h0m0s)");
    testbed.wait_for_taint(Some("PreferNoSchedule"));
    let mut hog = testbed.hog(1, "100M");
    let hard = testbed.wait_for_condition("True", "HardEvictionThresholdMet");
    assert_eq!(hard["lastTransitionTime"], soft["lastTransitionTime"], "it held all the time");
    testbed.wait_for_taint(Some("NoSchedule"));
    // The agent set the taint before it requested the eviction.
    let request_index = |begin: &str, part: &str| {
        let seen = proxy.requests();
        seen.iter().rposition(|it| it.request.starts_with(begin) && it.request.contains(part))
    };
    let evicted = testbed.cluster.until("an eviction", |_| Ok(request_index("POST", "/eviction"))).unwrap();
    assert!(
        request_index("PATCH", "/nodes/n1?").is_some_and(|tainted| tainted < evicted),
        "{:#?}",
        proxy.requests()
    );

    // The cause ends; the condition stays for its transition period, also over a restart.
    hog.process().child().kill().unwrap();
    steady.process().child().kill().unwrap();
    // As the kubelet does when the pods have ended. Until then the agent decides nothing.
    for name in ["steady", "hog"] {
        testbed.cluster.finish_pod("default", name).unwrap();
    }
    let over = testbed.wait_for_condition("True", "InPressureTransitionPeriod");
    assert_eq!(over["lastTransitionTime"], soft["lastTransitionTime"]);
    let since = over["message"].as_str().unwrap();
    let since = since.strip_prefix("eviction thresholds were met until ").unwrap();
    let since: Timestamp = since.split(';').next().unwrap().parse().unwrap();
    agent.stop().unwrap();
    let mut agent = start(&testbed, &kubelet("60s"), proxy.port());
    agent.wait_for("that the condition still holds", GUARD, is_condition("True")).unwrap();
    let cleared = testbed.wait_for_condition("False", "NoEvictionThresholdMet");
    testbed.wait_for_taint(None);
    let held = time(&cleared, "lastTransitionTime").duration_since(since);
    assert!(held.as_secs() >= 60, "it held for {held:?} after its cause");
    let accepted = [("result", "accepted")];
    assert!(agent.metric("eviction_agent_node_status_patches_total", &accepted).unwrap() >= 1.0);
    agent.wait_for_metric("eviction_agent_node_status_out_of_sync", &[], |due| due == 0.0).unwrap();

    // Another node under the same name gets condition and taint as well, and this is no change of the pressure.
    let mut steady = testbed.hog(0, "190M");
    testbed.wait_for_taint(Some("PreferNoSchedule"));
    let before = testbed.wait_for_condition("True", "SoftEvictionThresholdMet");
    testbed.cluster.admin().delete(PATH, &Value::Null).unwrap().ok().unwrap();
    let made = testbed.cluster.add_node(NODE).unwrap();
    testbed.wait_for_taint(Some("PreferNoSchedule"));
    let again = testbed.wait_for_condition("True", "SoftEvictionThresholdMet");
    assert_eq!(again["lastTransitionTime"], before["lastTransitionTime"]);
    testbed
        .until("it is that node", |node| (node["metadata"]["uid"] == made["metadata"]["uid"]).then_some(()));
    steady.process().child().kill().unwrap();
    agent.stop().unwrap();
}

/// Adds and removes a taint of its own until it is stopped, as writers do that test the resource version.
fn toggle_taint(client: &Client, key: &str, stop: &AtomicBool) -> u32 {
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let node = client.get(PATH).unwrap().ok().unwrap();
        let version = json!({"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]});
        let operation = match taints(&node).iter().position(|it| it["key"] == key) {
            Some(index) => json!({"op": "remove", "path": format!("/spec/taints/{index}")}),
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
fn other_taints_are_kept_with_concurrent_writers() {
    let Some(mut testbed) = Testbed::new("e2e-rivals", [pod("steady")]) else { return };
    let foreign =
        |nth: usize| json!({"key": format!("example.com/t{nth}"), "value": "x", "effect": "NoSchedule"});
    let mut others: Vec<Value> = (0..98).map(foreign).collect();
    // Taints with the agent's key that are not the agent's.
    others.push(json!({"key": TAINT, "value": "by-hand", "effect": "NoSchedule"}));
    others.push(json!({"key": TAINT, "effect": "NoExecute"}));
    let add = json!([{"op": "add", "path": "/spec/taints", "value": others}]);
    testbed.cluster.admin().patch(Patch::Json, PATH, &add).unwrap().ok().unwrap();
    let is_others = |taint: &&Value| !taint["key"].as_str().unwrap().starts_with("rival");

    let mut agent = start(&testbed, &kubelet("1s"), testbed.cluster.port());
    let stop = AtomicBool::new(false);
    let clients: Vec<Client> =
        (0..3).map(|_| testbed.cluster.client(&testbed.account.token).unwrap()).collect();
    std::thread::scope(|scope| {
        let stop = &stop;
        let stopper = Stop(stop);
        let writers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(nth, client)| scope.spawn(move || toggle_taint(client, &format!("rival-{nth}"), stop)))
            .collect();
        let is_soft = |node: &Value| {
            taints(node).iter().any(|it| it["key"] == TAINT && it["effect"] == "PreferNoSchedule")
        };
        for _ in 0..3 {
            let mut hog = testbed.hog(0, "190M");
            testbed.until("the agent's taint", |node| is_soft(node).then_some(()));
            hog.process().child().kill().unwrap();
            testbed.until("no taint of the agent's", |node| (!is_soft(node)).then_some(()));
        }
        drop(stopper);
        for writer in writers {
            assert!(writer.join().unwrap() > 0, "a rival never got through");
        }
    });
    let node = testbed.cluster.admin().get(PATH).unwrap().ok().unwrap();
    let left: Vec<Value> = taints(&node).iter().filter(is_others).cloned().collect();
    assert_eq!(left, others);
    assert!(agent.events().is_ok());
    agent.stop().unwrap();
}

#[test]
fn the_node_status_is_up_to_date_after_an_outage() {
    let Some(mut testbed) = Testbed::new("e2e-behind", [pod("steady")]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = start(&testbed, &kubelet("1s"), proxy.port());
    let calm = testbed.wait_for_condition("False", "NoEvictionThresholdMet");
    proxy.refuse();
    // The condition was raised and cleared while nothing could be reported, and was raised again.
    let wait_until_raised = |agent: &mut Agent, times: usize| {
        agent.wait_for_nth(times, "that the condition is raised", GUARD, is_condition("True")).unwrap();
    };
    let mut hog = testbed.hog(0, "190M");
    wait_until_raised(&mut agent, 1);
    hog.process().child().kill().unwrap();
    agent.wait_for("that the condition is cleared", GUARD, is_condition("False")).unwrap();
    let mut hog = testbed.hog(0, "190M");
    wait_until_raised(&mut agent, 2);
    agent.wait_for_metric("eviction_agent_node_status_out_of_sync", &[], |due| due == 2.0).unwrap();
    let reopened = Timestamp::now();
    proxy.reopen();
    testbed.wait_for_taint(Some("PreferNoSchedule"));
    let late = testbed.wait_for_condition("True", "SoftEvictionThresholdMet");
    assert!(
        time(&late, "lastTransitionTime") <= reopened,
        "it changed before anything could be reported: {late}"
    );
    assert!(time(&late, "lastTransitionTime") >= time(&calm, "lastTransitionTime"), "{late}");
    // The states in between are not replayed.
    let events = agent.events().unwrap().iter().filter(|it| it.kind() == "condition").count();
    assert_eq!(events, 3);
    let of_taints = [("kind", "taints"), ("result", "accepted")];
    agent
        .wait_for_metric("eviction_agent_node_status_patches_total", &of_taints, |written| written == 1.0)
        .unwrap();
    hog.process().child().kill().unwrap();
    agent.stop().unwrap();
}

#[test]
fn the_next_agent_writes_the_status_that_a_killed_one_could_not() {
    let Some(mut testbed) = Testbed::new("e2e-no-report", [pod("steady")]) else { return };
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let options = testbed.options(&kubelet("60s"), proxy.port());
    let options = options.with_path("--state-dir", testbed.node.file("run"));
    let agent = fixture::start(&options);
    testbed.wait_for_condition("False", "NoEvictionThresholdMet");
    proxy.on(When::any().method(Method::PATCH), Fault::status(503));
    let mut hog = testbed.hog(0, "190M");
    agent.wait_for_metric("eviction_agent_node_status_out_of_sync", &[], |due| due == 2.0).unwrap();
    agent.kill().unwrap();
    let killed = Timestamp::now();
    hog.process().child().kill().unwrap();
    proxy.heal();
    // The pressure is over, and the Node object has never reported it.
    let agent = fixture::start(&options);
    let over = testbed.wait_for_condition("True", "InPressureTransitionPeriod");
    assert!(time(&over, "lastTransitionTime") <= killed, "it was before {killed}: {over}");
    testbed.wait_for_taint(Some("PreferNoSchedule"));
    agent.stop().unwrap();
}

#[test]
fn a_replacement_pod_is_not_scheduled_to_the_tainted_node() {
    let options = cluster::Options { controllers: true, scheduler: true };
    let Some(mut testbed) = Testbed::with("e2e-elsewhere", MEMORY, &options) else { return };
    testbed.cluster.add_node("n2").unwrap();
    // The pod prefers this node to the other one.
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
    testbed.cluster.admin().post("/apis/apps/v1/namespaces/default/replicasets", &set).unwrap().ok().unwrap();
    let pods = |cluster: &Cluster| {
        let path = "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb";
        let list = cluster.admin().get(path).unwrap().ok().unwrap();
        list["items"].as_array().unwrap().clone()
    };
    let bound = |pod: &&Value| pod["spec"]["nodeName"].is_string();
    let first = testbed
        .cluster
        .until("the first is scheduled", |it| Ok(pods(it).iter().find(bound).cloned()))
        .unwrap();
    assert_eq!(first["spec"]["nodeName"], NODE, "that is where it prefers to be");
    let name = first["metadata"]["name"].as_str().unwrap();
    let id = |_| tests::cgroup::container_id(1);
    let running = testbed.cluster.set_running("default", name, id).unwrap();
    let uid = running["metadata"]["uid"].as_str().unwrap().to_owned();
    testbed.node.add_with_uid(pod(name), uid).unwrap();
    let mut agent = start(&testbed, &kubelet("5m"), testbed.cluster.port());
    testbed.wait_for_condition("False", "NoEvictionThresholdMet");
    let _hog = testbed.hog(0, "290M");
    agent.wait_for("an eviction", GUARD, |it| it.is_result("accepted")).unwrap();
    let second = testbed
        .cluster
        .until("its replacement is scheduled", |it| {
            let other = |pod: &&Value| bound(pod) && pod["metadata"]["uid"] != first["metadata"]["uid"];
            Ok(pods(it).iter().find(other).cloned())
        })
        .unwrap();
    assert_eq!(second["spec"]["nodeName"], "n2");
    testbed.wait_for_taint(Some("NoSchedule"));
    agent.stop().unwrap();
}
