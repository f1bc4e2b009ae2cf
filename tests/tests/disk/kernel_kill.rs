//! Kernel kills of writers: the kernel kills the process whose buffered write crosses a threshold.

use std::os::unix::process::ExitStatusExt as _;

use serde_json::json;
use tests::agent::{self, Agent, Event, Options};
use tests::file_system::{FileSystem, Kind};
use tests::interrupt::Interrupt;
use tests::node::{Node, PodSpec};
use tests::process::wait_until;
use tests::workload::Workload;

use crate::agent::{GUARD, is_decision, node, pod, writer, writing};
use crate::hooks::available;
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
        let threshold = available(disk) - HEADROOM;
        let config = json!({"kernelKill": "HardDisk", "thresholdMargin": {"mode": "Never"}});
        let config = node.write_agent_config(&config).unwrap();
        let hard = json!({"evictionHard": {"nodefs.available": threshold.to_string()}});
        let mut options = Options::of(&agent::binary().unwrap(), &node, &hard).unwrap();
        options.config = Some(config);
        let paths = [("--nodefs", ""), ("--kubelet-root-dir", "kubelet")];
        let paths =
            paths.map(|(option, path)| [option.to_owned(), disk.path().join(path).display().to_string()]);
        options.more = paths.concat();
        let agent = Agent::start(&options, &Interrupt::default()).unwrap();
        if agent.backend("disk near").is_none_or(|(used, _)| used.is_empty() || used == "none") {
            return Err(format!("no hook on reservations of ext4: {:?}", agent.backend("disk near")));
        }
        let testbed = Self { node, hog, modest, writers, threshold, agent };
        wait_until("an armed kill order", || testbed.metric("eviction_agent_kernel_kill_armed") == 1.0)
            .unwrap();
        Ok(testbed)
    }

    fn metric(&self, name: &str) -> f64 {
        self.agent.metrics().unwrap().sum(name, &[])
    }

    fn wait_for_the_end(&mut self) {
        let is_end =
            |event: &Event| event.kind() == "eviction_progress" && event.text("result") == "terminated";
        self.agent.wait_for("the end of the eviction", GUARD, is_end).unwrap();
        let [_, modest] = &mut self.writers;
        assert!(modest.process().is_running().unwrap());
    }
}

/// Makes a testbed, or ends the test.
macro_rules! testbed {
    ($disk:expr) => {
        match Testbed::new($disk, node!()) {
            Ok(testbed) => testbed,
            Err(why) => tests::skip!("{why}"),
        }
    };
}

#[test]
fn the_kernel_kills_the_writer_and_the_agent_evicts_its_pod() {
    let disk = mount!(Kind::Ext4);
    let mut testbed = testbed!(&disk);
    let mut runaway = writing(&disk, &testbed.node, testbed.hog, 200);
    assert_eq!(runaway.process().wait().unwrap().signal(), Some(9));
    let left = available(&disk);
    // A write checks for a signal after each folio of page cache, and the workload writes 256 KiB at a time.
    assert!(left + MIB / 2 >= testbed.threshold, "{left} of {}", testbed.threshold);
    assert!(left < testbed.threshold + MIB, "it was killed at {left} of {}", testbed.threshold);
    let decision = testbed.agent.wait_for("a decision", GUARD, is_decision).unwrap();
    assert_eq!((decision.pod().as_str(), decision.text("signal")), ("shop/hog", "nodefs.available"));
    let is_kill = |event: &Event| event.kind() == "kernel_kill";
    let kill = testbed.agent.wait_for("the event of the kernel kill", GUARD, is_kill).unwrap();
    assert_eq!((kill.text("signal"), kill.number("id")), ("nodefs.available", decision.number("id")));
    assert_eq!(kill.number("threshold_bytes"), Some(testbed.threshold));
    testbed.wait_for_the_end();
    assert_eq!(testbed.metric("eviction_agent_kernel_kills_total"), 1.0);
    testbed.agent.stop().unwrap();
}

#[test]
fn a_writer_of_another_pod_is_not_killed_and_the_agent_evicts_the_victim() {
    let disk = mount!(Kind::Ext4);
    let mut testbed = testbed!(&disk);
    let mut other = writing(&disk, &testbed.node, testbed.modest, 100);
    other.wait_event("written").unwrap();
    let decision = testbed.agent.wait_for("a decision", GUARD, is_decision).unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_ne!(decision.text("detected_by"), "kernel_kill");
    testbed.wait_for_the_end();
    assert_eq!(testbed.metric("eviction_agent_kernel_kills_total"), 0.0);
    let reason = [("reason", "not_victim")];
    let suppressed =
        testbed.agent.metrics().unwrap().sum("eviction_agent_kernel_kill_suppressed_total", &reason);
    assert!(suppressed >= 1.0, "{suppressed}");
    assert!(other.process().is_running().unwrap());
    testbed.agent.stop().unwrap();
}
