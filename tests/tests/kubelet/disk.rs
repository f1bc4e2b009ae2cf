//! Local storage of real pods: the agent finds and counts what the kubelet and containerd create.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{Event, GUARD};
use tests::cluster::{Cluster, Options};
use tests::file_system::{FileSystem, Kind};
use tests::metrics::get;
use tests::node::MIB;
use tests::process::signal;
use tests::story::Story;

use crate::testbed::{self, Testbed, pod, selected_pods, wait_for_result};

/// Where the volume of [`with_volume`] is mounted.
const SCRATCH: &str = "/scratch";

/// Returns a shell line that waits for `seconds`, writes `mib` MiB to a file, or to its log, and stays.
pub(crate) fn writing(seconds: u64, mib: u64, file: &str) -> String {
    format!(
        "trap 'exit 0' TERM; sleep {seconds} & wait; \
         dd if=/dev/zero bs=1M count={mib} of={file} 2>/dev/null; sleep 3600 & wait"
    )
}

/// Returns the pod with a volume; `limit` is its container's limit of local storage.
pub(crate) fn with_volume(
    mut pod: Value,
    volume: &Value,
    request: Option<&str>,
    limit: Option<&str>,
) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": volume}]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "scratch", "mountPath": SCRATCH}]);
    for (bound, value) in [("requests", request), ("limits", limit)] {
        if let Some(value) = value {
            container["resources"][bound]["ephemeral-storage"] = json!(value);
        }
    }
    pod
}

fn eviction_message(agent: &mut tests::agent::Agent, pod: &str) -> String {
    let full_name = format!("default/{pod}");
    let is_match = |event: &Event| event.is_decision() && event.pod() == full_name;
    agent.wait_for("its decision", GUARD, is_match).unwrap().text("eviction_message").to_owned()
}

#[test]
fn only_pods_over_their_local_storage_limits_are_evicted() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    let modest = testbed.image("modest", &writing(0, 6, "/scratch/file"));
    let volume = testbed.image("volume", &writing(5, 12, "/scratch/file"));
    let layer = testbed.image("layer", &writing(5, 12, "/file"));
    let log = testbed.image("log", &writing(5, 12, "/dev/stdout"));
    let limited = json!({"sizeLimit": "8Mi"});
    testbed.run(&with_volume(pod("modest", &modest, None, None), &limited, None, Some("8Mi")));
    let mut agent = testbed.agent(&json!({}));
    agent.wait_for_pods(1).unwrap();
    let mut story = Story::begin();
    let volume_message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\". ";
    let pod_message = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ";
    let cases = [
        ("volume", &volume, &limited, None, volume_message),
        ("layer", &layer, &json!({}), Some("8Mi"), pod_message),
        ("log", &log, &json!({}), Some("8Mi"), pod_message),
    ];
    for (name, image, volume, limit, expected) in cases {
        testbed.run(&with_volume(pod(name, image, None, None), volume, None, limit));
        let accepted = wait_for_result(&mut agent, name, "accepted");
        story.mark_at(name, accepted.number("mono_ns").unwrap());
        assert_eq!(eviction_message(&mut agent, name), expected);
        testbed.wait_until_removed(name);
    }
    assert_eq!(selected_pods(&mut agent), ["default/volume", "default/layer", "default/log"]);
    assert!(testbed::running_pod(&testbed.cluster, "modest").is_some());
    agent.stop().unwrap();
}

/// Starts a node with a disk of 1 GiB as its nodefs, and with more of the kubelet's configuration.
fn testbed_on_disk(more: &Value) -> Option<(FileSystem, Testbed)> {
    let disk = FileSystem::new(Kind::Ext4, 1024 * MIB, "eviction-kubelet-disk");
    let disk = tests::or_skip!(disk, "no ext4 can be mounted here");
    let mut config = testbed::small_config();
    config["evictionHard"] = json!({"memory.available": "200Mi", "nodefs.available": "500Mi"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let testbed = testbed::node_on(&Options::default(), &config, &[("kubelet", disk.path())])?;
    Some((disk, testbed))
}

#[test]
fn the_pod_over_its_request_on_nodefs_is_evicted_not_the_largest() {
    let Some((disk, mut testbed)) = testbed_on_disk(&json!({})) else { return };
    let modest = testbed.image("modest", &writing(0, 250, "/scratch/file"));
    let hog = testbed.image("hog", &writing(5, 240, "/scratch/file"));
    let volume = json!({});
    testbed.run(&with_volume(pod("modest", &modest, None, None), &volume, Some("300Mi"), None));
    let mut agent = testbed.agent(&json!({}));
    agent.wait_for_pods(1).unwrap();
    testbed.run(&with_volume(pod("hog", &hog, None, None), &volume, Some("1Mi"), None));
    let mut story = Story::begin();
    let accepted = wait_for_result(&mut agent, "hog", "accepted");
    story.mark_at("accepted", accepted.number("mono_ns").unwrap());
    assert!(
        eviction_message(&mut agent, "hog").starts_with("The node was low on resource: ephemeral-storage. ")
    );
    testbed.wait_until_removed("hog");
    let free = || disk.available().unwrap() / MIB;
    story.value("free_mib", free());
    assert!(free() > 500, "the kubelet has removed its volume");
    assert_eq!(selected_pods(&mut agent), ["default/hog"]);
    assert!(testbed::running_pod(&testbed.cluster, "modest").is_some());
    agent.stop().unwrap();
}

/// The kubelet evicts at the same threshold if the agent does not.
#[test]
fn the_kubelet_evicts_while_the_agent_is_stopped() {
    let Some((disk, mut testbed)) = testbed_on_disk(&json!({})) else { return };
    let modest = testbed.image("modest", &writing(0, 250, "/scratch/file"));
    let hog = testbed.image("hog", &writing(1, 240, "/scratch/file"));
    let volume = json!({});
    testbed.run(&with_volume(pod("modest", &modest, None, None), &volume, Some("300Mi"), None));
    let mut agent = testbed.agent(&json!({}));
    agent.wait_for_pods(1).unwrap();
    signal(agent.pid(), Signal::STOP).unwrap();
    testbed.run(&with_volume(pod("hog", &hog, None, None), &volume, Some("1Mi"), None));
    let mut story = Story::begin();
    let is_evicted = |cluster: &Cluster| {
        let Some(pod) = cluster.pod("default", "hog")? else { return Ok(None) };
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        Ok(conditions.any(|condition| condition["reason"] == "TerminationByKubelet").then_some(()))
    };
    testbed.cluster.until("the kubelet evicts the hog", is_evicted).unwrap();
    story.mark("evicted_by_kubelet");
    let is_free = |_: &Cluster| Ok((disk.available()? > 500 * MIB).then_some(()));
    testbed.cluster.until("its volume is removed", is_free).unwrap();
    signal(agent.pid(), Signal::CONT).unwrap();
    let syncs = agent.metric("eviction_agent_syncs_total", &[]).unwrap();
    agent.wait_for_metric("eviction_agent_syncs_total", &[], |now| now >= syncs + 3.0).unwrap();
    assert!(selected_pods(&mut agent).is_empty());
    assert!(testbed::running_pod(&testbed.cluster, "modest").is_some());
    agent.stop().unwrap();
}

/// Pods near their limits are read all the time. A descriptor on a file system of a pod would keep the kubelet from
/// unmounting it.
#[test]
fn volumes_are_unmounted_while_the_agent_reads_them() {
    let Some(mut testbed) = Testbed::small(&Options::default()) else { return };
    let line = "trap 'exit 0' TERM; (while :; do dd if=/dev/zero bs=1M count=6 of=/scratch/file 2>/dev/null; \
         sleep 0.1; done) & wait";
    let image = testbed.image("near", line);
    let mut agent = testbed.agent(&json!({}));
    let names: Vec<_> = (0..5).map(|index| format!("near-{index}")).collect();
    for name in &names {
        let limited = json!({"sizeLimit": "8Mi"});
        let mut pod = with_volume(pod(name, &image, None, None), &limited, None, None);
        let memory = json!({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}});
        pod["spec"]["volumes"].as_array_mut().unwrap().push(memory);
        let mount = json!({"name": "memory", "mountPath": "/scratch/memory"});
        pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
        testbed.run(&pod);
    }
    agent.wait_for_pods(names.len()).unwrap();
    for name in &names {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        testbed.cluster.admin().delete(&path, &json!({})).unwrap();
        testbed.wait_until_removed(name);
    }
    let log = fs::read_to_string(testbed.node.path().join("kubelet.log")).unwrap();
    let busy: Vec<_> = log.lines().filter(|line| line.contains("device or resource busy")).collect();
    assert_eq!(busy, [""; 0]);
    let readings = agent.metric("eviction_agent_syncs_total", &[("trigger", "pod_storage")]).unwrap();
    assert!(readings > 0.0);
    assert!(selected_pods(&mut agent).is_empty());
    agent.stop().unwrap();
}

/// The kubelet reads a volume every one to two minutes: the threshold is crossed once the kubelet knows the pods'
/// usage.
#[test]
fn an_agent_without_directories_reads_pod_usage_from_the_kubelet() {
    let read_only = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let kubelet = json!({"readOnlyPort": read_only.port()});
    let Some((disk, mut testbed)) = testbed_on_disk(&kubelet) else { return };
    let modest = testbed.image("modest", &writing(0, 200, "/scratch/file"));
    let hog = testbed.image("hog", &writing(0, 150, "/scratch/file"));
    testbed.run(&with_volume(pod("modest", &modest, None, None), &json!({}), Some("300Mi"), None));
    testbed.run(&with_volume(pod("hog", &hog, None, None), &json!({}), Some("1Mi"), None));
    let mut agent = testbed.agent_by_summary();
    agent.wait_for_pods(2).unwrap();
    let used = |summary: &Value, name: &str| {
        let pods = summary["pods"].as_array().unwrap();
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == name);
        let volumes = pod.and_then(|pod| pod["volume"].as_array()).into_iter().flatten();
        volumes.filter_map(|volume| volume["usedBytes"].as_u64()).sum::<u64>()
    };
    let is_known = |_: &Cluster| {
        let summary: Value = serde_json::from_str(&get(read_only, "/stats/summary")?)?;
        let is_known = used(&summary, "modest") > 190 * MIB && used(&summary, "hog") > 140 * MIB;
        Ok(is_known.then_some(()))
    };
    testbed.cluster.until("the kubelet knows what the volumes use", is_known).unwrap();
    assert!(selected_pods(&mut agent).is_empty());
    let mut story = Story::begin();
    fs::write(disk.path().join("rest"), vec![0x5a; 200 << 20]).unwrap();
    let accepted = wait_for_result(&mut agent, "hog", "accepted");
    story.mark_at("accepted", accepted.number("mono_ns").unwrap());
    assert!(
        eviction_message(&mut agent, "hog").starts_with("The node was low on resource: ephemeral-storage. ")
    );
    testbed.wait_until_removed("hog");
    assert_eq!(selected_pods(&mut agent), ["default/hog"]);
    assert!(testbed::running_pod(&testbed.cluster, "modest").is_some());
    agent.stop().unwrap();
}
