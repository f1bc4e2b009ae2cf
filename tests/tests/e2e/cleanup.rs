//! `eviction-agent cleanup` removes what the agent has written into nodes, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tests::agent::binary;
use tests::cluster::{Account, Cluster, Options, Patch};
use tests::folder::write_executable;

use crate::{agent, fixture};

const KEY: &str = "eviction-agent.io/memory-pressure";

/// Runs `cleanup`, and returns its exit code, standard output and standard error.
fn clean(kubeconfig: &Path, more: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(binary().unwrap());
    let output = command.args(["cleanup", "--kubeconfig"]).arg(kubeconfig).args(more).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Creates an account that may clean nodes, and waits until the server's authorizer applies its rights to the node n1.
fn account(cluster: &mut Cluster) -> Account {
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]);
    agent::account_that_reads(cluster, "cleaner", &rules, "/api/v1/nodes/n1")
}

/// Returns a kubeconfig whose user has an `exec` plugin, and the path of that plugin.
fn kubeconfig_with_plugin(cluster: &Cluster, account: &Account) -> (PathBuf, PathBuf) {
    let plugin = cluster.path().join("credential-plugin");
    let kubeconfig = cluster.kubeconfig(&account.name, &account.token).unwrap();
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let exec = format!(
        "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: {}\n      interactiveMode: Never\n",
        plugin.display()
    );
    let changed = text.replace(&format!("    token: {}\n", account.token), &exec);
    assert_ne!(changed, text);
    fs::write(&kubeconfig, changed).unwrap();
    (kubeconfig, plugin)
}

fn node(cluster: &Cluster, name: &str) -> Value {
    cluster.admin().get(&format!("/api/v1/nodes/{name}")).unwrap().ok().unwrap()
}

fn condition_types(node: &Value) -> Vec<&str> {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    let mut kinds: Vec<&str> = conditions.iter().map(|it| it["type"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    kinds
}

#[test]
fn cleanup_removes_only_what_the_agent_wrote() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    for name in ["n1", "n2"] {
        cluster.add_node(name).unwrap();
    }
    let account = account(&mut cluster);
    let kubeconfig = cluster.kubeconfig(&account.name, &account.token).unwrap();
    let others = json!([
        {"key": "example.com/theirs", "effect": "NoSchedule"},
        {"key": KEY, "value": "by-hand", "effect": "PreferNoSchedule"},
    ]);
    let own = json!([
        {"key": KEY, "effect": "NoSchedule"},
        {"key": "eviction-agent.io/pid-pressure", "effect": "PreferNoSchedule"},
    ]);
    let all = json!([others[0], own[0], others[1], own[1]]);
    let admin = cluster.admin();
    admin.patch(Patch::Merge, "/api/v1/nodes/n1", &json!({"spec": {"taints": all}})).unwrap().ok().unwrap();
    let status_patch = json!({"status": {"conditions": [
        {"type": "EvictionAgentMemoryPressure", "status": "True"},
        {"type": "EvictionAgentPIDPressure", "status": "True"},
        {"type": "MemoryPressure", "status": "False"},
    ]}});
    admin.patch(Patch::Strategic, "/api/v1/nodes/n1/status", &status_patch).unwrap().ok().unwrap();

    let before = node(&cluster, "n1");
    let (code, reported, _) = clean(&kubeconfig, &["n1", "--dry-run=server"]);
    let lines = [
        "node/n1: taint eviction-agent.io/pid-pressure:PreferNoSchedule removed",
        "node/n1: taint eviction-agent.io/memory-pressure:NoSchedule removed",
        "node/n1: condition EvictionAgentMemoryPressure removed",
        "node/n1: condition EvictionAgentPIDPressure removed",
    ];
    let dry: String = lines.iter().map(|line| format!("{line} (server dry run)\n")).collect();
    assert_eq!((code, reported), (0, dry));
    let (code, reported, _) = clean(&kubeconfig, &["n1", "--dry-run"]);
    let dry: String = lines.iter().map(|line| format!("{line} (dry run)\n")).collect();
    assert_eq!((code, reported), (0, dry));
    assert_eq!(node(&cluster, "n1"), before);

    let (code, reported, _) = clean(&kubeconfig, &["n1", "n2"]);
    let done: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!((code, reported), (0, format!("{done}node/n2: nothing to remove\n")));
    let (code, reported, _) = clean(&kubeconfig, &["--all"]);
    assert_eq!((code, &*reported), (0, "node/n1: nothing to remove\nnode/n2: nothing to remove\n"));
    let after = node(&cluster, "n1");
    assert_eq!(after["spec"]["taints"], others);
    assert_eq!(condition_types(&after), ["MemoryPressure", "Ready"]);
    assert_eq!(clean(&kubeconfig, &["n1"]), (0, "node/n1: nothing to remove\n".into(), String::new()));

    assert_eq!(clean(&kubeconfig, &["--all", "n1"]).0, 2, "all nodes, or some");
    let (code, reported, error) = clean(&kubeconfig, &["n9", "n1"]);
    assert_eq!((code, &*reported), (1, "node/n1: nothing to remove\n"), "one that fails keeps back no other");
    assert_eq!(error, "error: read node n9: there is no such node\n");
    let (code, _, error) = clean(&kubeconfig, &["No_Name"]);
    assert!(code == 1 && error.contains("`No_Name` is no name of a node"), "{code} {error}");
    assert_eq!(clean(&kubeconfig, &[]).0, 2);
    let without_rights = cluster.account("nobody", &json!([])).unwrap();
    let kubeconfig_without_rights = cluster.kubeconfig("nobody", &without_rights.token).unwrap();
    let (code, _, error) = clean(&kubeconfig_without_rights, &["n1"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("error: read node n1: a permission is missing: ") && error.contains("help: "),
        "{error}"
    );
    let (code, _, error) = clean(&kubeconfig_without_rights, &["--all"]);
    assert!(code == 1 && error.contains("error: list nodes: 403: "), "{code} {error}");
    assert!(error.contains("help: it takes list of nodes"), "{error}");
    let (code, _, error) = clean(Path::new("/nowhere/kubeconfig"), &["n1"]);
    assert!(code == 1 && error.contains("read kubeconfig /nowhere/kubeconfig"), "{code} {error}");
}

#[test]
fn cleanup_gets_its_token_from_an_exec_plugin() {
    let Some(mut cluster) = fixture::cluster(&Options::default()) else { return };
    cluster.add_node("n1").unwrap();
    let account = account(&mut cluster);
    let (kubeconfig, plugin) = kubeconfig_with_plugin(&cluster, &account);
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": account.token},
    });
    write_executable(&plugin, &format!("#!/bin/sh\necho '{credential}'\n")).unwrap();
    assert_eq!(clean(&kubeconfig, &["n1"]), (0, "node/n1: nothing to remove\n".into(), String::new()));

    write_executable(&plugin, "#!/bin/sh\necho 'no session' >&2\nexit 3\n").unwrap();
    let expected = format!(
        "error: connect to the API server: credentials of kubeconfig {}, context cluster: {} fails with exit status: 3: \
         no session\n",
        kubeconfig.display(),
        plugin.display()
    );
    assert_eq!(clean(&kubeconfig, &["n1"]), (1, String::new(), expected));
}
