//! Unused images on a short imagefs: they are removed, by the agent or by the kubelet, and no pod is evicted.

use std::time::Duration;

use serde_json::json;
use tests::agent::{Agent, Event, GUARD};
use tests::cluster::node::Image;
use tests::cluster::{Cluster, Options};
use tests::file_system::{FileSystem, Kind};
use tests::node::MIB;
use tests::process::wait_until;
use tests::story::Story;

use crate::testbed::{self, NODE, Testbed, growing, pod, running_pod, selected_pods};

/// The kubelet's threshold, and that of the agent where it must not act at the same time.
const KUBELET_MIB: u64 = 200;
const AGENT_MIB: u64 = 400;

const GARBAGE: [&str; 3] = ["unused-0", "unused-1", "unused-2"];
/// The size of each unused image. containerd keeps it twice, as content and as a layer.
const GARBAGE_MIB: u64 = 60;

struct Garbage {
    testbed: Testbed,
    imagefs: FileSystem,
}

impl Garbage {
    /// Starts a node with a disk of its own as imagefs, and the pod `uses`.
    fn new() -> Option<Self> {
        let imagefs = FileSystem::new(Kind::Ext4, 1536 * MIB, "eviction-kubelet-images");
        let imagefs = tests::or_skip!(imagefs, "no ext4 can be mounted here");
        let mut config = testbed::small_config();
        config["evictionHard"] =
            json!({"memory.available": "200Mi", "imagefs.available": format!("{KUBELET_MIB}Mi")});
        config["imageMinimumGCAge"] = json!("1s");
        let mut testbed = testbed::node_on(&Options::default(), &config, &[("containerd", imagefs.path())])?;
        let uses = testbed.image("uses", &growing(0, 1));
        testbed.run(&pod("uses", &uses, None, None));
        Some(Self { testbed, imagefs })
    }

    /// Imports the unused images, and waits until the kubelet has reported them.
    fn import(&mut self) {
        for name in GARBAGE {
            let image = Image::random(name, GARBAGE_MIB, self.testbed.node.path()).unwrap();
            self.testbed.node.import(&image).unwrap();
        }
        // It detects new images when it starts and every five minutes (`image_gc_manager.go: Start`). An image that it
        // detects while it reclaims is too young to be removed.
        self.testbed.node.kill_kubelet().unwrap();
        self.testbed.node.start_kubelet(&mut self.testbed.cluster).unwrap();
        let are_reported = |cluster: &Cluster| {
            let node = cluster.admin().get(&format!("/api/v1/nodes/{NODE}"))?.body;
            let images = node["status"]["images"].to_string();
            Ok(GARBAGE.iter().all(|name| images.contains(name)).then_some(()))
        };
        self.testbed.cluster.until("the images are reported", are_reported).unwrap();
    }

    /// Starts an agent once it sees the pod. `margin_mib` is added to the kubelet's threshold.
    fn agent(&self, node_reclaim: &str, margin_mib: u64) -> Agent {
        let socket = self.testbed.node.containerd_socket();
        let margin = json!({"signal": "imagefs.available", "value": format!("{margin_mib}Mi")});
        let mut agent = self.testbed.configured_agent(json!({
            "eviction": {"nodeReclaim": node_reclaim},
            "reclaim": {"criSocket": format!("unix://{}", socket.display())},
            "thresholdMargin": {"perSignal": [margin]},
        }));
        agent.wait_for_pods(1).unwrap();
        // No image is removed that it first saw less than imageMinimumGCAge ago.
        self.testbed.cluster.interrupt().sleep(Duration::from_secs(3)).unwrap();
        agent
    }

    /// Takes so much of imagefs that a threshold is missed by `mib` MiB.
    fn fill(&self, threshold_mib: u64, mib: u64) {
        let size = self.imagefs.available().unwrap() - (threshold_mib - mib) * MIB;
        self.imagefs.fill("filler", size).unwrap();
    }

    /// Waits until a reclaim has ended like that, and returns the unused images that are left.
    fn images_after(&mut self, agent: &mut Agent, result: &str) -> Vec<String> {
        let is_match = |event: &Event| event.kind() == "node_reclaim" && event.text("result") == result;
        agent.wait_for("the reclaim", GUARD, is_match).unwrap();
        self.images()
    }

    fn images(&self) -> Vec<String> {
        let images = self.testbed.node.images().unwrap();
        assert!(images.iter().any(|name| name.contains("/uses")), "{images:?}");
        images.into_iter().filter(|name| name.contains("unused")).collect()
    }

    /// Asserts that no pod was evicted.
    fn assert_spared(&self, agent: &mut Agent) {
        assert_eq!(selected_pods(agent), [""; 0]);
        let log = self.testbed.kubelet_eviction_log();
        assert!(!log.iter().any(|line| line.contains("must evict pod")), "{log:?}");
        assert!(running_pod(&self.testbed.cluster, "uses").is_some());
    }
}

/// The image of sandboxes is kept, so that other pods can start.
#[test]
fn the_agent_removes_as_many_unused_images_as_are_needed() {
    let Some(mut it) = Garbage::new() else { return };
    it.import();
    let mut agent = it.agent("CRI", AGENT_MIB - KUBELET_MIB);
    it.fill(AGENT_MIB, 80);
    let mut story = Story::begin();
    let left = it.images_after(&mut agent, "enough");
    story.mark("removed");
    assert_eq!(left.len(), GARBAGE.len() - 1, "{left:?}");
    let late = it.testbed.image("late", &growing(0, 1));
    it.testbed.run(&pod("late", &late, None, None));
    it.assert_spared(&mut agent);
    agent.stop().unwrap();
}

#[test]
fn no_pod_is_evicted_if_the_kubelet_removes_unused_images() {
    let Some(mut it) = Garbage::new() else { return };
    it.import();
    let mut agent = it.agent("Kubelet", 0);
    it.fill(KUBELET_MIB, 80);
    let mut story = Story::begin();
    it.images_after(&mut agent, "left_to_kubelet");
    agent.wait_for_threshold("cleared").unwrap();
    wait_until("the kubelet has removed all of them", || it.images().is_empty()).unwrap();
    story.mark("removed");
    it.assert_spared(&mut agent);
    agent.stop().unwrap();
}
