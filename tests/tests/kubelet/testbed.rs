//! A real node where pods have a small part of the machine, and an agent that acts on it.
//!
//! The kubelet's reservations limit the memory of all pods together, and memory thresholds apply to that part as well
//! (`allocatableMemory.available`). So the tests neither depend on the other load of the machine nor endanger the
//! machine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::agent::{Agent, Event, Options, binary};
use tests::cluster::node::{Image, Programs, RealNode};
use tests::cluster::{self, Cluster, Manifests, NAME, manifest};
use tests::meminfo;
use tests::node::MIB;

use crate::fixture;

/// The node's name in the cluster.
pub(crate) const NODE: &str = "n1";
/// The memory that all pods together may have, in MiB.
pub(crate) const ROOM_MIB: u64 = 1024;
/// The memory of [`ROOM_MIB`] that must stay available, in MiB.
pub(crate) const THRESHOLD_MIB: u64 = 200;

/// A cluster with a real node.
pub(crate) struct Testbed {
    // Dropped in this order.
    pub(crate) node: RealNode,
    pub(crate) cluster: Cluster,
    pub(crate) programs: Programs,
}

/// Starts a cluster and a node with this kubelet configuration; `None` if this machine cannot run them.
pub(crate) fn node(options: &cluster::Options, config: &Value) -> Option<Testbed> {
    node_on(options, config, &[])
}

/// Does the same with these directories of the node on disks, as [`RealNode::start`] has it.
pub(crate) fn node_on(
    options: &cluster::Options,
    config: &Value,
    disks: &[(&str, &Path)],
) -> Option<Testbed> {
    let programs = tests::or_skip!(Programs::find());
    let mut cluster = fixture::cluster(options)?;
    let node = RealNode::start(&mut cluster, &programs, NODE, config, disks).unwrap();
    Some(Testbed { node, cluster, programs })
}

/// Returns the kubelet configuration that gives pods [`ROOM_MIB`].
pub(crate) fn small_config() -> Value {
    json!({
        "systemReserved": {"memory": (meminfo::total().unwrap() - ROOM_MIB * MIB).to_string()},
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": format!("{THRESHOLD_MIB}Mi")},
    })
}

/// Returns a shell line that waits for `seconds`, then grows to `mib` MiB and stays there; on SIGTERM it ends.
pub(crate) fn growing(seconds: u64, mib: u64) -> String {
    format!(
        "trap 'exit 0' TERM; sleep {seconds} & wait; \
         (dd if=/dev/zero bs=1M count={mib} 2>/dev/null; exec sleep 3600) | tail -n 1 >/dev/null & wait"
    )
}

/// Returns a shell line that waits for `seconds`, takes `mib` MiB at once and then 50 MB/s until it is stopped.
pub(crate) fn growing_slowly(seconds: u64, mib: u64) -> String {
    growing(seconds, mib)
        .replace("exec sleep 3600", "while :; do dd if=/dev/zero bs=1M count=5 2>/dev/null; sleep 0.1; done")
}

impl Testbed {
    /// Starts a node where pods have little memory; `None` if this machine cannot run it.
    pub(crate) fn small(options: &cluster::Options) -> Option<Self> {
        node(options, &small_config())
    }

    /// Makes a shell image that runs `line`, and imports it into the node.
    pub(crate) fn image(&self, name: &'static str, line: &str) -> Image {
        let image = Image::shell(name, self.programs.busybox(), line);
        self.node.import(&image).unwrap();
        image
    }

    /// Starts an agent with the rights of deploy/manifests and these `eviction` settings.
    pub(crate) fn agent(&self, eviction: &Value) -> Agent {
        self.configured_agent(json!({"eviction": eviction}))
    }

    /// Does the same with these settings.
    pub(crate) fn configured_agent(&self, config: Value) -> Agent {
        let paths =
            [("--kubelet-root-dir", self.node.kubelet_root()), ("--pod-logs-dir", self.node.pod_logs())];
        self.agent_with(config, &[], &paths)
    }

    /// Starts an agent without access to the pods' directories: it asks the kubelet for the pods' usage.
    pub(crate) fn agent_by_summary(&self) -> Agent {
        let config = json!({
            "podStorage": {"source": "Summary"},
            "thresholds": {"configz": {
                "port": self.node.kubelet_port(),
                "certificateAuthority": self.node.path().join("certificates/kubelet.crt"),
            }},
        });
        let rule = json!({"apiGroups": [""], "resources": ["nodes/stats"], "verbs": ["get"]});
        self.agent_with(config, &[rule], &[("--nodefs", self.node.kubelet_root())])
    }

    fn agent_with(&self, mut config: Value, more: &[Value], paths: &[(&str, PathBuf)]) -> Agent {
        let mut manifests = Manifests::read().unwrap();
        let mut rules = manifests.of("ClusterRole").unwrap()["rules"].clone();
        rules.as_array_mut().unwrap().extend_from_slice(more);
        let account = self.cluster.account("story-agent", &rules).unwrap();
        let kubeconfig = self.cluster.kubeconfig(NAME, &account.token).unwrap();
        let file = self.node.path().join("agent.yaml");
        config["apiVersion"] = json!("eviction-agent.io/v1alpha1");
        config["kind"] = json!("AgentConfiguration");
        std::fs::write(&file, config.to_string()).unwrap();
        let options = Options {
            binary: binary().unwrap(),
            kubelet_config: self.node.path().join("kubelet.json"),
            pods: None,
            cgroup_root: "/".to_owned(),
            memory_capacity: meminfo::total().unwrap(),
            pid_capacity: 32768,
            action: "evict",
            config: Some(file),
            more: Vec::new(),
        };
        let options =
            options.in_cluster(kubeconfig, NODE).with_path("--imagefs", self.node.containerd_root());
        fixture::start(&paths.iter().fold(options, |options, (flag, path)| options.with_path(flag, path)))
    }

    /// Creates a pod, waits until it runs and returns it. Panics if the kubelet does not let it run.
    pub(crate) fn run(&mut self, pod: &Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.cluster.make_pod(pod).unwrap();
        let runs = |it: &Cluster| {
            let pod =
                it.pod("default", &name)?.with_context(|| format!("{name} is gone before it was seen"))?;
            ensure!(pod["status"]["phase"] != "Failed", "{name} does not run: {}", pod["status"]);
            Ok((pod["status"]["phase"] == "Running").then_some(pod))
        };
        self.cluster.until(&format!("{name} runs"), runs).unwrap_or_else(|error| {
            panic!("{error:#}; the kubelet has evicted: {:?}", self.kubelet_eviction_log())
        })
    }

    /// Waits until the node has no pod of that name.
    pub(crate) fn wait_until_removed(&mut self, name: &str) {
        let is_removed = |it: &Cluster| Ok(it.pod("default", name)?.is_none().then_some(()));
        self.cluster.until(&format!("{name} is gone"), is_removed).unwrap();
    }

    /// Returns the kubelet's log lines about evictions; empty if there were none.
    pub(crate) fn kubelet_eviction_log(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.node.path().join("kubelet.log")).unwrap();
        let phrases = ["attempting to reclaim", "must evict pod", "pod is evicted"];
        let is_eviction = |line: &&str| phrases.iter().any(|text| line.contains(text));
        log.lines().filter(is_eviction).map(str::to_owned).collect()
    }
}

/// Returns the pod if it runs.
pub(crate) fn running_pod(cluster: &Cluster, name: &str) -> Option<Value> {
    let pod = cluster.pod("default", name).unwrap()?;
    (pod["status"]["phase"] == "Running").then_some(pod)
}

/// Returns a pod of that image; `memory` is its container's request, `limit` its limit.
pub(crate) fn pod(name: &str, image: &Image, memory: Option<&str>, limit: Option<&str>) -> Value {
    let mut pod = manifest::pod(name, NODE);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!(image.reference());
    container["imagePullPolicy"] = json!("Never");
    if let Some(memory) = memory {
        container["resources"]["requests"] = json!({"memory": memory});
    }
    if let Some(limit) = limit {
        container["resources"]["limits"] = json!({"memory": limit});
    }
    pod
}

/// Waits for that result of the eviction of that pod.
pub(crate) fn wait_for_result(agent: &mut Agent, pod: &str, result: &str) -> Event {
    agent.wait_for_result(&format!("default/{pod}"), result).unwrap()
}

/// Returns the pods that were selected so far, in order.
pub(crate) fn selected_pods(agent: &mut Agent) -> Vec<String> {
    let heard = agent.events().unwrap().iter();
    heard.filter(|event| event.is_decision()).map(Event::pod).collect()
}
