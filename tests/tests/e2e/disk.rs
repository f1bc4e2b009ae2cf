//! Disk pressure with a real API server: condition, taint, and the eviction of the pod that writes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tests::agent::{Agent, config_without_margin};
use tests::cluster::{self, Cluster, manifest};
use tests::file_system::{FileSystem, Kind};
use tests::node::{MIB, Node, PodSpec};
use tests::or_skip;
use tests::workload::Workload;

use crate::agent::{self, NODE};
use crate::fixture;
use crate::node_conditions;

const VOLUME: &str = "scratch";

/// A node in a cluster, with a file system of its own as nodefs.
struct Testbed {
    cluster: Cluster,
    node: Node,
    disk: FileSystem,
}

impl Testbed {
    fn new() -> Option<Self> {
        let disk = FileSystem::new(Kind::Ext4, 512 * MIB, "eviction-e2e-disk");
        let disk = or_skip!(disk, "no ext4 can be mounted here");
        let node = or_skip!(Node::new("e2e-disk", 384 * MIB, 200), "no cgroups can be made here");
        let cluster = fixture::cluster(&cluster::Options::default())?;
        cluster.add_node(NODE).unwrap();
        Some(Self { cluster, node, disk })
    }

    /// Adds a pod with a volume; `request` is its request of local storage, `limit` the size limit of its volume.
    fn add(&mut self, name: &str, request: &str, limit: Option<&str>) -> usize {
        let mut pod = manifest::pod(name, NODE);
        let empty_dir = limit.map_or_else(|| json!({}), |limit| json!({"sizeLimit": limit}));
        pod["spec"]["volumes"] = json!([{"name": VOLUME, "emptyDir": empty_dir}]);
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"ephemeral-storage": request}});
        let pod = self.cluster.run_pod(&pod).unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let index = self.node.add_with_uid(PodSpec::new("default", name, &["main"], 8), uid).unwrap();
        fs::create_dir_all(self.volume(index)).unwrap();
        index
    }

    fn volume(&self, pod: usize) -> PathBuf {
        let path = self.disk.path().join("kubelet/pods").join(self.node.pods[pod].uid());
        path.join("volumes/kubernetes.io~empty-dir").join(VOLUME)
    }

    fn start(&mut self, kubelet: &Value) -> Agent {
        let account = agent::account(&mut self.cluster, "agent", &node_conditions::rules());
        let kubeconfig = self.cluster.kubeconfig(&account.name, &account.token).unwrap();
        let mut options = agent::cluster_options(NODE, &self.node, &kubeconfig, kubelet);
        options.action = "evict";
        options.config = Some(config_without_margin(&self.node).unwrap());
        for (option, path) in [("--nodefs", ""), ("--kubelet-root-dir", "kubelet")] {
            options.more.extend([option.to_owned(), self.disk.path().join(path).display().to_string()]);
        }
        Agent::start_recorded(&options, fixture::interrupt()).unwrap()
    }

    fn write(&self, pod: usize, mib: u64) -> Workload {
        let file = self.volume(pod).join("file").display().to_string();
        let size = (mib * MIB).to_string();
        self.node.run(pod, &["write", "--file", &file, "--size", &size]).unwrap()
    }

    fn is_terminating(&self, name: &str) -> bool {
        let pod = self.cluster.pod("default", name).unwrap().unwrap();
        pod["metadata"]["deletionTimestamp"].is_string()
    }
}

#[test]
fn a_pod_that_fills_nodefs_is_evicted_and_the_node_is_tainted() {
    let Some(mut testbed) = Testbed::new() else { return };
    // This pod uses more than the other one, and no more than its request.
    let modest = testbed.add("modest", "200Mi", None);
    let hog = testbed.add("hog", "1Mi", None);
    let mut writer = testbed.write(modest, 150);
    writer.wait_event("written").unwrap();
    let stat = rustix::fs::statvfs(testbed.disk.path()).unwrap();
    let threshold = (stat.f_bavail * stat.f_frsize - 64 * MIB).to_string();
    let mut agent = testbed.start(&json!({"evictionHard": {"nodefs.available": threshold}}));
    let _hog = testbed.write(hog, 96);
    agent.wait_for_result("default/hog", "accepted").unwrap();
    assert!(testbed.is_terminating("hog") && !testbed.is_terminating("modest"));
    let has_condition_and_taint = |cluster: &Cluster| {
        let node = cluster.admin().get(&format!("/api/v1/nodes/{NODE}"))?.body;
        let of = |list: &Value, key: &str, name: &str| {
            list.as_array()
                .and_then(|list| list.iter().find(|it| it[key] == name).cloned())
                .unwrap_or_default()
        };
        let condition = of(&node["status"]["conditions"], "type", "EvictionAgentDiskPressure");
        let taint = of(&node["spec"]["taints"], "key", "eviction-agent.io/disk-pressure");
        let is_met = condition["status"] == "True" && condition["reason"] == "HardEvictionThresholdMet";
        Ok((is_met && taint["effect"] == "NoSchedule").then_some(()))
    };
    testbed.cluster.until("that the node has the condition and the taint", has_condition_and_taint).unwrap();
    agent.stop().unwrap();
}

#[test]
fn a_pod_over_its_volume_limit_is_evicted_with_the_kubelets_message() {
    let Some(mut testbed) = Testbed::new() else { return };
    let (below, above) = (testbed.add("below", "1Mi", Some("8Mi")), testbed.add("above", "1Mi", Some("8Mi")));
    let mut agent = testbed.start(&json!({"evictionHard": {"nodefs.available": "1Mi"}}));
    let mut writer = testbed.write(below, 7);
    writer.wait_event("written").unwrap();
    let _above = testbed.write(above, 9);
    agent.wait_for_result("default/above", "accepted").unwrap();
    assert!(testbed.is_terminating("above") && !testbed.is_terminating("below"));
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"8Mi\". ";
    let decision = agent.events().unwrap().iter().find(|event| event.is_decision()).unwrap();
    assert_eq!(decision.text("eviction_message"), message);
    agent.stop().unwrap();
}
