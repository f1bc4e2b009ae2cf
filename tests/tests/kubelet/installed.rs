//! The chart, installed by Helm on a real node: a dry run that evicts no pod, evictions when requested, and nothing
//! left in the cluster afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use serde_json::{Value, json};
use tests::cluster::{Binaries, Cluster, NAME, Options};
use tests::file_system::{FileSystem, Kind};
use tests::helm::{Helm, chart};

use crate::image::{IMAGE, log_lines, printed_events, ready_agent_pod};
use crate::testbed::{self, NODE, Testbed, growing, pod, running_pod, small_config};

/// The memory of the hog in MiB: it leaves less than the agent's threshold, and more than the kubelet's.
const HOG_MIB: u64 = 650;

/// Mounts the runtime's socket in a directory that is a shared mount, as all mounts of a node are; `/` of this
/// machine may be private.
fn shared_socket(testbed: &Testbed) -> anyhow::Result<FileSystem> {
    let directory = FileSystem::new(Kind::Tmpfs, 1 << 20, "eviction-cri")?;
    let socket = directory.path().join(SOCKET);
    mount_change(directory.path(), MountPropagationFlags::SHARED)?;
    std::fs::write(&socket, "")?;
    mount_bind(testbed.node.path().join(SOCKET), &socket)?;
    Ok(directory)
}

const SOCKET: &str = "containerd.sock";

/// Returns the chart values for this machine's network and folders, with a margin that is far from the kubelet's own
/// threshold.
fn values(testbed: &Testbed, runtime: &Path) -> Value {
    let folder = testbed.node.path();
    let port = testbed.cluster.port().to_string();
    let capabilities = ["BPF", "PERFMON", "SYS_RESOURCE", "SYS_NICE", "IPC_LOCK"];
    // A process cannot pass on capabilities that it does not have.
    let own: Vec<_> = capabilities.into_iter().filter(|name| tests::privileges::has(name).unwrap()).collect();
    json!({
        "image": {"pullPolicy": "Never"},
        "hostNetwork": true,
        "extraEnv": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ],
        "capabilities": {"base": own},
        "stateDir": folder.join("state"),
        "kubelet": {"certificateFile": folder.join("certificates/kubelet.crt")},
        "disks": {"criSocketDir": runtime},
        "config": {
            "eviction": {"nodeReclaim": "CRI"},
            "reclaim": {"criSocket": runtime.join(SOCKET)},
            "thresholdMargin": {"value": "300Mi"},
            "thresholds": {"configz": {"address": "127.0.0.1", "port": testbed.node.kubelet_port()}},
        },
    })
}

fn node(cluster: &Cluster) -> Value {
    cluster.admin().get(&format!("/api/v1/nodes/{NODE}")).unwrap().ok().unwrap()
}

/// Returns the agent's conditions and taints.
fn conditions_and_taints(cluster: &Cluster) -> Vec<String> {
    let node = node(cluster);
    let texts = |list: &Value, key: &str| {
        let all = list.as_array().cloned().unwrap_or_default();
        all.iter().map(|it| it[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = [texts(&node["status"]["conditions"], "type"), texts(&node["spec"]["taints"], "key")].concat();
    all.into_iter().filter(|name| name.to_lowercase().replace('-', "").contains("evictionagent")).collect()
}

/// Returns the pods in the namespace of the release.
fn pods(cluster: &Cluster) -> Vec<String> {
    let list = cluster.admin().get(&format!("/api/v1/namespaces/{NAME}/pods")).unwrap().ok().unwrap();
    let pods = list["items"].as_array().unwrap();
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns everything of the release that the API server still has.
fn remaining(cluster: &Cluster) -> Vec<String> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let namespaced = format!("namespaces/{NAME}");
    let paths = [
        format!("{rbac}/clusterroles"),
        format!("{rbac}/clusterrolebindings"),
        format!("{admission}/validatingadmissionpolicies"),
        format!("{admission}/validatingadmissionpolicybindings"),
        format!("/apis/apps/v1/{namespaced}/daemonsets"),
        format!("/apis/batch/v1/{namespaced}/jobs"),
        format!("{rbac}/{namespaced}/roles"),
        format!("{rbac}/{namespaced}/rolebindings"),
        format!("/api/v1/{namespaced}/configmaps"),
        format!("/api/v1/{namespaced}/serviceaccounts"),
    ];
    let mut found = Vec::new();
    for path in paths {
        let list = cluster.admin().get(&path).unwrap().ok().unwrap();
        let names = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned());
        found.extend(names.filter(|name| name.contains(NAME)).map(|name| format!("{path}/{name}")));
    }
    found
}

/// Returns what the agents have logged on standard error.
fn warnings(folder: &Path) -> Vec<String> {
    log_lines(folder, NAME).into_iter().filter(|line| line.contains(" stderr F ")).collect()
}

/// Asserts that the kubectl plugin with the real kubectl reaches the agent, and reports what does not exist.
fn check_plugin(cluster: &Cluster) {
    let kubectl = Binaries::find().unwrap();
    let plugin = chart().join("../../kubectl-plugin");
    let folders = [kubectl.folder(), &plugin, Path::new("/usr/bin"), Path::new("/bin")];
    let path = std::env::join_paths(folders).unwrap();
    let plugin = |arguments: &[&str]| {
        let mut command = Command::new(kubectl.program("kubectl"));
        command.args(["eviction-agent", "--kubeconfig"]).arg(cluster.admin_kubeconfig().unwrap());
        let output = command.args(arguments).env("PATH", &path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, version) = plugin(&["version", NODE]);
    assert!(code == Some(0) && version.contains("BPF ABI"), "{code:?} {version}");
    let (code, screen) = plugin(&["top", NODE, "--once"]);
    assert!(code == Some(0) && screen.contains(NODE) && screen.contains("memory"), "{code:?} {screen}");
    let (code, checked) = plugin(&["--namespace", NAME, "check", NODE, "-o", "json"]);
    assert!(code == Some(0) && checked.contains("/etc/eviction-agent/agent.yaml"), "{code:?} {checked}");
    let checked: Value = serde_json::from_str(&checked).unwrap();
    let cri = checked["sources"].as_array().unwrap().iter().find(|it| it["source"] == "cri").unwrap();
    let (backend, reason) = (cri["backend"].as_str().unwrap(), cri["reason"].as_str().unwrap());
    assert!(backend.starts_with("containerd ") && reason.contains("/run/eviction-agent-cri"), "{cri}");
    let (code, refused) = plugin(&["top", NODE, "--no-such-option"]);
    assert!(code == Some(2) && refused.contains("--no-such-option"), "{code:?} {refused}");
    let (code, refused) = plugin(&["top", "n2"]);
    assert!(code == Some(1) && refused.contains("there is no such node"), "{code:?} {refused}");
    let (code, refused) = plugin(&["-n", "default", "top", NODE]);
    assert!(code == Some(1) && refused.contains("no pod of the agent in default"), "{code:?} {refused}");
}

#[test]
fn an_upgrade_ends_the_dry_run_and_an_uninstall_leaves_nothing() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else {
        tests::skip!("{IMAGE} names no image: `cargo xtask e2e` makes one")
    };
    let Some(helm) = Helm::find() else { return };
    let options = Options { controllers: true, scheduler: true };
    let mut config = small_config();
    // For `kubectl exec` the API server looks for the kubelet at the node's address.
    config["address"] = json!("0.0.0.0");
    let Some(mut testbed) = testbed::node(&options, &config) else { return };
    testbed.node.import_archive(&image).unwrap();
    let runtime = shared_socket(&testbed).unwrap();
    let helm = helm.of_cluster(testbed.cluster.admin_kubeconfig().unwrap());
    let file = testbed.node.path().join("values.json");
    std::fs::write(&file, values(&testbed, runtime.path()).to_string()).unwrap();
    let chart = chart();
    let release = [NAME, chart.to_str().unwrap(), "--namespace", NAME];
    let install = ["install", "--create-namespace", "--values", file.to_str().unwrap()];
    helm.run(&[&install[..], &release].concat()).unwrap();
    let ready = |cluster: &Cluster| Ok(ready_agent_pod(cluster).map(|pod| pod["metadata"]["uid"].clone()));
    let first = testbed.cluster.until("the agent's pod is Ready", ready).unwrap_or_else(|error| {
        let list =
            testbed.cluster.admin().get(&format!("/api/v1/namespaces/{NAME}/pods")).unwrap().ok().unwrap();
        panic!("{error:#}: {:#}; {:#?}", list["items"][0]["status"], warnings(testbed.node.path()))
    });

    // In the dry run the server accepts the eviction, and the pod stays.
    let hog = testbed.image("hog", &growing(1, HOG_MIB));
    testbed.run(&pod("hog", &hog, None, None));
    let folder = testbed.node.path().to_owned();
    let decided = |event: &Value| event["event"] == "eviction_decision" && event["pod"] == "hog";
    testbed
        .cluster
        .until("the dry run names the pod", |_| Ok(printed_events(&folder).iter().any(decided).then_some(())))
        .unwrap();
    crate::fixture::interrupt().sleep(Duration::from_secs(5)).unwrap();
    let hog_pod = running_pod(&testbed.cluster, "hog").expect("the dry run evicts no pod");
    assert!(hog_pod["metadata"]["deletionTimestamp"].is_null(), "{hog_pod}");
    assert_eq!(conditions_and_taints(&testbed.cluster), [""; 0], "a dry run writes nothing to the node");

    let evict = ["upgrade", "--reuse-values", "--set", "config.dryRun=None"];
    helm.run(&[&evict[..], &release].concat()).unwrap();
    testbed.wait_until_removed("hog");
    assert_eq!(testbed.kubelet_eviction_log(), [""; 0]);
    let second = testbed
        .cluster
        .until("the next agent is Ready", |cluster| Ok(ready(cluster)?.filter(|uid| *uid != first)))
        .unwrap();
    assert!(second.is_string());
    testbed
        .cluster
        .until("an agent that acts writes to the node", |cluster| {
            Ok((!conditions_and_taints(cluster).is_empty()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}: {:#?}", warnings(&folder)));

    check_plugin(&testbed.cluster);

    let tested = helm.run(&["test", NAME, "--namespace", NAME, "--timeout=2m"]);
    let log = tested.unwrap_or_else(|error| panic!("{error}"));
    // Three objects of the account, and two pods.
    assert_eq!(log.matches("Phase:          Succeeded").count(), 5, "{log}");

    // With an agent that does not start, `helm test` fails and names the node.
    let arguments = |extra: &str| {
        let set = format!("extraArgs={extra}");
        helm.run(&[&["upgrade", "--reuse-values", "--set-json", &set][..], &release].concat()).unwrap();
    };
    arguments(r#"["--no-such-flag"]"#);
    let no_agent_is_ready = |cluster: &Cluster| Ok(ready_agent_pod(cluster).is_none().then_some(()));
    testbed.cluster.until("the agent's pod is not Ready", no_agent_is_ready).unwrap();
    helm.run(&["test", NAME, "--namespace", NAME, "--timeout=2m"]).unwrap_err();
    let expected = format!("0 of 1 pods are ready; node {NODE}: pod {NAME}-");
    let log_lines = warnings(&folder);
    assert!(log_lines.iter().any(|line| line.contains(&expected)), "{log_lines:#?}");
    arguments("[]");
    testbed.cluster.until("the agent's pod is Ready again", ready).unwrap();

    let state = folder.join("state");
    assert!(state.join("state.json").exists(), "an agent that acts keeps its state");
    helm.run(&["uninstall", NAME, "--namespace", NAME, "--timeout=5m"]).unwrap();
    assert_eq!(conditions_and_taints(&testbed.cluster), [""; 0]);
    assert_eq!(remaining(&testbed.cluster), [""; 0]);
    assert!(!state.exists(), "{:?}", std::fs::read_dir(&state).map(Iterator::collect::<Vec<_>>));
    // The pods of `helm test` stay until the next one.
    let hooks = |cluster: &Cluster| pods(cluster).into_iter().filter(|name| name.contains("cleanup")).count();
    testbed
        .cluster
        .until("the pods of the hook are gone", |cluster| Ok((hooks(cluster) == 0).then_some(())))
        .unwrap();
}
