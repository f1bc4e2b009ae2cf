//! Events in the API server about evictions, OOM kills and thresholds, and the number of requests that they take.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::proxy::Proxy;
use tests::cluster::{Cluster, Patch};
use tests::node::{MIB, PodSpec};

use crate::agent::{self, NODE};
use crate::fixture;
use crate::testbed::Testbed;

/// Starts an agent that uses this port as the API server's, and waits until it knows all pods.
pub(crate) fn start(testbed: &Testbed, kubelet: &Value, port: u16) -> Agent {
    let mut agent = fixture::start(&testbed.options(kubelet, port));
    agent.wait_for_pods(testbed.node.pods.len()).unwrap();
    agent
}

/// Returns the events of a namespace with that reason.
fn list_events(cluster: &Cluster, namespace: &str, reason: &str) -> Vec<Value> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let list = cluster.admin().get(&path).unwrap().ok().unwrap();
    let is_match = |event: &&Value| event["reason"] == reason;
    list["items"].as_array().unwrap().iter().filter(is_match).cloned().collect()
}

/// Waits until the events of a namespace with that reason fit.
pub(crate) fn wait_for_events(
    cluster: &Cluster,
    namespace: &str,
    reason: &str,
    fits: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    fixture::interrupt()
        .until(&format!("events {reason} in {namespace}"), GUARD, || {
            let events = list_events(cluster, namespace, reason);
            Ok(fits(&events).then_some(events))
        })
        .unwrap()
}

/// Waits until the OOM kills in the namespace `shop` have been reported so many times in all.
fn wait_for_oom_kills(cluster: &Cluster, times: u64) -> Vec<Value> {
    wait_for_events(cluster, "shop", "ContainerOOMKilled", |events| {
        events.iter().map(count).sum::<u64>() == times
    })
}

/// Returns how many occurrences an event stands for.
fn count(event: &Value) -> u64 {
    event["series"]["count"].as_u64().unwrap_or(1)
}

fn distant_threshold() -> Value {
    json!({"evictionHard": {"memory.available": "1Mi"}})
}

fn is_kind(kind: &'static str) -> impl Fn(&Event) -> bool {
    move |event| event.kind() == kind
}

#[test]
fn evictions_and_thresholds_are_reported_as_by_the_kubelet() {
    let pods = ["hog", "quiet"].map(|name| PodSpec::new("shop", name, &["main"], 8));
    let Some(mut testbed) = Testbed::new("events", pods) else { return };
    let mut hog = testbed.workload(0, &["--on-term", "ignore", "hold", "--size", "270M"]);
    let mut agent = start(&testbed, &crate::evict::hard(), testbed.cluster.port());
    hog.go().unwrap();

    let decision = agent.wait_for_decision().unwrap();
    let events = wait_for_events(&testbed.cluster, "shop", "Evicted", |events| !events.is_empty());
    let [event] = &events[..] else { panic!("{events:?}") };
    let note = event["note"].as_str().unwrap();
    assert_eq!(note, decision.text("eviction_message"));
    let prefix = "The node was low on resource: memory. Threshold quantity: 64Mi, available: ";
    assert!(note.starts_with(prefix) && note.ends_with("has larger consumption of memory. "), "{note}");
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(annotations["starved_resource"], "memory");
    assert_eq!(annotations["offending_containers"], "main");
    let usage = annotations["offending_containers_usage"].as_str().unwrap();
    assert!(note.contains(&format!("Container main was using {usage}, request is 8Mi, ")), "{note}");
    let id = annotations["eviction-agent.io/decision"].as_str().unwrap();
    assert_eq!(id, decision.text("decision_id"));
    assert!(id.ends_with(&format!("-{}", decision.number("id").unwrap())), "{id}");
    assert_eq!(annotations.as_object().unwrap().len(), 4, "{annotations}");
    let uid = testbed.node.pods[0].uid();
    let regarding =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "hog", "uid": uid});
    assert_eq!(event["regarding"], regarding);
    assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("Evict")));
    assert_eq!(event["reportingController"], "eviction-agent.io/agent");
    assert_eq!(event["reportingInstance"], format!("eviction-agent-{NODE}"));
    // The event as a client of the older API reads it.
    let name = event["metadata"]["name"].as_str().unwrap();
    let old =
        testbed.cluster.admin().get(&format!("/api/v1/namespaces/shop/events/{name}")).unwrap().ok().unwrap();
    assert_eq!((&old["message"], &old["involvedObject"]["uid"]), (&event["note"], &json!(uid)));

    let met =
        wait_for_events(&testbed.cluster, "default", "EvictionThresholdMet", |events| !events.is_empty());
    assert_eq!((&met[0]["regarding"]["kind"], &met[0]["regarding"]["name"]), (&json!("Node"), &json!(NODE)));
    assert!(met[0]["note"].as_str().unwrap().starts_with("hard threshold memory.available < 64Mi met"));
    assert_eq!(met[0]["type"], "Warning");

    // As a kubelet does in the end, with the status that it writes.
    hog.process().child().kill().unwrap();
    hog.process().wait().unwrap();
    crate::termination_causes::write_terminated_status(
        &testbed,
        0,
        &json!({"exitCode": 137, "reason": "Error"}),
    );
    let ended = agent.wait_for("the termination cause", GUARD, is_kind("container_terminated")).unwrap();
    assert_eq!(
        (ended.text("cause"), ended.text("mismatch")),
        ("evicted_by_agent", "killed_by_eviction"),
        "{ended:?}"
    );
    let cleared =
        wait_for_events(&testbed.cluster, "default", "EvictionThresholdCleared", |events| !events.is_empty());
    assert_eq!(cleared[0]["type"], "Normal");
    let pod = testbed.node.pods.remove(0);
    testbed.cluster.end_pod(&pod).unwrap();
    assert_eq!(list_events(&testbed.cluster, "shop", "Evicted").len(), 1);
    assert!(
        list_events(&testbed.cluster, "shop", "ContainerOOMKilled").is_empty(),
        "no process was killed by the kernel"
    );
    agent.stop().unwrap();
}

#[test]
fn oom_kills_of_a_pod_are_one_event_series() {
    let pod = PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", "web", &["app"], 8) };
    let Some(testbed) = Testbed::new("events-series", [pod]) else { return };
    let mut parent = testbed.workload(0, &["child", "--size", "64M", "--times", "5"]);
    let mut agent = start(&testbed, &distant_threshold(), testbed.cluster.port());
    parent.go().unwrap();
    let reported = agent.wait_for("of the kill", GUARD, is_kind("oom_kill")).unwrap();
    let events = wait_for_oom_kills(&testbed.cluster, 5);
    let [event] = &events[..] else { panic!("one series: {events:?}") };
    let note = event["note"].as_str().unwrap();
    let pid = reported.number("pid").unwrap();
    // A pod of one container has the container's limit, and more charges count against it.
    let owner = reported.text("limit_scope");
    assert!(["container", "pod"].contains(&owner), "{reported:?}");
    // The counts of both may have increased: a charge that failed at one limit succeeded before a process was killed.
    let inferred = if reported.value["inferred"] == true { " (inferred)" } else { "" };
    let prefix = format!(
        "kernel OOM kill of workload (pid {pid}, a child process) in container app of shop/web: limit of the {owner}{inferred}, "
    );
    assert!(note.starts_with(&prefix), "{note}");
    assert!(note.contains("; victim: anon ") && note.ends_with("; not an eviction"), "{note}");
    let annotations = &event["metadata"]["annotations"];
    for (name, value) in
        [("container", "app"), ("limit-scope", owner), ("victim", "child"), ("process", "workload")]
    {
        assert_eq!(annotations[format!("eviction-agent.io/{name}")], value, "{annotations}");
    }
    assert_eq!(annotations["eviction-agent.io/limit"], (16 * MIB).to_string());
    for name in ["pid", "usage", "anon", "file", "shmem"] {
        let reported = reported.number(name).unwrap().to_string();
        assert_eq!(annotations[format!("eviction-agent.io/{name}")], reported, "{name}");
    }
    assert!(event["series"]["lastObservedTime"].as_str().unwrap() > event["eventTime"].as_str().unwrap());
    assert_eq!(event["regarding"]["uid"], testbed.node.pods[0].uid());
    assert!(list_events(&testbed.cluster, "shop", "Evicted").is_empty());
    let labels = [("reason", "ContainerOOMKilled"), ("result", "created")];
    agent.wait_for_metric("eviction_agent_kube_events_total", &labels, |created| created == 1.0).unwrap();
    let labels = [("reason", "ContainerOOMKilled"), ("result", "counted")];
    agent.wait_for_metric("eviction_agent_kube_events_total", &labels, |counted| counted == 4.0).unwrap();
    agent.stop().unwrap();
}

#[test]
fn a_thousand_oom_kills_take_less_than_sixty_requests_a_minute() {
    const PODS: u32 = 20;
    const EACH: u32 = 50;
    let pods = (0..PODS)
        .map(|nth| PodSpec { limit_mib: Some(8), ..PodSpec::new("shop", format!("web-{nth}"), &["app"], 1) });
    let Some(testbed) = Testbed::new("events-storm", pods) else { return };
    let times = EACH.to_string();
    let arguments = ["child", "--size", "16M", "--times", &times];
    let mut parents: Vec<_> =
        (0..testbed.node.pods.len()).map(|pod| testbed.workload(pod, &arguments)).collect();
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let agent = start(&testbed, &distant_threshold(), proxy.port());
    parents.iter_mut().for_each(|parent| parent.go().unwrap());
    for parent in &mut parents {
        for _ in 0..EACH {
            let ended = parent.wait_event("child-ended").unwrap();
            assert_eq!(ended["signal"], 9, "{ended}");
        }
    }
    let kills = f64::from(PODS * EACH);
    let events_with_result = |result: &str| {
        let labels = [("reason", "ContainerOOMKilled"), ("result", result)];
        agent.metric("eviction_agent_kube_events_total", &labels).unwrap()
    };
    let of_shop = [("namespace", "shop")];
    agent.wait_for_metric("eviction_agent_oom_kills_total", &of_shop, |count| count == kills).unwrap();
    assert_eq!(events_with_result("noted"), kills);
    let events = wait_for_oom_kills(&testbed.cluster, u64::from(PODS * EACH));
    // A parent that the agent did not know as the main process at first has a series for its unknown children.
    let pods = testbed.node.pods.len();
    assert!((pods..=2 * pods).contains(&events.len()), "{} series", events.len());
    let are_all_counted = |counted: f64| counted + events_with_result("created") == kills;
    agent
        .wait_for_metric("eviction_agent_kube_events_total", &[("result", "counted")], are_all_counted)
        .unwrap();
    assert_eq!((events_with_result("dropped"), events_with_result("refused")), (0.0, 0.0));
    let requests = proxy.requests().into_iter().filter(|seen| seen.request.contains("/events"));
    let request_times: Vec<Instant> = requests.map(|seen| seen.at).collect();
    for (nth, at) in request_times.iter().enumerate() {
        let until = *at + Duration::from_secs(60);
        let within = request_times[nth..].iter().take_while(|later| **later < until).count();
        assert!(within < 60, "{within} requests about events in a minute");
    }
    agent.stop().unwrap();
}

#[test]
fn events_are_sent_after_an_outage_and_a_missing_right_is_counted() {
    let pod = PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", "web", &["app"], 8) };
    let Some(testbed) = Testbed::new("events-outage", [pod]) else { return };
    let mut parent = testbed.workload(0, &["child", "--size", "64M", "--times", "3"]);
    let proxy = Proxy::start(&testbed.cluster).unwrap();
    let mut agent = start(&testbed, &distant_threshold(), proxy.port());
    proxy.refuse();
    parent.go().unwrap();
    (0..3).for_each(|_| drop(parent.wait_event("child-ended").unwrap()));
    agent.wait_for("the third kill", GUARD, |event| event.number("kills_in_pod") == Some(3)).unwrap();
    proxy.reopen();
    let events = wait_for_oom_kills(&testbed.cluster, 3);
    let [event] = &events[..] else { panic!("{events:?}") };
    let first = agent.wait_for("of the first kill", GUARD, is_kind("oom_kill")).unwrap();
    assert_eq!(
        event["eventTime"].as_str().unwrap()[..19],
        first.text("at")[..19],
        "it is reported when it was"
    );

    testbed.cluster.set_rules("agent", &agent::watching_rules()).unwrap();
    let client = testbed.cluster.client(&testbed.cluster.token("agent").unwrap()).unwrap();
    let path = "/apis/events.k8s.io/v1/namespaces/shop/events/none";
    fixture::interrupt()
        .until("the right is gone", GUARD, || {
            Ok((client.patch(Patch::Merge, path, &json!({}))?.status == 403).then_some(()))
        })
        .unwrap();
    let mut second_parent = testbed.workload(0, &["child", "--size", "64M"]);
    second_parent.go().unwrap();
    let labels = [("result", "refused")];
    agent.wait_for_metric("eviction_agent_kube_events_total", &labels, |count| count >= 1.0).unwrap();
    agent.stop().unwrap();
}
