//! deploy/manifests, as they are: the real API server accepts them, the real controllers and the real scheduler
//! create pods from them, and an agent with the token and the configuration of such a pod evicts.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests::agent::GUARD;
use tests::cluster::{Cluster, FakeKubelet, Manifests, NAME, Options, Patch, manifest};
use tests::node::{MIB, Node};
use tests::workload::Workload;

use crate::agent::{self, NODE};
use crate::{fixture, testbed};

/// Creates a small node of that name with one pod, which the API server has as a running one.
pub(crate) fn node_with_pod(cluster: &Cluster, name: &str, pod: &str) -> Node {
    let mut node = Node::new(name, 320 * MIB, 200).unwrap();
    cluster.run_pod_on(name, &mut node, testbed::pod(pod)).unwrap();
    node
}

/// Starts a process that crosses the threshold of 64 MiB in that node's only pod.
pub(crate) fn hog(node: &Node) -> Workload {
    agent::hog(node, 0, "270M")
}

/// Returns the arguments of the DaemonSet's container: `--name=value` each.
fn arguments(daemonset: &Value) -> BTreeMap<String, String> {
    let all = daemonset["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    assert_eq!(all[0], "run");
    all[1..]
        .iter()
        .map(|argument| {
            let (name, value) = argument.as_str().unwrap().split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

/// Starts the kubelet of that node, with the threshold that a hog crosses.
pub(crate) fn kubelet(cluster: &Cluster, name: &str) -> FakeKubelet {
    let configuration = json!({"evictionHard": {"memory.available": "64Mi"}, "enforceNodeAllocatable": []});
    FakeKubelet::start(cluster, name, &configuration).unwrap()
}

/// Returns the options of the DaemonSet's agent on a small node: its own arguments and its own ConfigMap, with paths
/// of this machine.
pub(crate) fn options(
    manifests: &mut Manifests,
    name: &str,
    node: &Node,
    kubelet: &FakeKubelet,
    kubeconfig: &std::path::Path,
) -> tests::agent::Options {
    let mut unused_arguments = arguments(manifests.of("DaemonSet").unwrap());
    let config = manifests.of("ConfigMap").unwrap()["data"]["agent.yaml"].as_str().unwrap();
    let mut config: Value = serde_yaml_ng::from_str(config).unwrap();
    assert_eq!(config["thresholds"], json!({"source": "Configz"}));
    config["thresholds"]["configz"] = json!({"port": kubelet.port()});
    // As shipped the agent evicts no pod; this agent evicts.
    assert_eq!((&config["action"], &config["dryRun"]), (&json!("Evict"), &json!("Server")));
    config["dryRun"] = json!("None");
    let file = node.file("agent.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut options = agent::options_on(name, node, kubeconfig);
    // The threshold for an agent that does not ask the kubelet: nothing crosses it.
    options.kubelet_config =
        node.write_config(&json!({"evictionHard": {"memory.available": "1Mi"}})).unwrap();
    assert_eq!(unused_arguments.remove("--config").as_deref(), Some("/etc/eviction-agent/agent.yaml"));
    (options.action, options.config) = ("evict", Some(file));
    // The default is a directory of the host, where other agents may run.
    let state = node.file("state");
    std::fs::create_dir_all(&state).unwrap();
    // The fixture sets these arguments by itself; a new argument has to be passed to it.
    for name in ["--output", "--log-format", "--listen-address"] {
        assert!(unused_arguments.remove(name).is_some(), "{name}");
    }
    assert!(unused_arguments.is_empty(), "{unused_arguments:?}");
    options.with_path("--state-dir", state)
}

/// Returns a token of the manifests' service account, as its pod on that node gets one.
pub(crate) fn token(cluster: &mut Cluster, node: &str) -> String {
    let mut pod = manifest::pod(node, node);
    pod["metadata"]["namespace"] = json!(NAME);
    pod["spec"]["serviceAccountName"] = json!(NAME);
    let pod = cluster.until("the account may have pods", |it| Ok(it.make_pod(&pod).ok())).unwrap();
    cluster.token_of_pod(&pod).unwrap()
}

fn pods_of_agent(cluster: &Cluster) -> BTreeMap<String, Value> {
    let path = format!("/api/v1/namespaces/{NAME}/pods");
    let pods = cluster.admin().get(&path).unwrap().ok().unwrap()["items"].as_array().unwrap().clone();
    let on = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
    pods.into_iter().filter_map(|pod| Some((on(&pod)?, pod))).collect()
}

#[test]
fn the_manifests_put_a_pod_on_every_node_and_its_token_evicts() {
    let options = Options { controllers: true, scheduler: true };
    let Some(mut cluster) = fixture::cluster(&options) else { return };
    for name in [NODE, "tainted"] {
        cluster.add_node(name).unwrap();
    }
    let taints = json!({"spec": {"taints": [
        {"key": "eviction-agent.io/memory-pressure", "effect": "NoSchedule"},
        {"key": "example.com/own", "effect": "NoExecute"},
    ]}});
    cluster.admin().patch(Patch::Merge, "/api/v1/nodes/tainted", &taints).unwrap().ok().unwrap();
    let mut manifests = Manifests::read().unwrap();
    manifests.create(&cluster).unwrap();
    let pods = cluster
        .until("each node has its pod", |it| {
            let pods = pods_of_agent(it);
            Ok((pods.len() == 2).then_some(pods))
        })
        .unwrap();
    for pod in pods.values() {
        assert_eq!(pod["status"]["qosClass"], "Guaranteed", "{pod}");
        assert_eq!(pod["spec"]["priority"], 2_000_001_000, "{pod}");
        let security = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        assert!(security["privileged"].is_null() && security["readOnlyRootFilesystem"] == true);
    }

    let token = cluster.token_of_pod(&pods[NODE]).unwrap();
    let (node, kubelet) = (node_with_pod(&cluster, NODE, "hog"), kubelet(&cluster, NODE));
    let kubeconfig = cluster.kubeconfig("deployed", &token).unwrap();
    let mut agent = fixture::start(&self::options(&mut manifests, NODE, &node, &kubelet, &kubeconfig));
    assert_eq!(kubelet.statuses(), [200]);
    agent.wait_for_pods(1).unwrap();
    let _hog = hog(&node);
    let event = agent.wait_for("an eviction", GUARD, |it| it.is_result("accepted")).unwrap();
    assert_eq!(event.pod(), "default/hog");
    let pod = cluster.pod("default", "hog").unwrap().unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    agent.stop().unwrap();
}

#[test]
fn an_agent_cannot_change_other_nodes_or_their_pods() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    for name in [NODE, "other"] {
        cluster.add_node(name).unwrap();
        cluster.make_pod(&manifest::pod(&format!("on-{name}"), name)).unwrap();
    }
    Manifests::read().unwrap().create(&cluster).unwrap();
    let token = token(&mut cluster, NODE);
    let client = cluster.client(&token).unwrap();
    let taint =
        json!({"spec": {"taints": [{"key": "eviction-agent.io/memory-pressure", "effect": "NoSchedule"}]}});
    let condition =
        json!({"status": {"conditions": [{"type": "EvictionAgentMemoryPressure", "status": "True"}]}});
    let disrupted = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    // The server applies rights and the policy a moment later.
    let refused = |answer: &tests::cluster::Answer| {
        answer.status == 403
            && answer.body["message"].to_string().contains("may not change node other or its pods")
    };
    let patch = |kind, path: &str, body: &Value| client.patch(kind, path, body);
    cluster
        .until("the policy is in force", |_| {
            let answer = patch(Patch::Merge, "/api/v1/nodes/other", &taint)?;
            Ok(refused(&answer).then_some(()))
        })
        .unwrap();
    for (path, body) in [
        ("/api/v1/nodes/other/status".to_owned(), &condition),
        (format!("{pods}/on-other/status"), &disrupted),
    ] {
        let answer = patch(Patch::Strategic, &path, body).unwrap();
        assert!(refused(&answer), "{path}: {answer:?}");
    }
    let answer = client.delete(&format!("{pods}/on-other"), &Value::Null).unwrap();
    assert!(refused(&answer), "{answer:?}");

    patch(Patch::Merge, &format!("/api/v1/nodes/{NODE}"), &taint).unwrap().ok().unwrap();
    patch(Patch::Strategic, &format!("/api/v1/nodes/{NODE}/status"), &condition).unwrap().ok().unwrap();
    patch(Patch::Strategic, &format!("{pods}/on-{NODE}/status"), &disrupted).unwrap().ok().unwrap();
    client.delete(&format!("{pods}/on-{NODE}"), &Value::Null).unwrap().ok().unwrap();

    // A token that is bound to no pod changes nothing.
    let unbound = cluster.client(&cluster.token_in(NAME, NAME).unwrap()).unwrap();
    let answer = unbound.patch(Patch::Merge, &format!("/api/v1/nodes/{NODE}"), &taint).unwrap();
    assert_eq!(answer.status, 403, "{answer:?}");
}
