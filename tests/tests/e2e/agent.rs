//! An agent with a cluster: this machine has cgroups for the pods of the API server.

use std::path::Path;

use serde_json::{Value, json};
use tests::agent::{Agent, GUARD, Options, full_name};
use tests::cgroup::{Driver, Group, Qos, container_id};
use tests::cluster::{self, Account, Cluster};
use tests::node::{MIB, Node};
use tests::workload::Workload;

use crate::fixture;

/// The node's name in the cluster.
pub(crate) const NODE: &str = "n1";

/// Returns the rights that the agent needs to watch its pods and its node.
pub(crate) fn watching_rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    ])
}

/// Creates a service account with these rights, among them to watch pods, and waits until the server's authorizer
/// applies them.
pub(crate) fn account(cluster: &mut Cluster, name: &str, rules: &Value) -> Account {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}&limit=1");
    account_that_reads(cluster, name, rules, &path)
}

/// Creates a service account with these rights, and waits until it can read that path.
pub(crate) fn account_that_reads(cluster: &mut Cluster, name: &str, rules: &Value, path: &str) -> Account {
    let account = cluster.account(name, rules).unwrap();
    let client = cluster.client(&account.token).unwrap();
    cluster.until("the rights are known", |_| Ok((client.get(path)?.status == 200).then_some(()))).unwrap();
    account
}

/// Starts a cluster with the node, and creates an account that may watch it.
pub(crate) fn watched_cluster() -> Option<(Cluster, Account)> {
    let mut cluster = fixture::cluster(&cluster::Options::default())?;
    cluster.add_node(NODE).unwrap();
    let account = account(&mut cluster, "agent", &watching_rules());
    Some((cluster, account))
}

/// Creates a small node on this machine; its thresholds are far away.
pub(crate) fn small_node(label: &str) -> Node {
    Node::new(label, 256 * MIB, 4096).unwrap()
}

/// Starts a process that holds `size` in that pod's first container and ignores SIGTERM.
pub(crate) fn hog(node: &Node, pod: usize, size: &str) -> Workload {
    node.run(pod, &["--on-term", "ignore", "hold", "--size", size]).unwrap()
}

/// Creates the cgroups of a pod with one container, named by that UID.
pub(crate) fn create_pod_cgroups(node: &Node, uid: &str, serial: u64) -> Group {
    let pod = node.root().group(Driver::Cgroupfs.pod(Qos::BestEffort, uid)).unwrap();
    pod.group(Driver::Cgroupfs.container(&container_id(serial))).unwrap();
    pod
}

/// Returns the options of an agent on the node of that name.
pub(crate) fn options_on(name: &str, node: &Node, kubeconfig: &Path) -> Options {
    let config = json!({"evictionHard": {"memory.available": "1Mi"}});
    Options { action: "none", ..Options::new(node, &config).unwrap() }.in_cluster(kubeconfig, name)
}

/// Starts the agent.
pub(crate) fn start(node: &Node, kubeconfig: &Path) -> Agent {
    fixture::start(&options_on(NODE, node, kubeconfig))
}

/// Waits for an event about the agent's pods that fits.
pub(crate) fn wait_for_pods(agent: &mut Agent, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    agent.wait_for(what, GUARD, |event| event.kind() == "pods" && fits(&event.value)).unwrap().value
}

/// Returns the names in a list of an event; empty where there is no list.
pub(crate) fn names(event: &Value, list: &str) -> Vec<String> {
    let items = event[list].as_array().map_or(&[][..], Vec::as_slice).iter();
    items.map(|item| item.as_str().map_or_else(|| full_name(item), str::to_owned)).collect()
}
