//! Limits of local storage: what a pod writes is held against them at once, and only by what its volumes really hold.

use std::fs::{self, File};
use std::io::Write as _;

use serde_json::json;
use tests::agent::Agent;
use tests::clock;
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::process::wait_until;
use tests::workload::{self, Workload};

use crate::agent::{GUARD, is_decision, node, pod, start, volume, writer, writing};
use crate::{MIB, mount};

/// Far less than the 10 s after which pods with limits are read in any case.
const SOON_NS: u64 = 3_000_000_000;

/// An agent that has read the volumes once, which are there.
fn started(disk: &FileSystem, node: &Node) -> Agent {
    (0..node.pods.len()).for_each(|pod| drop(volume(disk, node, pod)));
    let mut agent = start(disk, node, &json!({"evictionHard": {"nodefs.available": "1Mi"}}), true);
    wait_until("the first reading", || readings(&mut agent) > 0.0).unwrap();
    agent
}

/// Readings of pods' storage after which pods were held to their limits.
fn readings(agent: &mut Agent) -> f64 {
    agent.metrics().unwrap().sum("eviction_agent_syncs_total", &[("trigger", "pod_storage")])
}

/// No decision comes by the next reading of all pods with limits, which sees what a wrong one would have been about.
fn assert_nobody_goes(agent: &mut Agent) {
    let before = readings(agent);
    wait_until("the next reading", || readings(agent) > before).unwrap();
    let decisions: Vec<_> = agent.heard().unwrap().iter().filter(|event| is_decision(event)).collect();
    assert!(decisions.is_empty(), "{decisions:?}");
}

#[test]
fn a_pod_that_writes_beyond_the_limit_of_its_volume_goes_at_once() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (above, below) =
        (node.add(pod("above", Some(8))).unwrap(), node.add(pod("below", Some(64))).unwrap());
    let mut agent = started(&disk, &node);
    let mut stays = writer(&disk, &node, below, 32);
    let began = clock::now();
    // It may be killed before it has said that it is done.
    let _above = writing(&disk, &node, above, 9);
    let decision = agent.wait_for("a decision", GUARD, is_decision).unwrap();
    assert_eq!(decision.pod(), "shop/above");
    let decided = decision.number("decided_mono_ns").unwrap();
    assert!(decided.saturating_sub(began) < SOON_NS, "{} ns after it began", decided - began);
    assert!(stays.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// The kubelet holds the pod to its limit whose volume it is, whoever has written to it.
#[test]
fn a_volume_that_another_pod_fills_is_its_owners() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (owner, other) = (node.add(pod("owner", Some(8))).unwrap(), node.add(pod("other", None)).unwrap());
    let mut agent = started(&disk, &node);
    let file = volume(&disk, &node, owner).join("file").display().to_string();
    let size = (9 * MIB).to_string();
    let group = &node.pods[other].containers[0].group;
    let arguments = ["write", "--file", &file, "--size", &size];
    let mut writes = Workload::start(&workload::binary().unwrap(), group, arguments).unwrap();
    writes.go().unwrap();
    writes.wait_event("written").unwrap();
    let written = clock::now();
    let decision = agent.wait_for("a decision", GUARD, is_decision).unwrap();
    assert_eq!(decision.pod(), "shop/owner");
    assert!(decision.number("decided_mono_ns").unwrap().saturating_sub(written) < SOON_NS);
    agent.stop().unwrap();
}

/// All of it makes the disk fuller, and nothing of it counts for a pod's limit: what was deleted, what is deleted but
/// open, and what somebody else has written elsewhere.
#[test]
fn what_a_volume_does_not_hold_any_more_exceeds_no_limit() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let limited = node.add(pod("limited", Some(8))).unwrap();
    let mut agent = started(&disk, &node);
    let volume = volume(&disk, &node, limited);
    let mut deleted = File::create(volume.join("open")).unwrap();
    for round in 0..4 {
        fs::write(volume.join("file"), vec![0x5a; 6 << 20]).unwrap();
        fs::remove_file(volume.join("file")).unwrap();
        fs::write(disk.path().join(format!("elsewhere-{round}")), vec![0x5a; 16 << 20]).unwrap();
    }
    fs::remove_file(volume.join("open")).unwrap();
    deleted.write_all(&vec![0x5a; 32 << 20]).unwrap();
    let mut stays = writer(&disk, &node, limited, 7);
    assert_nobody_goes(&mut agent);
    assert!(stays.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// Pods near their limits are read again while somebody else fills the disk, and no more often than that may cost: the
/// control loop is not kept busy by it.
#[test]
fn a_neighbour_that_writes_all_the_time_causes_no_decision_and_few_syncs() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let near = node.add(pod("near", Some(8))).unwrap();
    let mut stays = writer(&disk, &node, near, 7);
    let mut agent = started(&disk, &node);
    let before = readings(&mut agent);
    let path = disk.path().join("elsewhere");
    for _ in 0..100 {
        fs::write(&path, vec![0x5a; 4 << 20]).unwrap();
    }
    let during = readings(&mut agent) - before;
    assert!(during <= 2.0, "{during} syncs by readings in which nobody exceeded a limit");
    assert_nobody_goes(&mut agent);
    assert!(stays.process().is_running().unwrap());
    agent.stop().unwrap();
}
