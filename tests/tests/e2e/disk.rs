//! Disk pressure with a real API server: condition, taint, and the eviction of the pod that writes.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::{Cluster, FakeKubelet, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, PodSpec};
use tests::or_skip;
use tests::workload::Workload;

use crate::agent::NODE;
use crate::events::wait_for_events;
use crate::fixture;
use crate::testbed::{Testbed, pod};

/// A node in a cluster, with a file system of its own as nodefs.
struct DiskTestbed {
    testbed: Testbed,
    file_system: FileSystem,
}

impl DiskTestbed {
    fn new() -> Option<Self> {
        let file_system = FileSystem::new(Kind::Ext4, 512 * MIB, "eviction-e2e-disk");
        let file_system = or_skip!(file_system, "no ext4 can be mounted here");
        let testbed = Testbed::with("e2e-disk", 384 * MIB, &Options::default())?;
        Some(Self { testbed, file_system })
    }

    /// Adds a pod with a volume; `storage_request_mib` is its request of local storage, `volume_limit_mib` the size
    /// limit of its volume.
    fn add(&mut self, name: &str, storage_request_mib: u64, volume_limit_mib: Option<u64>) -> usize {
        let spec = PodSpec { storage_request_mib, volume: Some("scratch"), volume_limit_mib, ..pod(name) };
        let index = self.testbed.add(spec);
        self.testbed.node.pods[index].create_volume(&self.file_system).unwrap();
        index
    }

    fn start(&self, kubelet: &Value) -> Agent {
        let options = self.testbed.options(kubelet, self.testbed.cluster.port());
        fixture::start(&options.on_disk(&self.file_system))
    }

    fn write(&self, pod: usize, mib: u64) -> Workload {
        let volume = self.testbed.node.pods[pod].create_volume(&self.file_system).unwrap();
        let file = volume.join("file").display().to_string();
        let size = (mib * MIB).to_string();
        self.testbed.node.run(pod, &["write", "--file", &file, "--size", &size]).unwrap()
    }
}

#[test]
fn a_pod_that_fills_nodefs_is_evicted_and_the_node_is_tainted() {
    let Some(mut disk) = DiskTestbed::new() else { return };
    // This pod uses more than the other one, and no more than its request.
    let modest = disk.add("modest", 200, None);
    let hog = disk.add("hog", 1, None);
    let mut writer = disk.write(modest, 150);
    writer.wait_event("written").unwrap();
    let threshold = (disk.file_system.available().unwrap() - 64 * MIB).to_string();
    let mut agent = disk.start(&json!({"evictionHard": {"nodefs.available": threshold}}));
    let _hog = disk.write(hog, 96);
    agent.wait_for_result("default/hog", "accepted").unwrap();
    assert!(disk.testbed.is_terminating("hog") && !disk.testbed.is_terminating("modest"));
    let has_condition_and_taint = |cluster: &Cluster| {
        let node = cluster.admin().get(&format!("/api/v1/nodes/{NODE}"))?.body;
        let of = |list: &Value, key: &str, name: &str| {
            list.as_array()
                .and_then(|list| list.iter().find(|it| it[key] == name).cloned())
                .unwrap_or_default()
        };
        let condition = of(&node["status"]["conditions"], "type", "EvictionAgentDiskPressure");
        let taint = of(&node["spec"]["taints"], "key", "eviction-agent.io/disk-pressure");
        let is_met = condition["status"] == "True" && condition["reason"] == "HardEvictionThresholdMet";
        Ok((is_met && taint["effect"] == "NoSchedule").then_some(()))
    };
    disk.testbed
        .cluster
        .until("that the node has the condition and the taint", has_condition_and_taint)
        .unwrap();
    let decision = agent.wait_for_decision().unwrap();
    let events = wait_for_events(&disk.testbed.cluster, "default", "Evicted", |events| !events.is_empty());
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event["note"], decision.text("eviction_message"));
    assert_eq!(event["regarding"]["name"], "hog");
    assert_eq!(event["metadata"]["annotations"]["starved_resource"], "ephemeral-storage");
    agent.stop().unwrap();
}

#[test]
fn a_pod_over_its_volume_limit_is_evicted_with_the_kubelets_message() {
    let Some(mut disk) = DiskTestbed::new() else { return };
    let (below, above) = (disk.add("below", 1, Some(8)), disk.add("above", 1, Some(8)));
    let mut agent = disk.start(&json!({"evictionHard": {"nodefs.available": "1Mi"}}));
    let mut writer = disk.write(below, 7);
    writer.wait_event("written").unwrap();
    let _above = disk.write(above, 9);
    agent.wait_for_result("default/above", "accepted").unwrap();
    assert!(disk.testbed.is_terminating("above") && !disk.testbed.is_terminating("below"));
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\". ";
    let decision = agent.events().unwrap().iter().find(|event| event.is_decision()).unwrap();
    assert_eq!(decision.text("eviction_message"), message);
    agent.stop().unwrap();
}

/// The kubelet removes some files of a pod up to a minute after the pod.
#[test]
fn no_other_pod_is_evicted_until_the_files_of_the_victim_are_removed() {
    let Some(mut disk) = DiskTestbed::new() else { return };
    let (hog, other) = (disk.add("hog", 1, None), disk.add("other", 1, None));
    let volume = |pod: usize| disk.testbed.node.pods[pod].create_volume(&disk.file_system).unwrap();
    let [of_hog, of_other] = [hog, other].map(volume);
    fs::write(of_other.join("first"), vec![0x5a; 50 << 20]).unwrap();
    let threshold = (disk.file_system.available().unwrap() - 64 * MIB).to_string();
    let mut agent = disk.start(&json!({"evictionHard": {"nodefs.available": threshold}}));
    let mut writer = disk.write(hog, 96);
    agent.wait_for_result("default/hog", "accepted").unwrap();
    writer.wait_event("written").unwrap();
    writer.process().child().kill().unwrap();
    writer.process().wait().unwrap();
    disk.testbed.remove_first_pod("hog");
    agent.wait_for_result("default/hog", "terminated").unwrap();
    // They are read every second.
    let readings = || agent.metric("eviction_agent_syncs_total", &[("trigger", "pod_storage")]);
    let first = readings().unwrap();
    disk.testbed.cluster.until("three readings", |_| Ok((readings()? >= first + 3.0).then_some(()))).unwrap();
    assert!(!disk.testbed.is_terminating("other"));

    fs::remove_dir_all(of_hog).unwrap();
    fs::write(of_other.join("second"), vec![0x5a; 96 << 20]).unwrap();
    agent.wait_for_result("default/other", "accepted").unwrap();
    assert_eq!(agent.count_decisions().unwrap(), 2);
    agent.stop().unwrap();
}

/// Returns a stats summary of a node with one disk, of which `mib` MiB are available, and of these pods, each with the
/// MiB that its volume uses.
fn summary(mib: u64, pods: &[(&str, u64)]) -> Value {
    let time = jiff::Timestamp::now().to_string();
    let disk = json!({
        "time": time, "capacityBytes": 1024 * MIB, "availableBytes": mib * MIB, "inodes": 65_536, "inodesFree": 60_000,
    });
    let of_pod = |(uid, mib): &(&str, u64)| {
        let used = json!({"usedBytes": mib * MIB, "inodesUsed": 2});
        let volume = json!({"name": "scratch", "usedBytes": mib * MIB, "inodesUsed": 2});
        let nothing = json!({"usedBytes": 0, "inodesUsed": 1});
        json!({
            "podRef": {"uid": uid}, "ephemeral-storage": used, "volume": [volume],
            "containers": [{"name": "main", "rootfs": nothing, "logs": nothing}],
        })
    };
    let pods: Vec<_> = pods.iter().map(of_pod).collect();
    json!({"node": {"fs": disk, "runtime": {"imageFs": disk, "containerFs": disk}}, "pods": pods})
}

/// An agent that does not find nodefs and imagefs asks the kubelet for them once a minute.
#[test]
fn an_agent_without_file_systems_reads_their_signals_from_the_kubelet() {
    let Some(mut testbed) = Testbed::with("e2e-summary", 384 * MIB, &Options::default()) else { return };
    for (name, storage_request_mib) in [("modest", 300), ("hog", 1)] {
        testbed.add(PodSpec { storage_request_mib, volume: Some("scratch"), ..pod(name) });
    }
    let uids: Vec<_> = testbed.node.pods.iter().map(|pod| pod.uid().to_owned()).collect();
    let of_pods = |hog| [(uids[0].as_str(), 200), (uids[1].as_str(), hog)];
    let kubelet = FakeKubelet::start(&testbed.cluster, NODE, &json!({})).unwrap();
    kubelet.set_summary(summary(400, &of_pods(10)));
    let config = json!({
        "thresholdMargin": {"mode": "Never"},
        "podStorage": {"source": "Summary"}, "thresholds": {"configz": {"port": kubelet.port()}},
    });
    let hard = json!({"evictionHard": {"nodefs.available": "256Mi"}});
    let mut options = testbed.options(&hard, testbed.cluster.port());
    options.config = Some(testbed.node.write_agent_config(&config).unwrap());
    let mut agent = fixture::start(&options);
    for (signal, unit, expected) in [
        ("nodefs.available", "bytes", 400 * MIB),
        ("imagefs.available", "bytes", 400 * MIB),
        ("containerfs.inodesFree", "inodes", 60_000),
    ] {
        let name = format!("eviction_agent_signal_available_{unit}");
        agent
            .wait_for_metric(&name, &[("eviction_signal", signal)], |value| value == expected as f64)
            .unwrap();
    }
    agent
        .wait_for_metric("eviction_agent_node_condition", &[("condition", "DiskPressure")], |it| it == 0.0)
        .unwrap();
    assert_eq!(agent.count_decisions().unwrap(), 0);
    kubelet.set_summary(summary(200, &of_pods(150)));
    agent.wait_for_result("default/hog", "accepted").unwrap();
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("modest"));
    let is_of_nodefs = |event: &Event| event.kind() == "backend" && event.text("source") == "nodefs";
    let backend = agent.wait_for("the backend of nodefs", GUARD, is_of_nodefs).unwrap();
    assert_eq!(backend.text("backend"), "stats summary");
    let sent = kubelet.summaries_sent();
    let interval = sent[1].duration_since(sent[0]);
    assert!(sent.len() == 2 && interval >= Duration::from_secs(59), "{} requests, {interval:?}", sent.len());
    agent.stop().unwrap();
}
