//! Kernel kills of writers: the kernel kills the process whose buffered write crosses a threshold.

use std::os::unix::process::ExitStatusExt as _;

use serde_json::json;
use tests::agent::{Agent, Event, GUARD, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::{Node, PodSpec};
use tests::workload::Workload;

use crate::agent::{node, pod, writer, writing};
use crate::{MIB, mount};

/// The bytes that may be written until the threshold is met.
const HEADROOM: u64 = 24 * MIB;

/// A node with two pods. The first has no request and uses much of the disk; the second keeps to its request. The
/// agent has its kill order on the first.
struct Testbed {
    node: Node,
    hog: usize,
    modest: usize,
    writers: [Workload; 2],
    threshold: u64,
    agent: Agent,
}

impl Testbed {
    /// Creates a testbed, or returns why there can be none here.
    fn new(disk: &FileSystem, mut node: Node) -> Result<Self, String> {
        let hog = node.add(pod("hog", None)).unwrap();
        let modest = node.add(PodSpec { storage_request_mib: 200, ..pod("modest", None) }).unwrap();
        let writers = [writer(disk, &node, hog, 32), writer(disk, &node, modest, 64)];
        let threshold = disk.available().unwrap() - HEADROOM;
        let config = json!({"kernelKill": "HardDisk", "thresholdMargin": {"mode": "Never"}});
        let config = node.write_agent_config(&config).unwrap();
        let hard = json!({"evictionHard": {"nodefs.available": threshold.to_string()}});
        let options = Options { config: Some(config), ..Options::new(&node, &hard).unwrap() };
        let agent = options.on_disk(disk).start().unwrap();
        if !agent.has_backend("disk near") {
            return Err(format!("no hook on reservations of ext4: {:?}", agent.backend_reason("disk near")));
        }
        agent.wait_for_metric("eviction_agent_kernel_kill_armed", &[], |armed| armed == 1.0).unwrap();
        Ok(Self { node, hog, modest, writers, threshold, agent })
    }

    fn wait_for_the_end(&mut self) {
        self.agent.wait_for_result("shop/hog", "terminated").unwrap();
        let [_, modest] = &mut self.writers;
        assert!(modest.process().is_running().unwrap());
    }
}

#[test]
fn the_kernel_kills_the_writer_and_the_agent_evicts_its_pod() {
    let disk = mount!(Kind::Ext4);
    let mut testbed = tests::or_skip!(Testbed::new(&disk, node!()));
    let mut runaway = writing(&disk, &testbed.node, testbed.hog, 200);
    assert_eq!(runaway.process().wait().unwrap().signal(), Some(9));
    let left = disk.available().unwrap();
    // A write checks for a signal after each folio of page cache, and the workload writes 256 KiB at a time.
    assert!(left + MIB / 2 >= testbed.threshold, "{left} of {}", testbed.threshold);
    assert!(left < testbed.threshold + MIB, "it was killed at {left} of {}", testbed.threshold);
    let decision = testbed.agent.wait_for_decision().unwrap();
    assert_eq!((decision.pod().as_str(), decision.text("signal")), ("shop/hog", "nodefs.available"));
    let is_kill = |event: &Event| event.kind() == "kernel_kill";
    let kill = testbed.agent.wait_for("the event of the kernel kill", GUARD, is_kill).unwrap();
    assert_eq!((kill.text("signal"), kill.number("id")), ("nodefs.available", decision.number("id")));
    assert_eq!(kill.number("threshold_bytes"), Some(testbed.threshold));
    testbed.wait_for_the_end();
    assert_eq!(testbed.agent.metric("eviction_agent_kernel_kills_total", &[]).unwrap(), 1.0);
    testbed.agent.stop().unwrap();
}

#[test]
fn a_writer_of_another_pod_is_not_killed_and_the_agent_evicts_the_victim() {
    let disk = mount!(Kind::Ext4);
    let mut testbed = tests::or_skip!(Testbed::new(&disk, node!()));
    let mut other = writing(&disk, &testbed.node, testbed.modest, 100);
    other.wait_event("written").unwrap();
    let decision = testbed.agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_ne!(decision.text("detected_by"), "kernel_kill");
    testbed.wait_for_the_end();
    assert_eq!(testbed.agent.metric("eviction_agent_kernel_kills_total", &[]).unwrap(), 0.0);
    let reason = [("reason", "not_victim")];
    let suppressed = testbed.agent.metric("eviction_agent_kernel_kill_suppressed_total", &reason).unwrap();
    assert!(suppressed >= 1.0, "{suppressed}");
    assert!(other.process().is_running().unwrap());
    testbed.agent.stop().unwrap();
}
