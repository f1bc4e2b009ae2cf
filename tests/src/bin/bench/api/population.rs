//! A small node with pods in the API server, and an agent on it that requests evictions.

use anyhow::Result;
use serde_json::{Value, json};
use tests::agent::Agent;
use tests::cluster::{Client, Cluster, Manifests, manifest};
use tests::node::{MIB, Node, PodSpec};

use super::eviction_mode::EvictionMode;
use crate::case::Case;
use crate::testbed::Testbed;

/// The node's name in the cluster.
pub(super) const NODE: &str = "n1";
/// The hogs of one node. The agent limits the rate of evictions, and a new agent counts from zero.
pub(super) const HOGS: usize = 8;
const PIDS: u64 = 200;
const ACCOUNT: &str = "bench-agent";

/// The node of the pods that the client beside the agent evicts.
pub(super) const OTHER_NODE: &str = "not-n1";
/// The minimum memory of the floor's node beyond its process.
const SPARE: u64 = 64 * MIB;

/// Returns the token of the agent's service account, once its rights are in effect.
pub(super) fn token(cluster: &mut Cluster) -> Result<String> {
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{ACCOUNT}");
    if cluster.admin().get(&path)?.status == 404 {
        // The rights of the agent, and of the client beside it.
        let rules = Manifests::read()?.of("ClusterRole")?["rules"].clone();
        cluster.account(ACCOUNT, &rules)?;
        for node in [NODE, OTHER_NODE] {
            cluster.add_node(node)?;
        }
    }
    let token = cluster.token(ACCOUNT)?;
    let client = cluster.client(&token)?;
    cluster.until("the rights are known", |_| {
        Ok((client.get("/api/v1/pods?limit=1")?.status == 200).then_some(()))
    })?;
    Ok(token)
}

/// A node, an agent on it, and a client with the same rights.
pub(super) struct PodPopulation<'a> {
    pub(super) testbed: &'a Testbed,
    pub(super) cluster: &'a Cluster,
    pub(super) mode: EvictionMode,
    pub(super) case: Case,
    // Fields are dropped in this order.
    pub(super) agent: Agent,
    pub(super) node: Node,
    /// A node without an agent.
    pub(super) floor_node: Node,
    pub(super) idle_client: Client,
    /// The number of evictions that were requested until now.
    pub(super) decisions: usize,
}

impl<'a> PodPopulation<'a> {
    pub(super) fn new(testbed: &'a Testbed, cluster: &'a mut Cluster, mode: EvictionMode) -> Result<Self> {
        let case = mode.case();
        let token = token(cluster)?;
        let mut node = Node::new("bench-api", case.memory(), PIDS)?;
        for nth in 0..HOGS {
            testbed.interrupt.check()?;
            add_pod(cluster, &mut node, &format!("hog-{nth}"), &["main"])?;
        }
        let mut floor_node = Node::new("bench-floor", case.max_working_set + SPARE, PIDS)?;
        floor_node.add(PodSpec::new("default", "floor", &["main"], 8))?;
        let kubelet = json!({
            "evictionHard": {"memory.available": format!("{}Mi", case.threshold() / MIB)},
            // The pressure must end before the next crossing, so that each crossing changes the node's status.
            "evictionPressureTransitionPeriod": "100ms",
        });
        let mut options = testbed.options(&node, &kubelet)?;
        // The agent must act at the threshold that is measured.
        let config = json!({"eviction": mode.eviction(), "thresholdMargin": {"mode": "Never"}});
        options.config = Some(node.write_agent_config(&config)?);
        options.action = "evict";
        let options = options.in_cluster(cluster.kubeconfig(ACCOUNT, &token)?, NODE);
        let mut agent = Agent::start(&options, &testbed.interrupt)?;
        agent.wait_for_pods(HOGS)?;
        let idle_client = cluster.client(&token)?;
        Ok(Self { testbed, cluster, mode, case, agent, node, floor_node, idle_client, decisions: 0 })
    }

    /// Ends the agent, then removes the remaining pods.
    pub(super) fn end(self) -> Result<()> {
        let Self { agent, node, cluster, .. } = self;
        agent.stop()?;
        for pod in &node.pods {
            remove_pod(cluster, &pod.spec().name)?;
        }
        Ok(())
    }
}

/// Removes the object of a pod, if it exists.
pub(super) fn remove_pod(cluster: &Cluster, name: &str) -> Result<()> {
    match cluster.pod("default", name)? {
        Some(_) => cluster.finish_pod("default", name),
        None => Ok(()),
    }
}

/// Adds a running pod to the API server and its cgroups to the node.
pub(super) fn add_pod(
    cluster: &Cluster,
    node: &mut Node,
    name: &str,
    containers: &'static [&'static str],
) -> Result<()> {
    remove_pod(cluster, name)?;
    let manifest = with_usual_fields(name, containers);
    cluster.place_pod(&manifest, node, PodSpec::new("default", name, containers, 8))?;
    Ok(())
}

/// Returns a pod of usual size, with environment variables, probes, volumes, labels and annotations.
fn with_usual_fields(name: &str, containers: &[&str]) -> Value {
    let mut pod = manifest::pod(name, NODE);
    let variables: Vec<Value> =
        (0..20).map(|nth| json!({"name": format!("SETTING_{nth}"), "value": "x".repeat(40)})).collect();
    let container = |container: &&str| {
        json!({
            "name": container,
            "image": "registry.invalid/team/shop/frontend:v1.2.3",
            "env": variables,
            "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 10},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        })
    };
    pod["spec"]["containers"] = containers.iter().map(container).collect();
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
    pod["metadata"]["labels"]["app.kubernetes.io/part-of"] = json!("shop");
    pod["metadata"]["annotations"] = json!({"checksum/config": "0123456789abcdef".repeat(4)});
    pod
}
