//! The agent as it is shipped, on a node with a file system of its own as nodefs.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::file_system::{FileSystem, Kind};
use tests::folder::Folder;
use tests::node::{Node, PodSpec};
use tests::process::{run, signal, wait_until};
use tests::workload::Workload;

use crate::{MIB, mount};

pub(crate) fn pod(name: &str, limit_mib: Option<u64>) -> PodSpec {
    PodSpec {
        volume: Some("scratch"),
        volume_limit_mib: limit_mib,
        ..PodSpec::new("shop", name, &["main"], 8)
    }
}

/// Starts a process in a pod, and waits until it has written a file of `mib` MiB to the pod's volume.
pub(crate) fn writer(disk: &FileSystem, node: &Node, pod: usize, mib: u64) -> Workload {
    let mut writer = writing(disk, node, pod, mib);
    writer.wait_event("written").unwrap();
    writer
}

/// Starts a process in a pod that begins to write `mib` MiB to the pod's volume.
pub(crate) fn writing(disk: &FileSystem, node: &Node, pod: usize, mib: u64) -> Workload {
    let volume = node.pods[pod].create_volume(disk).unwrap();
    let file = volume.join(format!("{mib}-mib")).display().to_string();
    let size = (mib * MIB).to_string();
    node.run(pod, &["write", "--file", &file, "--size", &size]).unwrap()
}

/// Starts an agent with the disk as nodefs and the kubelet's root directory on it.
pub(crate) fn start(disk: &FileSystem, node: &Node, kubelet: &Value) -> Agent {
    Options::new(node, kubelet).unwrap().on_disk(disk).start().unwrap()
}

/// Does the same with the agent's state on the disk.
fn start_with_state(disk: &FileSystem, node: &Node, kubelet: &Value) -> Agent {
    let options = Options::new(node, kubelet).unwrap().on_disk(disk);
    options.with_path("--state-dir", disk.path().join("state")).start().unwrap()
}

/// Waits until the agent has made three more syncs.
pub(crate) fn wait_for_syncs(agent: &Agent) {
    let before = agent.metric("eviction_agent_syncs_total", &[]).unwrap();
    agent.wait_for_metric("eviction_agent_syncs_total", &[], |syncs| syncs >= before + 3.0).unwrap();
}

/// Makes a node, or ends the test.
macro_rules! node {
    () => {
        tests::or_skip!(
            tests::node::Node::new("disk", 384 * tests::node::MIB, 200),
            "no cgroups can be made here"
        )
    };
}
pub(crate) use node;

#[test]
fn only_the_pod_above_its_volume_limit_is_evicted() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (above, below) = (node.add(pod("above", Some(8))).unwrap(), node.add(pod("below", Some(8))).unwrap());
    let (_above, mut bystander) = (writer(&disk, &node, above, 9), writer(&disk, &node, below, 7));
    let mut agent = start(&disk, &node, &json!({"evictionHard": {"nodefs.available": "1Mi"}}));
    let decision = agent.wait_for_decision().unwrap();
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\". ";
    assert_eq!((decision.pod(), decision.text("eviction_message")), ("shop/above".to_owned(), message));
    agent.wait_for_result("shop/above", "terminated").unwrap();
    assert!(bystander.process().is_running().unwrap());
    assert_eq!(agent.count_decisions().unwrap(), 1);
    agent.stop().unwrap();
}

/// A failed reading is not repeated at once: a sync for each reading would keep the control loop busy.
#[test]
fn failed_usage_readings_are_not_repeated_more_often_than_the_timer() {
    let (disk, node) = (mount!(Kind::Ext4), node!());
    fs::write(disk.path().join("file"), vec![0x5a; 128 << 20]).unwrap();
    let mut agent = start(&disk, &node, &json!({"evictionHard": {"nodefs.available": "256Mi"}}));
    agent.wait_for_threshold("met").unwrap();
    let syncs_by = |trigger| agent.metric("eviction_agent_syncs_total", &[("trigger", trigger)]).unwrap();
    wait_until("a reading", || syncs_by("pod_storage") > 0.0).unwrap();
    let (timer, storage) = (syncs_by("timer"), syncs_by("pod_storage"));
    wait_until("three more syncs by the timer", || syncs_by("timer") >= timer + 3.0).unwrap();
    let (storage, timer) = (syncs_by("pod_storage") - storage, syncs_by("timer") - timer);
    assert!(storage <= timer + 1.0, "{storage} after readings, {timer} by the timer");
    agent.stop().unwrap();
}

/// If the agent cannot read what pods use, it evicts no pod for a disk; it still reports the signal and the
/// condition.
#[test]
fn the_signal_is_reported_and_no_pod_evicted_if_usage_is_unknown() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let hog = node.add(pod("hog", Some(1))).unwrap();
    let mut hog = writer(&disk, &node, hog, 128);
    let options = Options::new(&node, &json!({"evictionHard": {"nodefs.available": "256Mi"}})).unwrap();
    let mut agent = options.with_path("--nodefs", disk.path()).start().unwrap();
    agent.wait_for_threshold("met").unwrap();
    wait_for_syncs(&agent);
    let metrics = agent.metrics().unwrap();
    let signal = &[("eviction_signal", "nodefs.available")];
    let available = metrics.sum("eviction_agent_signal_available_bytes", signal);
    assert!(available > 0.0 && available < (256 * MIB) as f64, "{available}");
    assert_eq!(metrics.sum("eviction_agent_node_condition", &[("condition", "DiskPressure")]), 1.0);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    assert!(hog.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// A pod's writable layer may be on nodefs or not: pods cannot be ranked for it, and nothing else changes.
#[test]
fn no_pod_is_evicted_for_nodefs_while_imagefs_is_unknown() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (writes, grows) = (node.add(pod("writes", None)).unwrap(), node.add(pod("grows", None)).unwrap());
    let mut writes = writer(&disk, &node, writes, 128);
    let kubelet = json!({"evictionHard": {"nodefs.available": "256Mi", "memory.available": "128Mi"}});
    let options = Options::new(&node, &kubelet).unwrap().on_disk(&disk);
    let mut agent = options.with_path("--imagefs", "/nonexistent/images").start().unwrap();
    let met = agent.wait_for_threshold("met").unwrap();
    assert_eq!(met.text("signal"), "nodefs.available");
    wait_for_syncs(&agent);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    let _grows = node.run(grows, &["grow", "--size", "320M", "--rate", "0"]).unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!((decision.pod().as_str(), decision.text("signal")), ("shop/grows", "memory.available"));
    agent.wait_for_result("shop/grows", "terminated").unwrap();
    wait_for_syncs(&agent);
    assert_eq!(agent.count_decisions().unwrap(), 1);
    assert!(writes.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// The agent's state is on the disk that is full to the last block. The agent is stopped until the disk is full:
/// otherwise it would evict the pod before.
#[test]
fn the_agent_evicts_on_a_full_disk_where_it_cannot_write_its_state() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (hog, modest) = (node.add(pod("hog", None)).unwrap(), node.add(pod("modest", None)).unwrap());
    let mut bystander = writer(&disk, &node, modest, 4);
    let kubelet = json!({"evictionHard": {"nodefs.available": "1Mi"}});
    let mut agent = start_with_state(&disk, &node, &kubelet);
    signal(agent.pid(), Signal::STOP).unwrap();
    let _hog = writer(&disk, &node, hog, 1024);
    let mut rest = File::create(disk.path().join("rest")).unwrap();
    while rest.write_all(&[0x5a; 4096]).is_ok() {}
    rest.sync_all().unwrap();
    while rest.write_all(&[0x5a]).is_ok() {}
    signal(agent.pid(), Signal::CONT).unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    agent.wait_for_result("shop/hog", "terminated").unwrap();
    wait_for_syncs(&agent);
    assert!(bystander.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// A tool that makes a snapshot of a disk freezes it: every write to it waits, also those of the agent's state.
#[test]
fn a_frozen_disk_does_not_delay_decisions() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let pod = node.add(PodSpec::new("shop", "hog", &["main"], 8)).unwrap();
    let kubelet = json!({"evictionHard": {"nodefs.available": "1Mi", "memory.available": "128Mi"}});
    let mut agent = start_with_state(&disk, &node, &kubelet);
    let freeze = |how| run(Command::new("fsfreeze").arg(how).arg(disk.path()));
    if let Err(error) = freeze("--freeze") {
        tests::skip!("{error:#}");
    }
    let hog = node.run(pod, &["grow", "--size", "320M", "--rate", "0"]);
    let decision = hog.and_then(|_hog| agent.wait_for_decision());
    let end = agent.wait_for_result("shop/hog", "terminated");
    freeze("--unfreeze").unwrap();
    assert_eq!(decision.unwrap().pod(), "shop/hog");
    end.unwrap();
    agent.stop().unwrap();
}

/// A FUSE file system with a server that never answers: every process that accesses it waits.
struct HangingFileSystem {
    // Once the server is closed, no process waits any more.
    _server: File,
    folder: Folder,
}

impl HangingFileSystem {
    fn new() -> anyhow::Result<Self> {
        let server = File::options().read(true).write(true).open("/dev/fuse")?;
        let folder = Folder::below(&std::env::temp_dir(), "eviction-hung")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let flags = MountFlags::empty();
        rustix::mount::mount("hung", folder.path(), "fuse", flags, &*CString::new(options)?)?;
        Ok(Self { _server: server, folder })
    }
}

impl Drop for HangingFileSystem {
    fn drop(&mut self) {
        unmount(self.folder.path(), UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_hanging_file_system_does_not_delay_decisions() {
    let hanging = tests::or_skip!(HangingFileSystem::new(), "no FUSE file system can be mounted here");
    let mut node = node!();
    let pod = node.add(self::pod("hog", Some(8))).unwrap();
    let kubelet = json!({"evictionHard": {"nodefs.available": "90%", "memory.available": "128Mi"}});
    let mut options = Options::new(&node, &kubelet).unwrap();
    for option in ["--nodefs", "--imagefs", "--kubelet-root-dir", "--pod-logs-dir"] {
        options = options.with_path(option, hanging.folder.path());
    }
    let mut agent = options.start().unwrap();
    let _hog = node.run(pod, &["grow", "--size", "320M", "--rate", "0"]).unwrap();
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!((decision.pod().as_str(), decision.text("signal")), ("shop/hog", "memory.available"));
    let metrics = agent.metrics().unwrap();
    let known = |signal| metrics.sum("eviction_agent_signal_available_bytes", &[("eviction_signal", signal)]);
    assert_eq!(known("nodefs.available"), 0.0, "it is not known");
    agent.stop().unwrap();
}

/// ext4 becomes read-only after an error.
#[test]
fn the_right_pod_is_selected_on_a_read_only_disk() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let (hog, modest) = (node.add(pod("hog", None)).unwrap(), node.add(pod("modest", None)).unwrap());
    for (pod, mib) in [(hog, 128), (modest, 4)] {
        let volume = node.pods[pod].create_volume(&disk).unwrap();
        fs::write(volume.join("file"), vec![0x5a; mib << 20]).unwrap();
    }
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(disk.path())).unwrap();
    let kubelet = json!({"evictionHard": {"nodefs.available": "256Mi"}});
    let mut agent = start_with_state(&disk, &node, &kubelet);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    agent.stop().unwrap();
}

/// Below the mount is another file system, which has less than the threshold: no pod may be evicted for it.
#[test]
fn no_pod_is_evicted_for_an_unmounted_disk_until_it_is_mounted_again() {
    let (disk, mut node) = (mount!(Kind::Ext4), node!());
    let hog = node.add(pod("hog", None)).unwrap();
    let under = FileSystem::new(Kind::Tmpfs, MIB, "eviction-disk-under").unwrap();
    let mut agent = start(&disk, &node, &json!({"evictionHard": {"nodefs.available": "128Mi"}}));
    rustix::mount::mount_bind(under.path(), disk.path()).unwrap();
    let is_error = |event: &Event| event.kind() == "signal_read_error";
    let error = agent.wait_for("an error", GUARD, is_error).unwrap();
    let text = error.text("error");
    assert!(text.contains("another file system has taken its place"), "{text}");
    wait_for_syncs(&agent);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    disk.unmount().unwrap();
    let _hog = writing(&disk, &node, hog, 256);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    agent.stop().unwrap();
}
