//! Behavior of the API server that the agent depends on: if it were different, the other tests would prove nothing.

use serde_json::{Value, json};
use tests::agent::GUARD;
use tests::cluster::{Options, Patch, kubernetes_version, manifest};
use tests::node::{MIB, Node, PodSpec};
use tests::skip;

use crate::fixture;
use crate::testbed::is_terminating;

/// Returns the causes that identify a refusal because of a PDB.
fn causes(answer: &Value) -> Vec<(&str, &str)> {
    let list = answer["details"]["causes"].as_array().map_or(&[][..], Vec::as_slice);
    list.iter()
        .map(|it| (it["reason"].as_str().unwrap_or_default(), it["message"].as_str().unwrap_or_default()))
        .collect()
}

#[test]
fn evictions_are_answered_as_the_agent_expects() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    let version = cluster.admin().get("/version").unwrap().ok().unwrap();
    assert_eq!(version["gitVersion"].as_str(), kubernetes_version(), "{version}");
    cluster.add_node("n1").unwrap();
    let node = cluster.admin().get("/api/v1/nodes/n1").unwrap().ok().unwrap();
    assert_eq!(node["spec"]["taints"], Value::Null, "{node}");

    // The eviction is granted, and the pod stays until its kubelet removes it.
    let web = cluster.run_pod(&manifest::pod("web", "n1")).unwrap();
    assert_eq!(web["status"]["phase"], "Running");
    let uid = &web["metadata"]["uid"];
    let other_uid = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
    let refused = cluster.evict("default", "web", &other_uid).unwrap();
    assert_eq!((refused.status, refused.reason()), (409, "Conflict"), "{refused:?}");
    assert!(!is_terminating(&cluster, "web"));
    let wanted = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 7});
    assert_eq!(cluster.evict("default", "web", &json!({"dryRun": ["All"]})).unwrap().status, 201);
    assert!(!is_terminating(&cluster, "web"));
    assert_eq!(cluster.evict("default", "web", &wanted).unwrap().status, 201);
    let web = cluster.pod("default", "web").unwrap().unwrap();
    assert_eq!(web["metadata"]["deletionGracePeriodSeconds"], 7);
    let condition =
        web["status"]["conditions"].as_array().unwrap().iter().find(|it| it["type"] == "DisruptionTarget");
    assert_eq!(condition.unwrap()["reason"], "EvictionByEvictionAPI", "{web}");
    assert_eq!(cluster.evict("default", "web", &wanted).unwrap().status, 201, "again, without a change");
    cluster.finish_pod("default", "web").unwrap();
    assert_eq!(cluster.pod("default", "web").unwrap(), None);
    let not_found = cluster.evict("default", "web", &wanted).unwrap();
    assert_eq!((not_found.status, not_found.reason()), (404, "NotFound"));

    // A PDB refuses the eviction, or its status is not known yet.
    cluster.run_pod(&manifest::pod("shop", "n1")).unwrap();
    cluster.add_budget("one", "shop", 1, 0).unwrap();
    let refused = cluster.evict("default", "shop", &Value::Null).unwrap();
    assert_eq!((refused.status, refused.reason()), (429, "TooManyRequests"), "{refused:?}");
    let [(reason, message)] = causes(&refused.body)[..] else { panic!("{refused:?}") };
    assert_eq!(reason, "DisruptionBudget");
    assert_eq!(message, "The disruption budget one needs 1 healthy pods and has 1 currently");
    assert!(!refused.headers.contains_key("retry-after"), "{refused:?}");
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    cluster
        .admin()
        .patch(Patch::Merge, &format!("{budgets}/one"), &json!({"spec": {"minAvailable": 2}}))
        .unwrap()
        .ok()
        .unwrap();
    let stale = cluster.evict("default", "shop", &Value::Null).unwrap();
    assert_eq!((stale.status, &stale.headers["retry-after"]), (429, &"10".parse().unwrap()), "{stale:?}");
    assert_eq!(causes(&stale.body)[0].0, "DisruptionBudget");
    cluster.add_budget("two", "shop", 1, 1).unwrap();
    let two_budgets = cluster.evict("default", "shop", &Value::Null).unwrap();
    assert_eq!((two_budgets.status, two_budgets.reason()), (500, ""), "{two_budgets:?}");
    assert!(!is_terminating(&cluster, "shop"));
}

#[test]
fn a_watch_reports_the_pods_of_one_node() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]);
    let account = cluster.account("watcher", &rules).unwrap();
    let client = cluster.client(&account.token).unwrap();
    let path = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1";
    let refused = cluster.client("").unwrap().get(path).unwrap();
    assert_eq!(refused.status, 403, "{refused:?}");
    let mut watch = cluster.until("the rights are known", |_| Ok(client.watch(path).ok())).unwrap();
    cluster.run_pod(&manifest::pod("web", "n1")).unwrap();
    cluster.run_pod(&manifest::pod("elsewhere", "n2")).unwrap();
    cluster.finish_pod("default", "web").unwrap();
    let mut reported = Vec::new();
    while reported.last().is_none_or(|kind| kind != "DELETED") {
        let event = watch.next(GUARD).unwrap().expect("an event");
        assert_eq!(event["object"]["metadata"]["name"], "web", "{event}");
        reported.push(event["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(reported, ["ADDED", "MODIFIED", "MODIFIED", "DELETED"], "made, running, deleted, gone");

    // The same server, after it was frozen and killed.
    cluster.freeze_server().unwrap();
    cluster.thaw_server().unwrap();
    assert_eq!(client.get("/api/v1/pods").unwrap().status, 200);
    cluster.kill_server().unwrap();
    assert!(client.get("/api/v1/pods").is_err());
    cluster.start_server().unwrap();
    let pods = client.get("/api/v1/pods").unwrap().ok().unwrap();
    assert_eq!(pods["items"][0]["metadata"]["name"], "elsewhere", "{pods}");

    cluster.revoke_tokens("watcher").unwrap();
    cluster
        .until("the old token is refused", |_| Ok((client.get("/api/v1/pods")?.status == 401).then_some(())))
        .unwrap();
}

#[test]
fn a_placed_pod_has_cgroups_with_its_uid_or_config_hash() {
    let Some(cluster) = fixture::cluster(&Options::default()) else { return };
    let Ok(mut node) = Node::new("placed", 64 * MIB, 100) else { skip!("no cgroups can be made here") };
    cluster.add_node("n1").unwrap();
    let web = PodSpec { priority: Some(-5), ..PodSpec::new("shop", "web", &["app", "proxy"], 8) };
    let mirror = PodSpec { is_static: true, ..PodSpec::new("kube-system", "mirror", &["app"], 8) };
    for spec in [web, mirror] {
        let index = cluster.run_pod_on("n1", &mut node, spec).unwrap();
        let pod = &node.pods[index];
        let seen = cluster.pod(pod.namespace(), &pod.spec().name).unwrap().unwrap();
        assert_eq!(seen["metadata"]["uid"], pod.uid());
        assert_eq!(seen["status"]["qosClass"], "Burstable");
        assert_eq!(seen["spec"]["priority"], pod.spec().priority.unwrap_or(0));
        let reported = seen["status"]["containerStatuses"].as_array().unwrap();
        let ids: Vec<_> = reported.iter().map(|it| it["containerID"].as_str().unwrap().to_owned()).collect();
        let made: Vec<_> = pod.containers.iter().map(|it| format!("containerd://{}", it.id)).collect();
        assert_eq!(ids, made);
        let hash = seen["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str();
        let folder = pod.group.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(folder, format!("pod{}", hash.unwrap_or(pod.uid())));
        cluster.end_pod(pod).unwrap();
        assert!(pod.group.dirs().iter().all(|dir| !dir.exists()));
        assert_eq!(cluster.pod(pod.namespace(), &pod.spec().name).unwrap(), None);
    }
}

#[test]
fn a_dropped_cluster_leaves_nothing_behind() {
    let Some(cluster) = fixture::cluster(&Options { controllers: true, scheduler: true }) else { return };
    let (folder, port) = (cluster.path().to_owned(), cluster.port());
    let pids = cluster.pids();
    assert_eq!(pids.len(), 4, "{pids:?}");
    assert!(pids.iter().all(|&pid| tests::process::is_alive(pid)));
    let thread = std::thread::spawn(move || {
        let _cluster = cluster;
        panic!("a story that fails, as is reported above");
    });
    assert!(thread.join().is_err());
    assert!(!folder.exists());
    assert!(!pids.iter().any(|&pid| tests::process::is_alive(pid)), "{pids:?}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}
