//! A real node whose pods have a small part of the machine, and an agent that acts on it.
//!
//! What pods may have together is bounded by the kubelet's reservations, and thresholds of memory
//! hold for that part as well (`allocatableMemory.available`): so the stories neither depend on what
//! else the machine does, nor endanger it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options, binary};
use tests::cluster::node::{Image, Programs, RealNode};
use tests::cluster::{self, Cluster, Manifests, NAME, manifest};
use tests::meminfo;
use tests::node::MIB;

use crate::fixture;

/// The node's name in the cluster.
pub(crate) const NODE: &str = "n1";
/// What all pods together may have.
pub(crate) const ROOM_MIB: u64 = 1024;
/// What must stay available of it.
pub(crate) const THRESHOLD_MIB: u64 = 200;

/// Cluster and node.
pub(crate) struct World {
    // Ended in this order.
    pub(crate) node: RealNode,
    pub(crate) cluster: Cluster,
    pub(crate) programs: Programs,
}

/// Cluster and node, if this machine can be one, with that configuration of the kubelet.
pub(crate) fn node(options: &cluster::Options, config: &Value) -> Option<World> {
    node_on(options, config, None)
}

/// The same with the kubelet's root directory on a disk of its own.
pub(crate) fn node_on(options: &cluster::Options, config: &Value, disk: Option<&Path>) -> Option<World> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => {
            tests::report_skip(&why);
            return None;
        }
    };
    let mut cluster = fixture::cluster(options)?;
    let node = RealNode::start(&mut cluster, &programs, NODE, config, disk).unwrap();
    Some(World { node, cluster, programs })
}

/// The kubelet's configuration by which pods have [`ROOM_MIB`].
pub(crate) fn small() -> Value {
    json!({
        "systemReserved": {"memory": (meminfo::total().unwrap() - ROOM_MIB * MIB).to_string()},
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": format!("{THRESHOLD_MIB}Mi")},
    })
}

/// A line of shell that waits for `seconds`, then grows to so many MiB and stays there; on SIGTERM it ends.
pub(crate) fn growing(seconds: u64, mib: u64) -> String {
    format!(
        "trap 'exit 0' TERM; sleep {seconds} & wait; \
         (dd if=/dev/zero bs=1M count={mib} 2>/dev/null; exec sleep 3600) | tail -n 1 >/dev/null & wait"
    )
}

/// One that waits as long, takes `mib` at once and then 50 MB/s for as many seconds as it is let.
pub(crate) fn climbing(seconds: u64, mib: u64) -> String {
    growing(seconds, mib)
        .replace("exec sleep 3600", "while :; do dd if=/dev/zero bs=1M count=5 2>/dev/null; sleep 0.1; done")
}

impl World {
    /// One whose pods have little room, or none where this machine cannot tell such stories.
    pub(crate) fn small(options: &cluster::Options) -> Option<Self> {
        node(options, &small())
    }

    /// Makes a shell image with that line known.
    pub(crate) fn image(&self, name: &'static str, line: &str) -> Image {
        let image = Image::shell(name, self.programs.busybox(), line);
        self.node.import(&image).unwrap();
        image
    }

    /// An agent with the rights and the configuration of deploy/manifests, and `eviction` settings of its own.
    pub(crate) fn agent(&self, eviction: &Value) -> Agent {
        let paths =
            [("--kubelet-root-dir", self.node.kubelet_root()), ("--pod-logs-dir", self.node.pod_logs())];
        self.agent_with(json!({"eviction": eviction}), &[], &paths)
    }

    /// One that sees no directories of pods: it asks the kubelet what they use.
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
        let shared = [
            ("--kubeconfig", kubeconfig),
            ("--node-name", NODE.into()),
            ("--imagefs", self.node.path().to_owned()),
        ];
        let options = Options {
            binary: binary().unwrap(),
            kubelet_config: self.node.path().join("kubelet.json"),
            pods: None,
            cgroup_root: "/".to_owned(),
            memory_capacity: meminfo::total().unwrap(),
            pid_capacity: 32768,
            action: "evict",
            config: Some(file),
            more: shared
                .iter()
                .chain(paths)
                .flat_map(|(flag, value)| [(*flag).to_owned(), value.display().to_string()])
                .collect(),
        };
        Agent::start_recorded(&options, fixture::interrupt()).unwrap()
    }

    /// Makes a pod and waits until it runs; hands it back. One that the kubelet does not let run is an error.
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
            panic!("{error:#}; the kubelet has evicted: {:?}", self.kubelets_evictions())
        })
    }

    /// Waits until the node has no pod of that name.
    pub(crate) fn until_gone(&mut self, name: &str) {
        let gone = |it: &Cluster| Ok(it.pod("default", name)?.is_none().then_some(()));
        self.cluster.until(&format!("{name} is gone"), gone).unwrap();
    }

    /// What the kubelet has said of evictions; nothing if it never came to that.
    pub(crate) fn kubelets_evictions(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.node.path().join("kubelet.log")).unwrap();
        let said = ["attempting to reclaim", "must evict pod", "pod is evicted"];
        let is_one = |line: &&str| said.iter().any(|text| line.contains(text));
        log.lines().filter(is_one).map(str::to_owned).collect()
    }
}

/// A pod that runs.
pub(crate) fn running(cluster: &Cluster, name: &str) -> Option<Value> {
    let pod = cluster.pod("default", name).unwrap()?;
    (pod["status"]["phase"] == "Running").then_some(pod)
}

/// A pod of that image; `memory` is what its container asks for, `limit` what it may have.
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

/// Waits until the agent has found the groups of so many pods.
pub(crate) fn knows(agent: &mut Agent, pods: u64) {
    let what = format!("that it knows {pods} pods");
    let fits = |event: &Event| event.kind() == "pods" && event.number("with_cgroup") == Some(pods);
    agent.wait_for(&what, GUARD, fits).unwrap();
}

/// Waits for that outcome of the eviction of that pod.
pub(crate) fn outcome(agent: &mut Agent, pod: &str, outcome: &str) -> Event {
    let full = format!("default/{pod}");
    let is_it = |event: &Event| {
        event.kind() == "eviction_progress" && event.text("result") == outcome && event.pod() == full
    };
    agent.wait_for(&format!("that {pod} is {outcome}"), GUARD, is_it).unwrap()
}

/// The pods that were chosen until now, in order.
pub(crate) fn chosen(agent: &mut Agent) -> Vec<String> {
    let heard = agent.heard().unwrap().iter();
    heard.filter(|event| event.kind() == "eviction_decision").map(|event| event.pod()).collect()
}
