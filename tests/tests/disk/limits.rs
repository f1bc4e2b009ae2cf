//! Limits of local storage: the agent checks a pod's writes at once, and counts only what its volumes really hold.

use std::fs::{self, File};
use std::io::Write as _;

use serde_json::json;
use tests::agent::{Agent, Options};
use tests::clock;
use tests::file_system::{FileSystem, Kind};
use tests::node::{Node, PodSpec};
use tests::workload::Workload;

use crate::agent::{node, pod, start, wait_for_syncs, writer, writing};
use crate::layout::Container;
use crate::usage::usage;
use crate::{MIB, mount};

/// Less than the 10 s after which the agent reads pods with limits in any case; an emulated CPU takes seconds.
const MAX_DELAY_NS: u64 = 7_000_000_000;

/// Creates the volumes, and starts an agent that has read them once.
fn start_after_first_reading(disk: &FileSystem, node: &Node) -> Agent {
    node.pods.iter().for_each(|pod| drop(pod.create_volume(disk).unwrap()));
    let agent = start(disk, node, &json!({"evictionHard": {"nodefs.available": "1Mi"}}));
    wait_for_readings(&agent, 0.0);
    agent
}

const TRIGGER: [(&str, &str); 1] = [("trigger", "pod_storage")];

/// Returns the number of readings of pods' storage after which the limits of pods were checked.
fn readings(agent: &Agent) -> f64 {
    agent.metric("eviction_agent_syncs_total", &TRIGGER).unwrap()
}

/// Waits for more readings than `before`.
fn wait_for_readings(agent: &Agent, before: f64) {
    agent.wait_for_metric("eviction_agent_syncs_total", &TRIGGER, |readings| readings > before).unwrap();
}

/// Asserts that the next reading of all pods with limits leads to no decision. It reads what a wrong decision would
/// have been about.
fn assert_no_decision(agent: &mut Agent) {
    wait_for_readings(agent, readings(agent));
    assert_eq!(agent.count_decisions().unwrap(), 0, "{:?}", agent.events());
}

#[test]
fn a_pod_that_exceeds_its_volume_limit_is_evicted_at_once() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (above, below) =
        (node.add(pod("above", Some(8))).unwrap(), node.add(pod("below", Some(64))).unwrap());
    let mut agent = start_after_first_reading(&disk, &node);
    let mut bystander = writer(&disk, &node, below, 32);
    let start_ns = clock::now();
    // The process may be killed before it reports that it is done.
    let _above = writing(&disk, &node, above, 9);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/above");
    let decided = decision.number("decided_mono_ns").unwrap();
    assert!(decided.saturating_sub(start_ns) < MAX_DELAY_NS, "{} ns after it began", decided - start_ns);
    assert!(bystander.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// The kubelet applies the limit to the pod that owns the volume, whichever pod has written to it.
#[test]
fn a_volume_filled_by_another_pod_counts_for_its_owner() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (owner, other) = (node.add(pod("owner", Some(8))).unwrap(), node.add(pod("other", None)).unwrap());
    let mut agent = start_after_first_reading(&disk, &node);
    let file = node.pods[owner].create_volume(&disk).unwrap().join("file").display().to_string();
    let size = (9 * MIB).to_string();
    let mut writes = node.run(other, &["write", "--file", &file, "--size", &size]).unwrap();
    writes.wait_event("written").unwrap();
    let written = clock::now();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/owner");
    assert!(decision.number("decided_mono_ns").unwrap().saturating_sub(written) < MAX_DELAY_NS);
    agent.stop().unwrap();
}

/// These writes fill the disk, but do not count for a pod's limit: deleted files, deleted files that are still open,
/// and writes of another process elsewhere.
#[test]
fn deleted_files_do_not_count_towards_a_volume_limit() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let limited = node.add(pod("limited", Some(8))).unwrap();
    let mut agent = start_after_first_reading(&disk, &node);
    let volume = node.pods[limited].create_volume(&disk).unwrap();
    let mut deleted = File::create(volume.join("open")).unwrap();
    for round in 0..4 {
        fs::write(volume.join("file"), vec![0x5a; 6 << 20]).unwrap();
        fs::remove_file(volume.join("file")).unwrap();
        fs::write(disk.path().join(format!("elsewhere-{round}")), vec![0x5a; 16 << 20]).unwrap();
    }
    fs::remove_file(volume.join("open")).unwrap();
    deleted.write_all(&vec![0x5a; 32 << 20]).unwrap();
    let mut bystander = writer(&disk, &node, limited, 7);
    assert_no_decision(&mut agent);
    assert!(bystander.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// The agent reads pods near their limits again while another process fills the disk, but not so often that it keeps
/// the control loop busy.
#[test]
fn constant_writes_by_another_process_cause_few_syncs_and_no_decision() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let near = node.add(pod("near", Some(8))).unwrap();
    let mut bystander = writer(&disk, &node, near, 7);
    let mut agent = start_after_first_reading(&disk, &node);
    let before = readings(&agent);
    let path = disk.path().join("elsewhere");
    for _ in 0..100 {
        fs::write(&path, vec![0x5a; 4 << 20]).unwrap();
    }
    let during = readings(&agent) - before;
    assert!(during <= 2.0, "{during} syncs by readings in which no pod exceeded a limit");
    assert_no_decision(&mut agent);
    assert!(bystander.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// Two containers with limits of 8 and 64 MiB each: the first one of a pod writes more than 8 MiB to its layer. A
/// neighbour fills its limit to the last byte, and its second container writes more than 8 MiB.
#[test]
fn only_the_pod_with_a_container_above_its_limit_is_evicted() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let spec = |name| PodSpec {
        storage_limits_mib: &[8, 64],
        ..PodSpec::new("shop", name, &["first", "second"], 8)
    };
    let (above, exact) = (node.add(spec("above")).unwrap(), node.add(spec("exact")).unwrap());
    let writers = [(above, 0, 12 * MIB), (exact, 0, 8 * MIB), (exact, 1, 12 * MIB)];
    let mut running = writers.map(|(pod, nth, used)| {
        let layers = disk.path().join(format!("containerd/{pod}-{nth}"));
        let container = Container::new(&disk.kubelet_root(), &layers, &layers).unwrap();
        let of_directory = usage(&layers, "upper").bytes;
        let (root, size) = (container.root.display().to_string(), (used - of_directory).to_string());
        let arguments = ["--chroot", &root, "allocate", "--file", "/file", "--size", &size];
        let mut workload = Workload::run(&node.pods[pod].containers[nth].group, arguments).unwrap();
        workload.wait_event("allocated").unwrap();
        (workload, container)
    });
    let full = usage(disk.path(), &format!("containerd/{exact}-0/upper"));
    assert_eq!(full.bytes, 8 * MIB);
    let kubelet = json!({"evictionHard": {"nodefs.available": "1Mi"}});
    let options = Options::new(&node, &kubelet).unwrap().on_disk(&disk);
    let mut agent = options.with_path("--pod-logs-dir", disk.path().join("logs")).start().unwrap();
    let decision = agent.wait_for_decision().unwrap();
    let message = "Container first exceeded its local ephemeral storage limit \"8Mi\". ";
    assert_eq!((decision.pod(), decision.text("eviction_message")), ("shop/above".to_owned(), message));
    agent.wait_for_result("shop/above", "terminated").unwrap();
    wait_for_syncs(&agent);
    assert_eq!(agent.count_decisions().unwrap(), 1);
    let [_, neighbours @ ..] = &mut running;
    assert!(neighbours.iter_mut().all(|(workload, _)| workload.process().is_running().unwrap()));
    agent.stop().unwrap();
}
