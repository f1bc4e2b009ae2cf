//! xfs allocates ahead of a file that grows and gives it back when the file is closed.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tests::agent::{Agent, Event, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::or_skip;
use tests::process::wait_until;
use tests::workload::Workload;

use crate::agent::{node, pod, writing};
use crate::{MIB, mount};

/// How long the agent waits for space that was allocated ahead.
const PREALLOCATION_WAIT: Duration = Duration::from_secs(2);

/// The MiB that a pod writes. The space that is allocated ahead of its file alone makes the threshold met.
const WRITTEN_MIB: u64 = 72;
const HEADROOM_MIB: u64 = 90;

/// Starts an agent, and a pod that writes until the threshold is met.
fn start_until_threshold_met(disk: &FileSystem, node: &mut Node, profile: &str) -> (Agent, Workload, u64) {
    let hog = node.add(pod("hog", None)).unwrap();
    let threshold = disk.available().unwrap() - HEADROOM_MIB * MIB;
    let kubelet = json!({"evictionHard": {"nodefs.available": threshold.to_string()}});
    let config = node.write_agent_config(&json!({"profile": profile})).unwrap();
    let options = Options { config: Some(config), ..Options::new(node, &kubelet).unwrap() };
    let mut agent = options.on_disk(disk).start().unwrap();
    let writer = writing(disk, node, hog, WRITTEN_MIB);
    agent.wait_for_threshold("met").unwrap();
    (agent, writer, threshold)
}

#[test]
fn no_pod_is_evicted_for_preallocation_that_is_freed_at_once() {
    for _ in 0..5 {
        let (disk, mut node) = (mount!(Kind::Xfs), node!());
        let (mut agent, mut writer, threshold) = start_until_threshold_met(&disk, &mut node, "Enhanced");
        let start = std::time::Instant::now();
        writer.wait_event("written").unwrap();
        drop(writer);
        wait_until("the space", || disk.available().unwrap() > threshold).unwrap();
        // A slow machine gives the space back too late.
        if start.elapsed() > PREALLOCATION_WAIT / 2 {
            continue;
        }
        agent.wait_for_threshold("cleared").unwrap();
        assert_eq!(agent.count_decisions().unwrap(), 0);
        agent.stop().unwrap();
        return;
    }
    panic!("the machine is too slow");
}

/// Returns how long after the threshold was met the pod is evicted that has its file open, with `meanwhile` in
/// between.
fn delay_until_decision(profile: &str, meanwhile: impl FnOnce(&FileSystem)) -> Result<Duration> {
    let disk = crate::mounted(Kind::Xfs).context("no xfs can be mounted here")?;
    let mut node = Node::new("disk", 384 * MIB, 200).context("no cgroups can be made here")?;
    let (mut agent, _writer, _) = start_until_threshold_met(&disk, &mut node, profile);
    meanwhile(&disk);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    let met = agent.wait_for_threshold("met").unwrap();
    agent.stop().unwrap();
    let at = |event: &Event| event.text("at").parse::<jiff::Timestamp>().unwrap();
    Ok(at(&decision).duration_since(at(&met)).try_into().unwrap())
}

/// Returns whether that takes less than [`PREALLOCATION_WAIT`] in one of five attempts: the machine may be slow.
fn decides_early(profile: &str, meanwhile: impl Fn(&FileSystem)) -> Result<bool> {
    for _ in 0..5 {
        if delay_until_decision(profile, &meanwhile)? < PREALLOCATION_WAIT {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn a_pod_is_evicted_if_preallocation_is_not_freed_in_time() {
    let delay = or_skip!(delay_until_decision("Enhanced", |_| {}));
    assert!(delay >= PREALLOCATION_WAIT, "{delay:?}");
}

#[test]
fn the_agent_does_not_wait_for_too_little_preallocation() {
    let write = |disk: &FileSystem| fs::write(disk.path().join("another"), vec![0x5a; 48 << 20]).unwrap();
    assert!(or_skip!(decides_early("Enhanced", write)));
}

#[test]
fn the_kubelet_profile_does_not_wait_for_preallocation() {
    assert!(or_skip!(decides_early("Kubelet", |_| {})));
}
