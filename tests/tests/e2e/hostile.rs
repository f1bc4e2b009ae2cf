//! Objects that a real server refuses to store arrive through a proxy: the agent must not panic, must report what it
//! cannot decode, and must not take that for a pod.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::proxy::{Fault, Proxy, Rewrite, When};
use tests::cluster::{Cluster, Patch, manifest};

use crate::agent::{self, NODE, names, wait_for_pods};
use crate::fixture;

const EVENTS: &str = "eviction_agent_kube_watch_events_total";
const PODS: &str = "/api/v1/pods";

/// Changes a pod in the way that its name describes.
fn corrupt(pod: &mut Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let container = "/spec/containers/0/resources";
    let mut set = |pointer: &str, value: Value| {
        if let Some(place) = pod.pointer_mut(pointer) {
            *place = value;
        }
    };
    match name.as_str() {
        "text-as-metadata" => set("/metadata", json!("none")),
        "list-as-metadata" => set("/metadata", json!([])),
        "no-uid" => set("/metadata/uid", Value::Null),
        "number-as-uid" => set("/metadata/uid", json!(5)),
        "odd-uid" => set("/metadata/uid", json!("../../\u{0}kubepods/\u{fc}/pod")),
        "no-spec" => set("/spec", Value::Null),
        "text-as-containers" => set("/spec/containers", json!("none")),
        "overflowing-priority" => set("/spec/priority", json!(3_000_000_000_u64)),
        "overflowing-quantity" => {
            set(
                container,
                json!({"requests": {"memory": "99999999999999999999E"}, "limits": {"memory": "1e400"}}),
            );
        }
        "no-quantity" => set(container, json!({"requests": {"memory": "much"}})),
        "unicode-labels" => set("/metadata/labels", json!({"\u{1f980}": "\u{0}\u{202e}", "": null})),
        "no-time" => set("/status/startTime", json!("yesterday")),
        _ => {}
    }
}

const CORRUPTED: [&str; 12] = [
    "text-as-metadata",
    "no-uid",
    "number-as-uid",
    "odd-uid",
    "no-spec",
    "text-as-containers",
    "overflowing-priority",
    "overflowing-quantity",
    "no-quantity",
    "unicode-labels",
    "no-time",
    // Has no resourceVersion either, so its event makes the agent list all pods again.
    "list-as-metadata",
];

/// Makes the proxy corrupt pods in lists and events, send each event twice, and repeat the one before it.
fn inject_corrupted_pods(proxy: &Proxy) {
    let list = |mut list: Value| {
        if let Some(items) = list["items"].as_array_mut() {
            items.iter_mut().for_each(corrupt);
        }
        vec![list]
    };
    let before = Mutex::new(Value::Null);
    let event = move |mut event: Value| {
        corrupt(&mut event["object"]);
        let before = std::mem::replace(&mut *before.lock().unwrap(), event.clone());
        let nonsense = json!({"type": "NEW", "object": [event["type"]]});
        vec![
            event.clone(),
            event,
            before,
            nonsense,
            json!("no event"),
            json!({"type": "BOOKMARK", "object": {}}),
        ]
    };
    proxy.on(When::any().watch(false).path(PODS), Fault::Rewrite(Rewrite::new(list)));
    proxy.on(When::any().watch(true).path(PODS), Fault::Rewrite(Rewrite::new(event)));
}

fn touch(cluster: &Cluster, name: &str) {
    let path = format!("/api/v1/namespaces/default/pods/{name}");
    let patch = json!({"metadata": {"labels": {"touched": "yes"}}});
    cluster.admin().patch(Patch::Merge, &path, &patch).unwrap().ok().unwrap();
}

#[test]
fn undecodable_pods_are_reported_until_they_can_be_decoded() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let proxy = Proxy::start(&cluster).unwrap();
    let kubeconfig = cluster.kubeconfig_at("agent", &account.token, proxy.port()).unwrap();
    let node = agent::small_node("e2e-hostile");
    let (listed, watched) = CORRUPTED.split_at(6);
    for name in listed {
        cluster.run_pod(&manifest::pod(name, NODE)).unwrap();
    }
    let good = cluster.run_pod(&manifest::pod("good", NODE)).unwrap();
    agent::create_pod_cgroups(&node, good["metadata"]["uid"].as_str().unwrap(), 1);
    inject_corrupted_pods(&proxy);
    let mut agent = agent::start(&node, &kubeconfig);
    for name in watched {
        cluster.run_pod(&manifest::pod(name, NODE)).unwrap();
    }
    cluster.run_pod(&manifest::pod("last", NODE)).unwrap();

    // Those without an identity cannot be named at all.
    let known = ["no-spec", "odd-uid", "overflowing-quantity", "unicode-labels", "last"];
    let unreadable = ["text-as-containers", "overflowing-priority", "no-quantity", "no-time"];
    let event = wait_for_pods(&mut agent, "all of them", |it| {
        let (without, wrong) = (names(it, "without_cgroup"), names(it, "undecodable"));
        known.iter().all(|name| without.contains(&format!("default/{name}")))
            && unreadable
                .iter()
                .all(|name| wrong.iter().any(|it| it.starts_with(&format!("default/{name}: "))))
    });
    assert_eq!(
        (&event["with_cgroup"], &event["pods_known"]),
        (&json!(1), &json!(known.len() + 1)),
        "{event}"
    );
    assert_eq!(names(&event, "undecodable").len(), unreadable.len(), "{event}");
    for kind in ["unreadable", "repeated", "reordered"] {
        let labels = [("resource", "pods"), ("event", kind)];
        agent.wait_for_metric(EVENTS, &labels, |count| count > 0.0).unwrap();
    }

    // A pod that can be decoded again is a pod again.
    proxy.refuse();
    wait_for_pods(&mut agent, "that the server is gone", |it| it["error"].is_string());
    proxy.heal();
    for name in CORRUPTED {
        touch(&cluster, name);
    }
    let all = CORRUPTED.len() + 2;
    wait_for_pods(&mut agent, "all pods", |it| it["pods_known"] == all && it.get("undecodable").is_none());
    assert_eq!(agent.count_decisions().unwrap(), 0);
    agent.stop().unwrap();
}

#[test]
fn a_watch_continues_after_every_kind_of_fault() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let proxy = Proxy::start(&cluster).unwrap();
    let kubeconfig = cluster.kubeconfig_at("agent", &account.token, proxy.port()).unwrap();
    let node = agent::small_node("e2e-broken");
    let mut agent = agent::start(&node, &kubeconfig);
    let expired = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}});
    let throttled = vec![("retry-after", "1".to_owned())];
    let watches = || When::any().watch(true).path(PODS);
    let lists = || When::any().watch(false).path(PODS);
    // Faults that need no event come first: an open, silent watch would delay the others.
    let faults = [
        (watches().times(2), Fault::status(500)),
        (watches().times(1), Fault::Answer(429, throttled, json!({"reason": "TooManyRequests"}))),
        (watches().times(1), Fault::Answer(410, Vec::new(), json!({"code": 410, "reason": "Expired"}))),
        (lists().times(1), Fault::Truncate(60)),
        (lists().times(1), Fault::status(503)),
        (watches().times(2), Fault::Close(Duration::from_secs(1))),
        (watches().times(1), Fault::Rewrite(Rewrite::new(move |_| vec![expired.clone()]))),
        (watches().times(2), Fault::Truncate(40)),
        (watches().times(2), Fault::Reset(700)),
    ];
    for (when, fault) in faults {
        proxy.on(when, fault);
    }
    // The open watch ends here; each of the following ones has one fault.
    proxy.refuse();
    wait_for_pods(&mut agent, "that the server is gone", |it| it["error"].is_string());
    proxy.reopen();
    for nth in 1..=12 {
        cluster.run_pod(&manifest::pod(&format!("p{nth}"), NODE)).unwrap();
        wait_for_pods(&mut agent, &format!("{nth} pods"), |it| it["pods_known"] == nth);
    }
    for kind in ["closed", "expired", "failed", "listed"] {
        let labels = [("resource", "pods"), ("event", kind)];
        agent.wait_for_metric(EVENTS, &labels, |count| count > 0.0).unwrap();
    }
    // Silent connections are not reported; after them the agent is up to date again.
    proxy.hang();
    for name in ["p13", "p14"] {
        cluster.run_pod(&manifest::pod(name, NODE)).unwrap();
    }
    fixture::interrupt().sleep(Duration::from_secs(2)).unwrap();
    proxy.heal();
    wait_for_pods(&mut agent, "all pods", |it| it["pods_known"] == 14);
    agent.stop().unwrap();
}
