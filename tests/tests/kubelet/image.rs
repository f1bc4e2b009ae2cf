//! The image of `cargo xtask image` in the pod of deploy/manifests, on a real node.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::agent::full_name;
use tests::cluster::{Cluster, Manifests, NAME, Options};
use tests::story::Story;

use crate::testbed::{Testbed, growing, pod};

/// The environment variable with the path of the archive, as in `xtask/src/e2e/mod.rs`.
pub(crate) const IMAGE: &str = "EVICTION_AGENT_IMAGE";

/// Adapts the DaemonSet to this machine's network and folders: a pod has no route to the API server's loopback
/// address, and nothing may be left on the machine.
fn adapt_daemonset(daemonset: &mut Value, testbed: &Testbed) {
    let folder = testbed.node.path();
    let spec = &mut daemonset["spec"]["template"]["spec"];
    spec["hostNetwork"] = json!(true);
    let container = &mut spec["containers"][0];
    let environment = container["env"].as_array_mut().unwrap();
    let port = testbed.cluster.port().to_string();
    for (name, value) in [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", &port)] {
        environment.push(json!({"name": name, "value": value}));
    }
    // A process cannot pass on capabilities that it does not have.
    let capabilities = container["securityContext"]["capabilities"]["add"].as_array_mut().unwrap();
    capabilities.retain(|name| tests::privileges::has(name.as_str().unwrap()).unwrap());
    for volume in spec["volumes"].as_array_mut().unwrap() {
        let path = match volume["name"].as_str().unwrap() {
            name @ "run" => folder.join(name),
            _ => continue,
        };
        volume["hostPath"]["path"] = json!(path);
    }
}

/// Sets the address of this kubelet. Its certificate is self-signed, and mounted as in docs/configuration.md.
fn set_kubelet_address(manifests: &mut Manifests, testbed: &Testbed) {
    let config = &mut manifests.of("ConfigMap").unwrap()["data"]["agent.yaml"];
    let mut parsed: Value = serde_yaml_ng::from_str(config.as_str().unwrap()).unwrap();
    assert_eq!(parsed["thresholds"], json!({"source": "Configz"}));
    assert_eq!(parsed["dryRun"], "Server");
    parsed["dryRun"] = json!("None");
    let authority = "/host/kubelet/kubelet.crt";
    parsed["thresholds"]["configz"] = json!({"address": "127.0.0.1", "port": testbed.node.kubelet_port(), "certificateAuthority": authority});
    *config = json!(parsed.to_string());
    let spec = &mut manifests.of("DaemonSet").unwrap()["spec"]["template"]["spec"];
    let path = testbed.node.path().join("certificates/kubelet.crt");
    spec["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "kubelet-certificate", "hostPath": {"path": path}}));
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(json!({
        "name": "kubelet-certificate", "mountPath": authority, "readOnly": true,
    }));
}

pub(crate) fn ready_agent_pod(cluster: &Cluster) -> Option<Value> {
    let pods = cluster.admin().get(&format!("/api/v1/namespaces/{NAME}/pods")).unwrap().ok().unwrap();
    let pods = pods["items"].as_array().unwrap().clone();
    pods.into_iter().find(|pod| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
    })
}

/// Returns the lines of the runtime's logs of pods with `part` in their path: `<time> <stream> F <line>`.
pub(crate) fn log_lines(folder: &Path, part: &str) -> Vec<String> {
    let mut open = vec![folder.join("pod-logs")];
    let mut lines = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()));
        } else if path.to_string_lossy().contains(part) {
            lines.extend(std::fs::read_to_string(path).unwrap().lines().map(str::to_owned));
        }
    }
    lines
}

/// Returns the events that the agent has printed.
pub(crate) fn printed_events(folder: &Path) -> Vec<Value> {
    let lines = log_lines(folder, &format!("{NAME}_"));
    let printed = lines.iter().filter_map(|line| line.split_once(" stdout F "));
    printed.filter_map(|(_, line)| serde_json::from_str(line).ok()).collect()
}

#[test]
fn the_pod_of_the_manifests_runs_the_image_and_evicts() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else {
        tests::skip!("{IMAGE} names no image: `cargo xtask e2e` makes one")
    };
    let options = Options { controllers: true, scheduler: true };
    let Some(mut testbed) = Testbed::small(&options) else { return };
    testbed.node.import_archive(&image).unwrap();
    let mut manifests = Manifests::read().unwrap();
    adapt_daemonset(manifests.of("DaemonSet").unwrap(), &testbed);
    set_kubelet_address(&mut manifests, &testbed);
    manifests.create(&testbed.cluster).unwrap();
    let agent_pod = testbed.cluster.until("the agent's pod is Ready", |it| Ok(ready_agent_pod(it))).unwrap();
    assert_eq!(agent_pod["spec"]["nodeName"], crate::testbed::NODE);
    let hog = testbed.image("hog", &growing(3, 900));
    testbed.run(&pod("hog", &hog, None, None));
    testbed.wait_until_removed("hog");

    let events = printed_events(testbed.node.path());
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let decisions: Vec<String> = of("eviction_decision").into_iter().map(full_name).collect();
    assert_eq!(decisions, ["default/hog"]);
    assert!(of("eviction_progress").iter().any(|event| event["result"] == "accepted"), "{events:?}");
    assert_eq!(testbed.kubelet_eviction_log(), [""; 0]);
    let mut story = Story::begin();
    let sources = of("started")[0]["sources"].as_array().unwrap();
    let backend = |source: &str| {
        let found = sources.iter().find(|it| it["source"] == source).map(|it| it["backend"].clone());
        found.unwrap_or_default()
    };
    for source in ["charge", "control loop thread"] {
        story.value(source, backend(source));
    }
    // Without any mount of the node.
    assert_eq!([backend("nodefs"), backend("imagefs")], ["statfs"; 2], "{sources:?}");
    let now = ready_agent_pod(&testbed.cluster).unwrap();
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0, "{now}");
}
