//! The agent removes images through a real containerd before it evicts a pod.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{self, Agent, Event, GUARD, Options};
use tests::cluster::node::{Image, Runtime};
use tests::containerd::Containerd;
use tests::file_system::{FileSystem, Kind};
use tests::node::Node;
use tests::process::{signal, wait_until};
use tests::workload::Workload;

use crate::MIB;
use crate::agent::{pod, writer, writing};

/// A file system with the images of a containerd and the volumes of two pods.
struct Testbed {
    // Dropped in this order: the writers, containerd, the disk.
    stays: Workload,
    node: Node,
    containerd: Containerd,
    disk: FileSystem,
    /// The available bytes with all images and without the writers.
    free: u64,
}

/// Creates a testbed with the images `pause`, `small` and `large`, and a pod `stays` that has written one MiB.
fn testbed() -> Result<Testbed, String> {
    let runtime = Runtime::find()?;
    let disk = FileSystem::new(Kind::Ext4, 800 * MIB, "eviction-reclaim-test")
        .map_err(|error| format!("no ext4 can be mounted here: {error:#}"))?;
    let mut node =
        Node::new("reclaim", 512 * MIB, 200).map_err(|error| format!("no cgroups can be made: {error:#}"))?;
    let containerd = Containerd::start(&disk.path().join("containerd")).unwrap();
    containerd.import(&Image::pause(runtime.busybox())).unwrap();
    containerd.import_random("small", 20, disk.outside()).unwrap();
    containerd.import_random("large", 60, disk.outside()).unwrap();
    node.add(pod("hog", None)).unwrap();
    node.add(pod("stays", None)).unwrap();
    let stays = writer(&disk, &node, 1, 1);
    let free = disk.available().unwrap();
    Ok(Testbed { stays, node, containerd, disk, free })
}

impl Testbed {
    /// Starts an agent with a threshold that is `mib_below` MiB below the available space.
    fn start(&self, mib_below: u64, action: &'static str) -> Agent {
        self.start_at(&self.containerd.socket(), mib_below, action)
    }

    /// Does the same with another socket than containerd's.
    fn start_at(&self, socket: &Path, mib_below: u64, action: &'static str) -> Agent {
        let kubelet = json!({
            "evictionHard": {"nodefs.available": (self.free - mib_below * MIB).to_string()},
            "imageMinimumGCAge": "1ms",
        });
        let config = self.node.write_agent_config(&json!({"eviction": {"nodeReclaim": "CRI"}})).unwrap();
        let options = Options::new(&self.node, &kubelet).unwrap().with_path("--cri-socket", socket);
        Options { action, config: Some(config), ..options }.on_disk(&self.disk).start().unwrap()
    }

    fn images(&self) -> Vec<String> {
        let mut names = self.containerd.images().unwrap();
        names.iter_mut().for_each(|name| *name = name.replace("docker.io/local/", "").replace(":1", ""));
        names.sort();
        names
    }
}

/// Returns result and images of the nth event line about reclaim, counted from 1.
fn wait_for_reclaim(agent: &mut Agent, nth: usize) -> (String, Vec<String>) {
    let is_reclaim = |event: &Event| event.kind() == "node_reclaim";
    let event = agent.wait_for_nth(nth, "node reclaim", GUARD, is_reclaim).unwrap();
    assert_eq!(event.text("signal"), "nodefs.available");
    let images = event.value.get("images").and_then(Value::as_array).cloned().unwrap_or_default();
    let name = |image: &Value| image["name"].as_str().unwrap().replace("docker.io/local/", "");
    (event.text("result").to_owned(), images.iter().map(name).collect())
}

#[test]
fn images_are_removed_only_as_needed_and_then_the_pod_is_evicted() {
    let mut testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start(30, "kill");
    // The hog leaves 20 MiB less than the threshold: removing `large` alone is enough.
    let mut hog = writer(&testbed.disk, &testbed.node, 0, 50);
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("enough".to_owned(), vec!["large:1".to_owned()]));
    assert_eq!(testbed.images(), ["pause", "small"]);
    assert_eq!(agent.count_decisions().unwrap(), 0);
    let metrics = agent.metrics().unwrap();
    let images = metrics.sum("eviction_agent_node_reclaim_removed_total", &[("kind", "images")]);
    let freed = metrics.sum("eviction_agent_node_reclaim_freed_bytes_total", &[]);
    assert!(images == 1.0 && freed >= (60 * MIB) as f64, "{images} {freed}");
    // The second time the remaining images are not enough.
    agent.wait_for_threshold("cleared").unwrap();
    let mut more = writing(&testbed.disk, &testbed.node, 0, 170);
    // The agent may act while the pod still writes: then `small` is enough for a moment, or the pod is killed before
    // it has written all.
    let (first, mut images) = wait_for_reclaim(&mut agent, 2);
    if first == "enough" {
        let (second, more) = wait_for_reclaim(&mut agent, 3);
        assert_eq!(second, "nothing_left");
        images.extend(more);
    }
    assert_eq!(images, ["small:1"]);
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_eq!(testbed.images(), ["pause"]);
    agent.wait_for_result("shop/hog", "terminated").unwrap();
    assert!(!hog.process().is_running().unwrap() && !more.process().is_running().unwrap());
    assert!(testbed.stays.process().is_running().unwrap());
    agent.stop().unwrap();
}

/// As in the chart, the agent has no socket of the runtime.
#[test]
fn images_are_removed_through_the_cri_proxy() {
    let testbed = tests::or_skip!(testbed());
    let socket = testbed.disk.outside().join("proxy.sock");
    let mut command = Command::new(agent::binary().unwrap());
    command.args(["cri-proxy", "--cri-socket"]).arg(testbed.containerd.socket()).arg("--socket").arg(&socket);
    let mut proxy = command.spawn().unwrap();
    wait_until("the socket of the proxy", || socket.exists()).unwrap();
    let mut agent = testbed.start_at(&socket, 30, "kill");
    let _hog = writer(&testbed.disk, &testbed.node, 0, 50);
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("enough".to_owned(), vec!["large:1".to_owned()]));
    assert_eq!(testbed.images(), ["pause", "small"]);
    agent.stop().unwrap();
    signal(proxy.id(), Signal::TERM).unwrap();
    assert!(proxy.wait().unwrap().success(), "SIGTERM ends it in order");
}

#[test]
fn a_dry_run_lists_the_same_images_and_removes_none() {
    let testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start(30, "none");
    let mut hog = writer(&testbed.disk, &testbed.node, 0, 50);
    let all = vec!["large:1".to_owned(), "small:1".to_owned()];
    assert_eq!(wait_for_reclaim(&mut agent, 1), ("listed".to_owned(), all));
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    assert_eq!(testbed.images(), ["large", "pause", "small"]);
    assert!(hog.process().is_running().unwrap());
    assert_eq!(agent.metric("eviction_agent_node_reclaim_removed_total", &[]).unwrap(), 0.0);
    agent.stop().unwrap();
}

#[test]
fn reclaim_with_a_hanging_runtime_times_out_before_the_eviction() {
    let testbed = tests::or_skip!(testbed());
    let mut agent = testbed.start(30, "kill");
    testbed.containerd.signal(Signal::STOP).unwrap();
    let _hog = writer(&testbed.disk, &testbed.node, 0, 50);
    let (result, images) = wait_for_reclaim(&mut agent, 1);
    testbed.containerd.signal(Signal::CONT).unwrap();
    assert_eq!((result.as_str(), images), ("timed_out", Vec::new()));
    let decision = agent.wait_for_decision().unwrap();
    assert_eq!(decision.pod(), "shop/hog");
    agent.stop().unwrap();
}
