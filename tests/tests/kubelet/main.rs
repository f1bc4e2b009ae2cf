//! Stories with a real node, told by `cargo xtask e2e` alone: `cargo test` passes them over, for they
//! need the whole machine, one at a time.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../e2e/rig.rs"]
mod rig;

use std::path::Path;

use serde_json::{Value, json};
use tests::cluster::node::{Image, Programs, RealNode};
use tests::cluster::{Cluster, Options, manifest};
use tests::story::Story;

fn node(config: &Value) -> Option<(Cluster, RealNode, Programs)> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => {
            tests::report_skip(&why);
            return None;
        }
    };
    let mut cluster = rig::cluster(&Options::default())?;
    let node = RealNode::start(&mut cluster, &programs, "n1", config).unwrap();
    Some((cluster, node, programs))
}

fn pod(name: &str, image: &Image, memory: &str) -> Value {
    let mut pod = manifest::pod(name, "n1");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["containers"][0]["image"] = json!(image.reference());
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["resources"] =
        json!({"requests": {"memory": memory}, "limits": {"memory": "256Mi"}});
    pod
}

fn is_running(cluster: &Cluster, name: &str) -> Option<Value> {
    let pod = cluster.pod("default", name).unwrap()?;
    (pod["status"]["phase"] == "Running").then_some(pod)
}

#[test]
fn a_pod_runs_is_evicted_and_nothing_is_left_of_the_node() {
    let settings = || {
        ["vm/overcommit_memory", "kernel/panic", "net/ipv4/ip_forward"]
            .map(|name| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap())
    };
    let before = settings();
    let strays =
        || ["/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"].map(|path| Path::new(path).exists());
    let strays_before = strays();
    let Some((mut cluster, node, programs)) = node(&json!({})) else { return };
    let sleeper =
        Image::shell("sleeper", programs.busybox(), "trap 'exit 0' TERM; while :; do sleep 1 & wait; done");
    node.import(&sleeper).unwrap();
    cluster.make_pod(&pod("web", &sleeper, "32Mi")).unwrap();
    let web = cluster.until("the pod runs", |it| Ok(is_running(it, "web"))).unwrap();
    let uid = web["metadata"]["uid"].as_str().unwrap().to_owned();
    let group = Path::new("/sys/fs/cgroup/memory/kubepods/burstable").join(format!("pod{uid}"));
    let container = web["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    let container = group.join(container.trim_start_matches("containerd://"));
    if Path::new("/sys/fs/cgroup/memory").is_dir() {
        assert!(container.is_dir(), "{}", container.display());
    }

    // Above its own limit the kernel kills it, and the kubelet says so.
    let hog = Image::shell("hog", programs.busybox(), "exec tail /dev/zero");
    node.import(&hog).unwrap();
    cluster.make_pod(&pod("hog", &hog, "32Mi")).unwrap();
    cluster
        .until("the kubelet tells of the OOM kill", |it| {
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
