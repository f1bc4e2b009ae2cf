//! xfs allocates ahead of a file that grows and gives it back when the file is closed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, Options};
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

/// Starts an agent that records, and a pod that writes until the threshold is met.
fn start_until_threshold_met(disk: &FileSystem, node: &mut Node, profile: &str) -> (Agent, Workload, u64) {
    let hog = node.add(pod("hog", None)).unwrap();
    let threshold = disk.available().unwrap() - HEADROOM_MIB * MIB;
    let kubelet = json!({"evictionHard": {"nodefs.available": threshold.to_string()}});
    let recorder = json!({"directory": node.file("recording"), "minFreeDisk": "0"});
    let config = node.write_agent_config(&json!({"profile": profile, "recorder": recorder})).unwrap();
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

/// The eviction of a pod that has its file open.
struct Eviction {
    /// The time since the threshold was met.
    delay: Duration,
    /// The preallocated bytes of each record of a decision that waits for them.
    awaited: Vec<u64>,
    /// The bytes that were allocated beyond the end of the pod's file when it was written.
    preallocated: Option<u64>,
}

/// Evicts the pod, with `meanwhile` between the crossing and the decision.
fn evict(profile: &str, meanwhile: impl FnOnce(&FileSystem)) -> Result<Eviction> {
    let disk = crate::mounted(Kind::Xfs).context("no xfs can be mounted here")?;
    let mut node = Node::new("disk", 384 * MIB, 200).context("no cgroups can be made here")?;
    let (mut agent, mut writer, _) = start_until_threshold_met(&disk, &mut node, profile);
    // Without a wait it may be killed before.
    let is_written = writer.wait_event("written").is_ok();
    let file = node.pods[0].create_volume(&disk).unwrap().join(format!("{WRITTEN_MIB}-mib"));
    let preallocated = file.metadata().map(|file| (file.blocks() * 512).saturating_sub(file.len())).unwrap();
    meanwhile(&disk);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    let met = agent.wait_for_threshold("met").unwrap();
    agent.stop().unwrap();
    let at = |event: &Event| event.text("at").parse::<jiff::Timestamp>().unwrap();
    Ok(Eviction {
        delay: at(&decision).duration_since(at(&met)).try_into().unwrap(),
        awaited: awaited_bytes(&node.file("recording")),
        preallocated: is_written.then_some(preallocated),
    })
}

/// Returns `awaited_bytes` of each recorded decision that waits for these bytes, and asserts that no other has it.
fn awaited_bytes(recording: &Path) -> Vec<u64> {
    let mut command = Command::new(agent::binary().unwrap());
    let output = command.arg("explain").arg(recording).args(["-o", "jsonl"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decided = lines.map(|line| line["evaluation"].clone()).filter(|evaluation| evaluation.is_object());
    let (awaiting, others): (Vec<_>, Vec<_>) =
        decided.partition(|evaluation| evaluation["end"] == "awaiting_space");
    assert!(others.iter().all(|evaluation| evaluation["awaited_bytes"].is_null()), "{others:?}");
    awaiting.iter().map(|evaluation| evaluation["awaited_bytes"].as_u64().unwrap()).collect()
}

/// Returns whether that takes less than [`PREALLOCATION_WAIT`] in one of five attempts: the machine may be slow.
fn decides_early(profile: &str, meanwhile: impl Fn(&FileSystem)) -> Result<bool> {
    for _ in 0..5 {
        let Eviction { delay, awaited, .. } = evict(profile, &meanwhile)?;
        assert!(profile == "Enhanced" || awaited.is_empty(), "{awaited:?}");
        if delay < PREALLOCATION_WAIT {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn a_pod_is_evicted_if_preallocation_is_not_freed_in_time() {
    let Eviction { delay, awaited, preallocated } = or_skip!(evict("Enhanced", |_| {}));
    assert!(delay >= PREALLOCATION_WAIT, "{delay:?}");
    // The pod may have been writing when its file was read.
    let preallocated = preallocated.unwrap();
    let expected = preallocated - MIB..=preallocated + WRITTEN_MIB * MIB;
    assert!(
        !awaited.is_empty() && awaited.iter().all(|bytes| expected.contains(bytes)),
        "{awaited:?}, {expected:?}"
    );
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
