//! A node leaves nothing behind when it ends.

use std::path::Path;

use serde_json::json;
use tests::cluster::Options;
use tests::cluster::node::Image;
use tests::story::Story;

use crate::testbed::{self, Testbed, pod};

#[test]
fn a_node_runs_and_evicts_a_pod_and_leaves_nothing_behind() {
    let settings = || {
        ["vm/overcommit_memory", "kernel/panic", "net/ipv4/ip_forward"]
            .map(|name| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap())
    };
    let before = settings();
    let strays =
        || ["/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"].map(|path| Path::new(path).exists());
    let strays_before = strays();
    let Some(Testbed { mut cluster, node, programs }) = testbed::node(&Options::default(), &json!({})) else {
        return;
    };
    let sleeper =
        Image::shell("sleeper", programs.busybox(), "trap 'exit 0' TERM; while :; do sleep 1 & wait; done");
    node.import(&sleeper).unwrap();
    cluster.make_pod(&pod("web", &sleeper, Some("32Mi"), Some("256Mi"))).unwrap();
    let web = cluster.until("the pod runs", |it| Ok(testbed::running_pod(it, "web"))).unwrap();
    let uid = web["metadata"]["uid"].as_str().unwrap().to_owned();
    let group = Path::new("/sys/fs/cgroup/memory/kubepods/burstable").join(format!("pod{uid}"));
    let container = web["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    let container = group.join(container.trim_start_matches("containerd://"));
    if Path::new("/sys/fs/cgroup/memory").is_dir() {
        assert!(container.is_dir(), "{}", container.display());
    }

    // The kernel kills a pod above its own limit, and the kubelet reports that.
    let hog = Image::shell("hog", programs.busybox(), "exec tail /dev/zero");
    node.import(&hog).unwrap();
    cluster.make_pod(&pod("hog", &hog, Some("32Mi"), Some("256Mi"))).unwrap();
    cluster
        .until("the kubelet reports the OOM kill", |it| {
            let status = it.pod("default", "hog")?.map(|pod| pod["status"]["containerStatuses"][0].clone());
            let status = status.unwrap_or_default();
            let ends = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
            Ok(ends.iter().any(|end| end["reason"] == "OOMKilled").then_some(()))
        })
        .unwrap();

    let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 1});
    let mut story = Story::begin();
    story.mark("asked");
    assert_eq!(cluster.evict("default", "web", &options).unwrap().status, 201);
    story.mark("granted");
    cluster.until("the pod is gone", |it| Ok(it.pod("default", "web")?.is_none().then_some(()))).unwrap();
    story.mark("gone");
    cluster.until("its cgroup is gone", |_| Ok((!group.exists()).then_some(()))).unwrap();

    let folder = node.path().to_owned();
    drop(node);
    assert!(!folder.exists());
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(folder.to_str().unwrap()));
    assert_eq!((settings(), strays()), (before, strays_before));
    for hierarchy in ["memory", "pids", "cpu", "freezer", "."] {
        assert!(!Path::new("/sys/fs/cgroup").join(hierarchy).join("kubepods").exists(), "{hierarchy}");
    }
}
