//! The chart, installed by Helm on a real node: a dry run that evicts no pod, evictions when asked, and nothing left in
//! the cluster afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use serde_json::{Value, json};
use tests::cluster::{Binaries, Cluster, NAME, Options};
use tests::file_system::{FileSystem, Kind};
use tests::helm::{Helm, chart};

use crate::image::{IMAGE, agents_pod, printed};
use crate::world::{self, NODE, World, growing, pod, running, small};

/// What the hog takes: less than the agent leaves to pods, and more than the kubelet asks for.
const HOG_MIB: u64 = 650;

/// The runtime's socket in a directory that is a shared mount, as all of a node are; `/` of this machine may be private.
fn shared_socket(world: &World) -> anyhow::Result<FileSystem> {
    let directory = FileSystem::new(Kind::Tmpfs, 1 << 20, "eviction-cri")?;
    let socket = directory.path().join(SOCKET);
    mount_change(directory.path(), MountPropagationFlags::SHARED)?;
    std::fs::write(&socket, "")?;
    mount_bind(world.node.path().join(SOCKET), &socket)?;
    Ok(directory)
}

const SOCKET: &str = "containerd.sock";

/// What this machine's network and folders ask for; and a margin that is far from the kubelet's own threshold.
fn values(world: &World, runtime: &Path) -> Value {
    let folder = world.node.path();
    let port = world.cluster.port().to_string();
    let capabilities = ["BPF", "PERFMON", "SYS_RESOURCE", "SYS_NICE", "IPC_LOCK"];
    // Nobody can hand on what he has not.
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
            "thresholds": {"configz": {"address": "127.0.0.1", "port": world.node.kubelet_port()}},
        },
    })
}

fn node(cluster: &Cluster) -> Value {
    cluster.admin().get(&format!("/api/v1/nodes/{NODE}")).unwrap().ok().unwrap()
}

/// The agent's conditions and taints.
fn marks(cluster: &Cluster) -> Vec<String> {
    let node = node(cluster);
    let texts = |list: &Value, key: &str| {
        let all = list.as_array().cloned().unwrap_or_default();
        all.iter().map(|it| it[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = [texts(&node["status"]["conditions"], "type"), texts(&node["spec"]["taints"], "key")].concat();
    all.into_iter().filter(|name| name.to_lowercase().replace('-', "").contains("evictionagent")).collect()
}

/// The pods in the namespace of the release.
fn pods(cluster: &Cluster) -> Vec<String> {
    let list = cluster.admin().get(&format!("/api/v1/namespaces/{NAME}/pods")).unwrap().ok().unwrap();
    let pods = list["items"].as_array().unwrap();
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Everything of the release that the API server still has.
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

/// What agents have logged on standard error.
fn warnings(folder: &Path) -> Vec<String> {
    let mut open = vec![folder.join("pod-logs")];
    let mut lines = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()));
        } else if path.to_string_lossy().contains(NAME) {
            let text = std::fs::read_to_string(path).unwrap();
            lines.extend(text.lines().filter(|line| line.contains(" stderr F ")).map(str::to_owned));
        }
    }
    lines
}

/// The kubectl plugin and the real kubectl reach the agent, and say what there is not.
fn ask_by_plugin(cluster: &Cluster) {
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
fn an_install_evicts_no_pod_an_upgrade_does_and_an_uninstall_leaves_nothing() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else {
        tests::report_skip(&format!("{IMAGE} names no image: `cargo xtask e2e` makes one"));
        return;
    };
    let Some(helm) = Helm::find() else { return };
    let options = Options { controllers: true, scheduler: true };
    let mut config = small();
    // For `kubectl exec` the API server looks for the kubelet at the node's address.
    config["address"] = json!("0.0.0.0");
    let Some(mut world) = world::node(&options, &config) else { return };
    world.node.import_archive(&image).unwrap();
    let runtime = shared_socket(&world).unwrap();
    let helm = helm.of_cluster(world.cluster.admin_kubeconfig().unwrap());
    let file = world.node.path().join("values.json");
    std::fs::write(&file, values(&world, runtime.path()).to_string()).unwrap();
    let chart = chart();
    let release = [NAME, chart.to_str().unwrap(), "--namespace", NAME];
    let install = ["install", "--create-namespace", "--values", file.to_str().unwrap()];
    helm.run(&[&install[..], &release].concat()).unwrap();
    let ready = |cluster: &Cluster| Ok(agents_pod(cluster).map(|pod| pod["metadata"]["uid"].clone()));
    let first = world.cluster.until("the agent's pod is Ready", ready).unwrap_or_else(|error| {
        let list =
            world.cluster.admin().get(&format!("/api/v1/namespaces/{NAME}/pods")).unwrap().ok().unwrap();
        panic!("{error:#}: {:#}; {:#?}", list["items"][0]["status"], warnings(world.node.path()))
    });

    // In the dry run the server agrees, and the pod stays.
    let hog = world.image("hog", &growing(1, HOG_MIB));
    world.run(&pod("hog", &hog, None, None));
    let folder = world.node.path().to_owned();
    let decided = |event: &Value| event["event"] == "eviction_decision" && event["pod"] == "hog";
    world
        .cluster
        .until("the dry run names the pod", |_| Ok(printed(&folder).iter().any(decided).then_some(())))
        .unwrap();
    crate::fixture::interrupt().sleep(Duration::from_secs(5)).unwrap();
    let kept = running(&world.cluster, "hog").expect("the dry run evicts no pod");
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    assert_eq!(marks(&world.cluster), [""; 0], "a dry run writes nothing to the node");

    let evict = ["upgrade", "--reuse-values", "--set", "config.dryRun=None"];
    helm.run(&[&evict[..], &release].concat()).unwrap();
    world.until_gone("hog");
    assert_eq!(world.kubelets_evictions(), [""; 0]);
    let second = world
        .cluster
        .until("the next agent is Ready", |cluster| Ok(ready(cluster)?.filter(|uid| *uid != first)))
        .unwrap();
    assert!(second.is_string());
    world
        .cluster
        .until("an agent that acts writes to the node", |cluster| {
            Ok((!marks(cluster).is_empty()).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}: {:#?}", warnings(&folder)));

    ask_by_plugin(&world.cluster);

    let tested = helm.run(&["test", NAME, "--namespace", NAME, "--timeout=2m"]);
    let log = tested.unwrap_or_else(|error| panic!("{error}"));
    // Three objects of the account, and two pods.
    assert_eq!(log.matches("Phase:          Succeeded").count(), 5, "{log}");

    // With an agent that does not start it fails, and names the node.
    let arguments = |extra: &str| {
        let set = format!("extraArgs={extra}");
        helm.run(&[&["upgrade", "--reuse-values", "--set-json", &set][..], &release].concat()).unwrap();
    };
    arguments(r#"["--no-such-flag"]"#);
    let gone = |cluster: &Cluster| Ok(agents_pod(cluster).is_none().then_some(()));
    world.cluster.until("the agent's pod is not Ready", gone).unwrap();
    helm.run(&["test", NAME, "--namespace", NAME, "--timeout=2m"]).unwrap_err();
    let expected = format!("0 of 1 pods are ready; node {NODE}: pod {NAME}-");
    let said = warnings(&folder);
    assert!(said.iter().any(|line| line.contains(&expected)), "{said:#?}");
    arguments("[]");
    world.cluster.until("the agent's pod is Ready again", ready).unwrap();

    let state = folder.join("state");
    assert!(state.join("state.json").exists(), "an agent that acts keeps its state");
    helm.run(&["uninstall", NAME, "--namespace", NAME, "--timeout=5m"]).unwrap();
    assert_eq!(marks(&world.cluster), [""; 0]);
    assert_eq!(remaining(&world.cluster), [""; 0]);
    assert!(!state.exists(), "{:?}", std::fs::read_dir(&state).map(Iterator::collect::<Vec<_>>));
    // Those of `helm test` stay until the next one.
    let hooks = |cluster: &Cluster| pods(cluster).into_iter().filter(|name| name.contains("cleanup")).count();
    world
        .cluster
        .until("the pods of the hook are gone", |cluster| Ok((hooks(cluster) == 0).then_some(())))
        .unwrap();
}
