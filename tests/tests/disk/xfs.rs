//! xfs allocates ahead of a file that grows and gives it back when the file is closed.

use std::fs;
use std::time::Duration;

use rustix::fs::statvfs;
use serde_json::json;
use tests::agent::{self, Agent, Event, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::process::wait_until;
use tests::skip;
use tests::workload::Workload;

use crate::agent::{GUARD, is_decision, node, pod, start_on, writing};
use crate::{MIB, mount};

/// How long the agent waits for what was allocated ahead.
const WAIT: Duration = Duration::from_secs(2);

/// A pod writes so much that the threshold is met by what is allocated ahead of its file alone.
const WRITTEN_MIB: u64 = 72;
const LEFT_MIB: u64 = 90;

fn available(disk: &FileSystem) -> u64 {
    let stat = statvfs(disk.path()).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// An agent, and a pod that has written.
fn crossed(disk: &FileSystem, node: &mut Node, profile: &str) -> (Agent, Workload, u64) {
    let hog = node.add(pod("hog", None)).unwrap();
    let threshold = available(disk) - LEFT_MIB * MIB;
    let kubelet = json!({"evictionHard": {"nodefs.available": threshold.to_string()}});
    let config = node.file("agent.yaml");
    let agent = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "profile": profile,
    });
    fs::write(&config, agent.to_string()).unwrap();
    let options = Options::of(&agent::binary().unwrap(), node, &kubelet).unwrap();
    let options = Options { config: Some(config), ..options };
    let mut agent = start_on(disk, options, &[("--kubelet-root-dir", "kubelet")]);
    let writer = writing(disk, node, hog, WRITTEN_MIB);
    let is_met = |event: &Event| event.kind() == "threshold" && event.text("signal") == "nodefs.available";
    agent.wait_for("the threshold", GUARD, is_met).unwrap();
    (agent, writer, threshold)
}

#[test]
fn no_pod_goes_for_space_that_is_given_back_at_once() {
    for _ in 0..5 {
        let (disk, mut node) = (mount!(Kind::Xfs), node!());
        let (mut agent, mut writer, threshold) = crossed(&disk, &mut node, "Enhanced");
        let began = std::time::Instant::now();
        writer.wait_event("written").unwrap();
        drop(writer);
        wait_until("the space", || available(&disk) > threshold).unwrap();
        // A slow machine gives it back too late.
        if began.elapsed() > WAIT / 2 {
            continue;
        }
        let is_cleared = |event: &Event| event.kind() == "threshold" && event.text("state") == "cleared";
        agent.wait_for("the end of the threshold", GUARD, is_cleared).unwrap();
        assert!(!agent.heard().unwrap().iter().any(is_decision));
        agent.stop().unwrap();
        return;
    }
    panic!("the machine is too slow");
}

/// How long after the threshold was met the pod goes that has its file open, with `meanwhile`.
fn waited(profile: &str, meanwhile: impl FnOnce(&FileSystem)) -> Result<Duration, String> {
    let disk = crate::mounted(Kind::Xfs)?;
    let mut node = Node::new("disk", 384 * MIB, 200).map_err(|error| format!("{error:#}"))?;
    let (mut agent, _writer, _) = crossed(&disk, &mut node, profile);
    meanwhile(&disk);
    let decision = agent.wait_for("a decision", GUARD, is_decision).unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    let is_met = |event: &Event| event.kind() == "threshold" && event.text("state") == "met";
    let met = agent.wait_for("the threshold", GUARD, is_met).unwrap();
    agent.stop().unwrap();
    let at = |event: &Event| event.text("at").parse::<jiff::Timestamp>().unwrap();
    Ok(at(&decision).duration_since(at(&met)).try_into().unwrap())
}

/// The same on a machine that is not slow at each of five attempts.
fn is_sooner(profile: &str, meanwhile: impl Fn(&FileSystem)) -> Result<bool, String> {
    for _ in 0..5 {
        if waited(profile, &meanwhile)? < WAIT {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn a_pod_goes_for_space_that_is_not_given_back_in_time() {
    match waited("Enhanced", |_| {}) {
        Ok(waited) => assert!(waited >= WAIT, "{waited:?}"),
        Err(why) => skip!("{why}"),
    }
}

#[test]
fn nothing_is_waited_for_once_it_would_be_too_little() {
    let write = |disk: &FileSystem| fs::write(disk.path().join("another"), vec![0x5a; 48 << 20]).unwrap();
    match is_sooner("Enhanced", write) {
        Ok(is_sooner) => assert!(is_sooner),
        Err(why) => skip!("{why}"),
    }
}

#[test]
fn the_kubelets_rules_wait_for_nothing() {
    match is_sooner("Kubelet", |_| {}) {
        Ok(is_sooner) => assert!(is_sooner),
        Err(why) => skip!("{why}"),
    }
}
