//! What the API server gets: evictions, kills by the kernel and thresholds, as events, and in how
//! few requests.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options, binary};
use tests::cluster::proxy::Proxy;
use tests::cluster::{self, Cluster, Patch};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::{self, Workload};

use crate::agent::{self, NODE, wait_for_metric};
use crate::fixture;

const MEMORY: u64 = 320 * MIB;
const PIDS: u64 = 400;

/// A cluster whose pods are cgroups of this machine, with an agent that may evict and tell of it.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
    proxy: Proxy,
    kubeconfig: std::path::PathBuf,
}

fn rules() -> Value {
    let mut rules = agent::watching_rules();
    let more = json!([
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]);
    rules.as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
    rules
}

impl World {
    /// A node with these pods of the namespace `shop`.
    pub(crate) fn new(label: &str, pods: impl IntoIterator<Item = PodSpec>) -> Option<Self> {
        let mut cluster = fixture::cluster(&cluster::Options::default())?;
        let Ok(mut node) = Node::new(label, MEMORY, PIDS) else {
            tests::report_skip("no cgroups can be made here");
            return None;
        };
        cluster.add_node(NODE).unwrap();
        let account = agent::account(&mut cluster, "agent", &rules());
        let proxy = Proxy::start(&cluster).unwrap();
        let kubeconfig = cluster.kubeconfig_at("agent", &account.token, proxy.port()).unwrap();
        for pod in pods {
            cluster.place(NODE, &mut node, pod).unwrap();
        }
        Some(Self { cluster, node, proxy, kubeconfig })
    }

    pub(crate) fn start(&self, kubelet: &Value) -> Agent {
        let options = Options::of(&binary().unwrap(), &self.node, kubelet).unwrap();
        let kubeconfig = self.kubeconfig.display().to_string();
        let more = ["--kubeconfig", &kubeconfig, "--node-name", NODE].map(str::to_owned).to_vec();
        let config = Some(tests::agent::at_the_line(&self.node).unwrap());
        let options = Options { pods: None, config, action: "evict", more, ..options };
        let mut agent = Agent::start_recorded(&options, fixture::interrupt()).unwrap();
        let placed = self.node.pods.len();
        agent::wait_for_pods(&mut agent, "all pods", |it| it["with_cgroup"] == placed);
        agent
    }

    pub(crate) fn workload(&self, pod: usize, arguments: &[&str]) -> Workload {
        let group = &self.node.pods[pod].containers[0].group;
        Workload::start(&workload::binary().unwrap(), group, arguments).unwrap()
    }

    /// The events of a namespace with that reason.
    fn events(&self, namespace: &str, reason: &str) -> Vec<Value> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let list = self.cluster.admin().get(&path).unwrap().ok().unwrap();
        let of_it = |event: &&Value| event["reason"] == reason;
        list["items"].as_array().unwrap().iter().filter(of_it).cloned().collect()
    }

    /// Waits until they are so.
    fn wait_for_events(&self, namespace: &str, reason: &str, fits: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let what = format!("events {reason} in {namespace}");
        fixture::interrupt()
            .until(&what, GUARD, || {
                let events = self.events(namespace, reason);
                Ok(fits(&events).then_some(events))
            })
            .unwrap()
    }

    /// When requests about events came.
    fn asked(&self) -> Vec<Instant> {
        let about = self.proxy.seen().into_iter().filter(|seen| seen.request.contains("/events"));
        about.map(|seen| seen.at).collect()
    }
}

/// So many occurrences an event stands for.
fn count(event: &Value) -> u64 {
    event["series"]["count"].as_u64().unwrap_or(1)
}

fn far() -> Value {
    json!({"evictionHard": {"memory.available": "1Mi"}})
}

fn is(kind: &'static str) -> impl Fn(&Event) -> bool {
    move |event| event.kind() == kind
}

#[test]
fn an_eviction_is_reported_as_the_kubelet_reports_its_own_and_a_threshold_on_the_node() {
    let pods = ["hog", "quiet"].map(|name| PodSpec::new("shop", name, &["main"], 8));
    let Some(mut world) = World::new("events", pods) else { return };
    let mut hog = world.workload(0, &["--on-term", "ignore", "hold", "--size", "270M"]);
    let mut agent = world.start(&json!({"evictionHard": {"memory.available": "64Mi"}}));
    hog.go().unwrap();

    let decision = agent.wait_for("a decision", GUARD, is("eviction_decision")).unwrap();
    let events = world.wait_for_events("shop", "Evicted", |events| !events.is_empty());
    let [event] = &events[..] else { panic!("{events:?}") };
    let note = event["note"].as_str().unwrap();
    assert_eq!(note, decision.text("eviction_message"));
    let begin = "The node was low on resource: memory. Threshold quantity: 64Mi, available: ";
    assert!(note.starts_with(begin) && note.ends_with("has larger consumption of memory. "), "{note}");
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(annotations["starved_resource"], "memory");
    assert_eq!(annotations["offending_containers"], "main");
    let usage = annotations["offending_containers_usage"].as_str().unwrap();
    assert!(note.contains(&format!("Container main was using {usage}, request is 8Mi, ")), "{note}");
    let id = annotations["eviction-agent.io/decision"].as_str().unwrap();
    assert_eq!(id, decision.text("decision_id"));
    assert!(id.ends_with(&format!("-{}", decision.number("id").unwrap())), "{id}");
    assert_eq!(annotations.as_object().unwrap().len(), 4, "{annotations}");
    let uid = world.node.pods[0].uid();
    let regarding =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "hog", "uid": uid});
    assert_eq!(event["regarding"], regarding);
    assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("Evict")));
    assert_eq!(event["reportingController"], "eviction-agent.io/agent");
    assert_eq!(event["reportingInstance"], format!("eviction-agent-{NODE}"));
    // As whoever reads the older API sees it.
    let name = event["metadata"]["name"].as_str().unwrap();
    let old =
        world.cluster.admin().get(&format!("/api/v1/namespaces/shop/events/{name}")).unwrap().ok().unwrap();
    assert_eq!((&old["message"], &old["involvedObject"]["uid"]), (&event["note"], &json!(uid)));

    let met = world.wait_for_events("default", "EvictionThresholdMet", |events| !events.is_empty());
    assert_eq!((&met[0]["regarding"]["kind"], &met[0]["regarding"]["name"]), (&json!("Node"), &json!(NODE)));
    assert!(met[0]["note"].as_str().unwrap().starts_with("hard threshold memory.available < 64Mi met"));
    assert_eq!(met[0]["type"], "Warning");

    // What a kubelet does in the end, and what it writes.
    hog.process().child().kill().unwrap();
    hog.process().wait().unwrap();
    crate::apart::end(&world, 0, &json!({"exitCode": 137, "reason": "Error"}));
    let ended = agent.wait_for("the verdict", GUARD, is("container_terminated")).unwrap();
    assert_eq!(
        (ended.text("cause"), ended.text("mismatch")),
        ("evicted_by_agent", "killed_by_eviction"),
        "{ended:?}"
    );
    let cleared = world.wait_for_events("default", "EvictionThresholdCleared", |events| !events.is_empty());
    assert_eq!(cleared[0]["type"], "Normal");
    let pod = world.node.pods.remove(0);
    world.cluster.end_pod(&pod).unwrap();
    assert_eq!(world.events("shop", "Evicted").len(), 1);
    assert!(world.events("shop", "ContainerOOMKilled").is_empty(), "nobody was killed by the kernel");
    assert!(agent.stop().unwrap().success());
}

#[test]
fn kills_are_reported_on_their_pod_and_repeats_are_one_series() {
    let pod = PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", "web", &["app"], 8) };
    let Some(world) = World::new("events-series", [pod]) else { return };
    let mut parent = world.workload(0, &["child", "--size", "64M", "--times", "5"]);
    let mut agent = world.start(&far());
    parent.go().unwrap();
    let reported = agent.wait_for("of the kill", GUARD, is("oom_kill")).unwrap();
    let events = world
        .wait_for_events("shop", "ContainerOOMKilled", |events| events.iter().map(count).sum::<u64>() == 5);
    let [event] = &events[..] else { panic!("one series: {events:?}") };
    let note = event["note"].as_str().unwrap();
    let pid = reported.number("pid").unwrap();
    // A pod of one container has the container's limit, and more that counts against it.
    let owner = reported.text("limit_scope");
    assert!(["container", "pod"].contains(&owner), "{reported:?}");
    // Both counts may have moved: a charge that failed at the one found room before anybody died.
    let inferred = if reported.value["inferred"] == true { " (inferred)" } else { "" };
    let begin = format!(
        "kernel OOM kill of workload (pid {pid}, a child process) in container app of shop/web: limit of the {owner}{inferred}, "
    );
    assert!(note.starts_with(&begin), "{note}");
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
    assert_eq!(event["regarding"]["uid"], world.node.pods[0].uid());
    assert!(world.events("shop", "Evicted").is_empty());
    let labels = [("reason", "ContainerOOMKilled"), ("result", "created")];
    wait_for_metric(&agent, "eviction_agent_kube_events_total", &labels, |created| created == 1.0);
    let labels = [("reason", "ContainerOOMKilled"), ("result", "counted")];
    wait_for_metric(&agent, "eviction_agent_kube_events_total", &labels, |counted| counted == 4.0);
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_storm_of_a_thousand_kills_takes_less_than_sixty_requests_a_minute_and_every_kill_is_reported() {
    const PODS: u32 = 20;
    const EACH: u32 = 50;
    let pods = (0..PODS)
        .map(|nth| PodSpec { limit_mib: Some(8), ..PodSpec::new("shop", format!("web-{nth}"), &["app"], 1) });
    let Some(world) = World::new("events-storm", pods) else { return };
    let times = EACH.to_string();
    let arguments = ["child", "--size", "16M", "--times", &times];
    let mut parents: Vec<_> = (0..world.node.pods.len()).map(|pod| world.workload(pod, &arguments)).collect();
    let agent = world.start(&far());
    parents.iter_mut().for_each(|parent| parent.go().unwrap());
    for parent in &mut parents {
        for _ in 0..EACH {
            let ended = parent.wait_event("child-ended").unwrap();
            assert_eq!(ended["signal"], 9, "{ended}");
        }
    }
    let kills = f64::from(PODS * EACH);
    let fate = |outcome: &str| {
        let labels = [("reason", "ContainerOOMKilled"), ("result", outcome)];
        agent.metrics().unwrap().sum("eviction_agent_kube_events_total", &labels)
    };
    wait_for_metric(&agent, "eviction_agent_oom_kills_total", &[("namespace", "shop")], |count| {
        count == kills
    });
    assert_eq!(fate("noted"), kills);
    let events = world.wait_for_events("shop", "ContainerOOMKilled", |events| {
        events.iter().map(count).sum::<u64>() == u64::from(PODS * EACH)
    });
    // A parent that was not known as the main process at first has a series for its unknown children.
    let pods = world.node.pods.len();
    assert!((pods..=2 * pods).contains(&events.len()), "{} series", events.len());
    wait_for_metric(&agent, "eviction_agent_kube_events_total", &[("result", "counted")], |counted| {
        counted + fate("created") == kills
    });
    assert_eq!((fate("dropped"), fate("refused")), (0.0, 0.0));
    let asked = world.asked();
    for (nth, at) in asked.iter().enumerate() {
        let until = *at + Duration::from_secs(60);
        let within = asked[nth..].iter().take_while(|later| **later < until).count();
        assert!(within < 60, "{within} requests about events in a minute");
    }
    assert!(agent.stop().unwrap().success());
}

#[test]
fn what_could_not_be_reported_is_reported_when_the_server_is_back_and_a_missing_right_is_logged() {
    let pod = PodSpec { limit_mib: Some(16), ..PodSpec::new("shop", "web", &["app"], 8) };
    let Some(world) = World::new("events-outage", [pod]) else { return };
    let mut parent = world.workload(0, &["child", "--size", "64M", "--times", "3"]);
    let mut agent = world.start(&far());
    world.proxy.refuse();
    parent.go().unwrap();
    (0..3).for_each(|_| drop(parent.wait_event("child-ended").unwrap()));
    agent.wait_for("the third kill", GUARD, |event| event.number("kills_in_pod") == Some(3)).unwrap();
    world.proxy.reopen();
    let events = world
        .wait_for_events("shop", "ContainerOOMKilled", |events| events.iter().map(count).sum::<u64>() == 3);
    let [event] = &events[..] else { panic!("{events:?}") };
    let first = agent.wait_for("of the first kill", GUARD, is("oom_kill")).unwrap();
    assert_eq!(
        event["eventTime"].as_str().unwrap()[..19],
        first.text("at")[..19],
        "it is reported when it was"
    );

    world.cluster.set_rules("agent", &agent::watching_rules()).unwrap();
    let client = world.cluster.client(&world.cluster.token("agent").unwrap()).unwrap();
    let path = "/apis/events.k8s.io/v1/namespaces/shop/events/none";
    fixture::interrupt()
        .until("the right is gone", GUARD, || {
            Ok((client.patch(Patch::Merge, path, &json!({}))?.status == 403).then_some(()))
        })
        .unwrap();
    let mut again = world.workload(0, &["child", "--size", "64M"]);
    again.go().unwrap();
    let labels = [("result", "refused")];
    wait_for_metric(&agent, "eviction_agent_kube_events_total", &labels, |count| count >= 1.0);
    assert!(agent.stop().unwrap().success());
}
