//! A cluster with a node whose pods are cgroups of this machine, and an account for an agent on it.

use std::path::PathBuf;

use serde_json::{Value, json};
use tests::agent::{GUARD, Options, config_without_margin};
use tests::cluster::{self, Account, Cluster};
use tests::node::{MIB, Node, PodSpec};
use tests::or_skip;
use tests::workload::Workload;

use crate::agent::{self, NODE};
use crate::fixture;

/// The memory of most nodes, bytes.
pub(crate) const MEMORY: u64 = 320 * MIB;
const PIDS: u64 = 400;

pub(crate) struct Testbed {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
    /// The account of the agent.
    pub(crate) account: Account,
}

impl Testbed {
    /// Creates a node with these pods, in a cluster that has them.
    pub(crate) fn new(label: &str, pods: impl IntoIterator<Item = PodSpec>) -> Option<Self> {
        let mut testbed = Self::with(label, MEMORY, &cluster::Options::default())?;
        for pod in pods {
            testbed.add(pod);
        }
        Some(testbed)
    }

    /// Creates a node with so much memory and without pods.
    pub(crate) fn with(label: &str, memory: u64, options: &cluster::Options) -> Option<Self> {
        let mut cluster = fixture::cluster(options)?;
        let node = or_skip!(Node::new(label, memory, PIDS), "no cgroups can be made here");
        cluster.add_node(NODE).unwrap();
        let account = agent::account(&mut cluster, "agent", &rules());
        Some(Self { cluster, node, account })
    }

    /// Adds a pod to the cluster and to the node, and returns its index in the node.
    pub(crate) fn add(&mut self, pod: PodSpec) -> usize {
        self.cluster.run_pod_on(NODE, &mut self.node, pod).unwrap()
    }

    /// Returns the agent's kubeconfig, with this port as the API server's.
    pub(crate) fn kubeconfig(&self, port: u16) -> PathBuf {
        self.cluster.kubeconfig_at(&self.account.name, &self.account.token, port).unwrap()
    }

    /// Returns the options of an agent that reads its pods and its node from the API server at this port, and evicts
    /// pods at the kubelet's own thresholds.
    pub(crate) fn options(&self, kubelet: &Value, port: u16) -> Options {
        let config = Some(config_without_margin(&self.node).unwrap());
        let options = Options::new(&self.node, kubelet).unwrap().in_cluster(self.kubeconfig(port), NODE);
        Options { config, action: "evict", ..options }
    }

    pub(crate) fn workload(&self, pod: usize, arguments: &[&str]) -> Workload {
        self.node.workload(pod, arguments).unwrap()
    }

    pub(crate) fn hog(&self, pod: usize, size: &str) -> Workload {
        agent::hog(&self.node, pod, size)
    }

    /// Ends a hog, and waits until its memory is back: before that, other pods would be evicted.
    pub(crate) fn kill_hog(&self, mut hog: Workload) {
        hog.process().child().kill().unwrap();
        hog.process().wait().unwrap();
        let is_back = || Ok((self.node.working_set()? < MEMORY / 2).then_some(()));
        fixture::interrupt().until("that memory is back", GUARD, is_back).unwrap();
    }

    /// Removes the first pod, which has ended, from the cluster and from the node.
    pub(crate) fn remove_first_pod(&mut self, name: &str) {
        self.cluster.finish_pod("default", name).unwrap();
        self.node.pods.remove(0);
        self.node.write_pods().unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> Value {
        self.cluster.pod("default", name).unwrap().unwrap()
    }

    pub(crate) fn is_terminating(&self, name: &str) -> bool {
        is_terminating(&self.cluster, name)
    }
}

/// Returns the specification of a pod that requests little.
pub(crate) fn pod(name: &str) -> PodSpec {
    PodSpec::new("default", name, &["main"], 8)
}

pub(crate) fn is_terminating(cluster: &Cluster, name: &str) -> bool {
    cluster.pod("default", name).unwrap().unwrap()["metadata"]["deletionTimestamp"].is_string()
}

/// Returns all rights that an agent needs for its pods, its node and its events.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["nodes/stats"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ])
}
