//! A node with two disks: nodefs with volumes and logs, and imagefs with images and writable layers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::Options;
use tests::file_system::{FileSystem, Kind};
use tests::metrics::{Metrics, get};
use tests::node::MIB;
use tests::story::Story;

use crate::disk::{with_volume, writing};
use crate::testbed::{self, Testbed, pod, running_pod, selected_pods, wait_for_result};

/// The kubelet's thresholds, and those of the agent. The kubelet must not act while the agent's victim ends.
const KUBELET_MIB: u64 = 100;
const AGENT_MIB: u64 = 250;

/// The differences that writes between the two readings, such as those of containerd's database, may make.
const TOLERANCE: [f64; 2] = [MIB as f64, 16.0];

struct TwoDisks {
    // Dropped in this order.
    agent: Agent,
    testbed: Testbed,
    nodefs: FileSystem,
    imagefs: FileSystem,
}

/// Starts the node, and an agent once the pod `modest` runs.
fn two_disks(read_only: SocketAddr) -> Option<TwoDisks> {
    let disk = |name: &str, mib| FileSystem::new(Kind::Ext4, mib * MIB, name);
    let nodefs = tests::or_skip!(disk("eviction-kubelet-nodefs", 1024), "no ext4 can be mounted here");
    let imagefs = tests::or_skip!(disk("eviction-kubelet-imagefs", 1536), "no ext4 can be mounted here");
    let logs = nodefs.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    let mut config = testbed::small_config();
    let threshold = format!("{KUBELET_MIB}Mi");
    config["evictionHard"] =
        json!({"memory.available": "200Mi", "nodefs.available": threshold, "imagefs.available": threshold});
    config["readOnlyPort"] = json!(read_only.port());
    let disks = [("kubelet", nodefs.path()), ("pod-logs", &logs), ("containerd", imagefs.path())];
    let mut testbed = testbed::node_on(&Options::default(), &config, &disks)?;
    // Its volume is the largest, and below its request.
    let modest = testbed.image("modest", &writing(0, 250, "/scratch/file"));
    testbed.run(&with_volume(pod("modest", &modest, None, None), &json!({}), Some("300Mi"), None));
    let margin = |signal| json!({"signal": signal, "value": format!("{}Mi", AGENT_MIB - KUBELET_MIB)});
    let mut agent = testbed.configured_agent(json!({
        "thresholdMargin": {"perSignal": [margin("nodefs.available"), margin("imagefs.available")]},
    }));
    agent.wait_for_pods(1).unwrap();
    Some(TwoDisks { agent, testbed, nodefs, imagefs })
}

/// Takes so much of a disk that `mib` MiB more cross the agent's threshold.
fn fill(disk: &FileSystem, mib: u64) -> PathBuf {
    disk.fill("filler", disk.available().unwrap() - (AGENT_MIB + mib) * MIB).unwrap()
}

/// Returns the values of the kubelet and of the agent that differ.
fn differences(kubelet: &Value, agent: &Metrics) -> Vec<String> {
    let (node, runtime) = (&kubelet["node"]["fs"], &kubelet["node"]["runtime"]);
    let mut found = Vec::new();
    for (disk, theirs) in
        [("nodefs", node), ("imagefs", &runtime["imageFs"]), ("containerfs", &runtime["containerFs"])]
    {
        for (signal, field, metric, tolerance) in [
            ("available", "availableBytes", "available_bytes", TOLERANCE[0]),
            ("available", "capacityBytes", "capacity_bytes", 0.0),
            ("inodesFree", "inodesFree", "available_inodes", TOLERANCE[1]),
            ("inodesFree", "inodes", "capacity_inodes", 0.0),
        ] {
            let name = format!("eviction_agent_signal_{metric}");
            let ours = agent.sum(&name, &[("eviction_signal", &format!("{disk}.{signal}"))]);
            let theirs = theirs[field].as_f64().unwrap_or(f64::NAN);
            // A NaN equals nothing.
            let is_equal = (ours - theirs).abs() <= tolerance;
            if !is_equal {
                found.push(format!("{disk} {field}: {theirs} and {ours}"));
            }
        }
    }
    found
}

/// The kubelet's values are up to 11 s old, and the agent's up to 10 s.
fn the_agent_reports_what_the_kubelet_reports(it: &mut TwoDisks, read_only: SocketAddr) {
    let mut found = Vec::new();
    let agent = &it.agent;
    let is_equal = it.testbed.cluster.until("the values are equal", |_| {
        let summary: Value = serde_json::from_str(&get(read_only, "/stats/summary")?)?;
        found = differences(&summary, &agent.metrics()?);
        Ok(found.is_empty().then_some(()))
    });
    is_equal.unwrap_or_else(|error| panic!("{error:#}: {found:?}"));
}

/// Waits until the agent has evicted that pod for that signal, and no other.
fn wait_until_evicted(it: &mut TwoDisks, name: &str, signal: &str, before: &[&str]) {
    wait_for_result(&mut it.agent, name, "accepted");
    it.testbed.wait_until_removed(name);
    let full_name = format!("default/{name}");
    let is_match = |event: &Event| event.is_decision() && event.pod() == full_name;
    let decision = it.agent.wait_for("its decision", GUARD, is_match).unwrap();
    assert_eq!(decision.text("signal"), signal, "{decision:?}");
    let expected: Vec<_> = before.iter().chain([&name]).map(|name| format!("default/{name}")).collect();
    assert_eq!(selected_pods(&mut it.agent), expected);
}

#[test]
fn the_pod_that_fills_a_disk_is_evicted_and_values_equal_the_kubelets() {
    let read_only = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let Some(mut it) = two_disks(read_only) else { return };
    let mut story = Story::begin();
    the_agent_reports_what_the_kubelet_reports(&mut it, read_only);
    story.mark("values_equal");

    // `volume` uses more than `layer`, but nothing of imagefs. It goes on when there is a file `more`.
    let grows = "trap 'exit 0' TERM; dd if=/dev/zero bs=1M count=200 of=/scratch/file 2>/dev/null; \
         until [ -e /scratch/more ]; do sleep 0.1; done; \
         dd if=/dev/zero bs=1M count=150 of=/scratch/second 2>/dev/null; sleep 3600 & wait";
    let volume = it.testbed.image("volume", grows);
    let volume =
        it.testbed.run(&with_volume(pod("volume", &volume, None, None), &json!({}), Some("1Mi"), None));
    let uid = volume["metadata"]["uid"].as_str().unwrap();
    let scratch =
        it.testbed.node.kubelet_root().join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/scratch"));
    let written = |_: &_| {
        Ok(std::fs::metadata(scratch.join("file")).is_ok_and(|it| it.len() == 200 * MIB).then_some(()))
    };
    it.testbed.cluster.until("its volume is written", written).unwrap();
    let layer = it.testbed.image("layer", &writing(2, 120, "/file"));
    let filler = fill(&it.imagefs, 100);
    it.testbed.run(&pod("layer", &layer, None, None));
    wait_until_evicted(&mut it, "layer", "imagefs.available", &[]);
    story.mark("imagefs");

    // `large-layer` uses more than `volume`, but nothing of nodefs.
    std::fs::remove_file(filler).unwrap();
    let large_layer = it.testbed.image("large-layer", &writing(0, 450, "/file"));
    let free = it.imagefs.available().unwrap();
    it.testbed.run(&pod("large-layer", &large_layer, None, None));
    // The layer of the evicted pod may be removed meanwhile.
    let written = |_: &_| Ok((it.imagefs.available()? < free - 300 * MIB).then_some(()));
    it.testbed.cluster.until("its layer is written", written).unwrap();
    let filler = fill(&it.nodefs, 50);
    std::fs::write(scratch.join("more"), "").unwrap();
    wait_until_evicted(&mut it, "volume", "nodefs.available", &["layer"]);
    story.mark("nodefs");

    // Only containerd writes to nodefs.
    std::fs::remove_file(filler).unwrap();
    fill(&it.nodefs, 100);
    let line = format!("trap 'exit 0' TERM; sleep 2; busybox yes {} & wait", "x".repeat(1000));
    let log = it.testbed.image("log", &line);
    it.testbed.run(&pod("log", &log, None, None));
    wait_until_evicted(&mut it, "log", "nodefs.available", &["layer", "volume"]);
    story.mark("log");

    for name in ["modest", "large-layer"] {
        assert!(running_pod(&it.testbed.cluster, name).is_some(), "{name}");
    }
    assert_eq!(it.testbed.kubelet_eviction_log(), [""; 0]);
    it.agent.stop().unwrap();
}
