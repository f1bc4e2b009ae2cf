//! The agent reads pods from the API server, and joins them with the cgroups of the machine.

use serde_json::json;
use tests::cgroup::pod_uid;
use tests::cluster::manifest;

use crate::agent::{self, NODE, create_pod_cgroups, names, wait_for_pods};

const OBJECTS: &str = "eviction_agent_kube_watch_objects";
const EVENTS: &str = "eviction_agent_kube_watch_events_total";

#[test]
fn pods_are_known_from_a_watch_and_joined_with_their_cgroups() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-watch");
    let web = cluster.run_pod(&manifest::pod("web", NODE)).unwrap();
    cluster.run_pod(&manifest::pod("elsewhere", "n2")).unwrap();
    create_pod_cgroups(&node, web["metadata"]["uid"].as_str().unwrap(), 1);

    let mut agent = agent::start(&node, &kubeconfig);
    assert_eq!(agent.backend("pods").as_deref(), Some("watch"));
    let reason = agent.backend_reason("pods").unwrap();
    assert!(reason.starts_with(&format!("pods of node {NODE} at {}", cluster.url())), "{reason}");
    let event = wait_for_pods(&mut agent, "one pod", |it| it["pods_known"] == 1);
    assert_eq!(event["with_cgroup"], 1, "{event}");

    // A pod without a cgroup, then with one; a cgroup without a pod.
    let late = cluster.run_pod(&manifest::pod("late", NODE)).unwrap();
    let event = wait_for_pods(&mut agent, "a second pod", |it| it["pods_known"] == 2);
    assert_eq!(names(&event, "without_cgroup"), ["default/late"], "{event}");
    create_pod_cgroups(&node, late["metadata"]["uid"].as_str().unwrap(), 2);
    wait_for_pods(&mut agent, "its cgroup", |it| it["pods_known"] == 2 && it["with_cgroup"] == 2);
    create_pod_cgroups(&node, &pod_uid(7), 7);
    wait_for_pods(&mut agent, "an unknown cgroup", |it| names(it, "unknown_cgroups") == [pod_uid(7)]);

    // Another pod of the same name has another UID: the cgroup of the first one is not its own.
    cluster.finish_pod("default", "web").unwrap();
    let second = cluster.run_pod(&manifest::pod("web", NODE)).unwrap();
    assert_ne!(second["metadata"]["uid"], web["metadata"]["uid"]);
    let event = wait_for_pods(&mut agent, "the second of that name", |it| {
        names(it, "without_cgroup") == ["default/web"]
    });
    let unknown = names(&event, "unknown_cgroups");
    assert!(unknown.contains(&web["metadata"]["uid"].as_str().unwrap().to_owned()), "{event}");

    cluster.finish_pod("default", "web").unwrap();
    cluster.finish_pod("default", "late").unwrap();
    wait_for_pods(&mut agent, "no pods", |it| it["pods_known"] == 0);
    agent.wait_for_metric(OBJECTS, &[("resource", "pods")], |count| count == 0.0).unwrap();
    agent.wait_for_metric(OBJECTS, &[("resource", "nodes")], |count| count == 1.0).unwrap();
    let answered = [("code", "200")];
    agent.wait_for_metric("eviction_agent_kube_api_requests_total", &answered, |count| count > 4.0).unwrap();
    let last_event = "eviction_agent_kube_watch_last_event_timestamp_seconds";
    assert!(agent.metrics().unwrap().has_series(last_event, &[]));
    agent.stop().unwrap();
}

#[test]
fn five_hundred_pods_some_of_maximum_size_are_decoded() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let kubeconfig = cluster.kubeconfig("agent", &account.token).unwrap();
    let node = agent::small_node("e2e-many");
    let large = "x".repeat((256 << 10) - 64);
    let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    let create_pod = |nth: usize| {
        let mut pod = manifest::pod(&format!("p{nth}"), NODE);
        match nth {
            0 => pod["metadata"]["name"] = json!(longest),
            1..=20 => pod["metadata"]["annotations"] = json!({"example.com/all-that-fits": large}),
            _ => {}
        }
        cluster.make_pod(&pod).unwrap();
    };
    (0..250).for_each(create_pod);
    let mut agent = agent::start(&node, &kubeconfig);
    // Half of the pods are in the first list, the other half come one by one.
    (250..500).for_each(create_pod);
    let event = wait_for_pods(&mut agent, "all pods", |it| it["pods_known"] == 500);
    assert!(names(&event, "without_cgroup").contains(&format!("default/{longest}")));
    assert!(event.get("undecodable").is_none(), "{event}");
    for kind in ["unreadable", "too_long", "too_many", "failed"] {
        let count = agent.metric(EVENTS, &[("resource", "pods"), ("event", kind)]).unwrap();
        assert_eq!(count, 0.0, "{kind}");
    }
    agent.stop().unwrap();
}
