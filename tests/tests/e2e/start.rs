//! Errors in the connection or in the node's name are reported at the start: exit code 1, and no agent that runs
//! partly.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::agent::binary;
use tests::cluster::Patch;
use tests::cluster::proxy::Proxy;
use tests::node::Node;

use crate::agent::{self, NODE};

fn run_agent(verb: &str, node: &Node, more: &[&str]) -> Output {
    let mut command = Command::new(binary().unwrap());
    command.arg(verb).args(["--cgroup-root", &node.cgroup_root()]).args(more).env_remove("NODE_NAME");
    if verb == "run" {
        command.args(["--listen-address", "127.0.0.1:0"]);
    }
    command.output().unwrap()
}

/// Asserts that `run` fails with this exit code and these texts on standard error.
fn assert_run_fails(node: &Node, more: &[&str], code: i32, expected: &[&str]) {
    let output = run_agent("run", node, more);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{more:?}: {stderr}");
    for text in expected {
        assert!(stderr.contains(text), "{more:?}: `{text}` is not in: {stderr}");
    }
    assert!(output.stdout.is_empty(), "{more:?}: {}", String::from_utf8_lossy(&output.stdout));
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn connection_errors_are_reported_at_the_start() {
    let Some((cluster, account)) = agent::watched_cluster() else { return };
    let node = agent::small_node("e2e-start");
    let good = cluster.kubeconfig("agent", &account.token).unwrap();
    let config = fs::read_to_string(&good).unwrap();
    let written = |name: &str, content: &str| {
        let path = cluster.path().join(name);
        fs::write(&path, content).unwrap();
        text(&path)
    };
    let arguments = |kubeconfig: &str| ["--kubeconfig", kubeconfig, "--node-name", NODE].map(str::to_owned);
    let fails = |kubeconfig: &str, expected: &[&str]| {
        let more = arguments(kubeconfig);
        assert_run_fails(&node, &more.each_ref().map(String::as_str), 1, expected);
    };
    let good = text(&good);

    fails(
        "/nowhere/kubeconfig",
        &["error: find the API server: read kubeconfig /nowhere/kubeconfig: No such file"],
    );
    fails(
        &written("no-context", &config.replace("current-context: cluster", "")),
        &["current-context: is missing"],
    );
    let token = format!("token: {}", account.token);
    let no_token = written("no-token", &config.replace(&token, "tokenFile: absent"));
    fails(&no_token, &["connect to the API server: read token ", "/absent: No such file"]);
    let authority = text(&cluster.authority());
    let no_ca = written("no-ca", &config.replace(&authority, "/nowhere/ca.crt"));
    fails(&no_ca, &["read certificate authority /nowhere/ca.crt: No such file"]);
    let key = written("not-a-ca", "no certificate\n");
    let empty_ca = written("empty-ca", &config.replace(&authority, &key));
    fails(&empty_ca, &["no PEM certificate is in it"]);
    // A server with a certificate of another authority.
    let proxy = Proxy::start(&cluster).unwrap();
    proxy.use_untrusted_certificate().unwrap();
    let untrusted = text(&cluster.kubeconfig_at("agent", &account.token, proxy.port()).unwrap());
    fails(&untrusted, &["trust the server at 127.0.0.1:", "invalid peer certificate"]);
    let wrong_token = written("wrong-token", &config.replace(&token, "token: nonsense"));
    fails(&wrong_token, &["it rejects the credentials"]);

    let without_rights = cluster.account("nobody", &json!([])).unwrap();
    let kubeconfig_without_rights = text(&cluster.kubeconfig("nobody", &without_rights.token).unwrap());
    fails(&kubeconfig_without_rights, &["a permission is missing", "nodes \"n1\" is forbidden", "help: "]);

    for (name, expected) in [("n9", "there is no such node"), ("No_Name", "`No_Name` is no name of a node")] {
        assert_run_fails(&node, &["--kubeconfig", &good, "--node-name", name], 1, &[expected]);
    }
    assert_run_fails(&node, &["--kubeconfig", &good], 2, &["neither --node-name nor NODE_NAME is given"]);
    assert_run_fails(
        &node,
        &["--node-name", NODE],
        1,
        &["no kubeconfig is given, and KUBERNETES_SERVICE_HOST is not set"],
    );

    // The node of that name was booted elsewhere.
    let status = json!({"status": {"nodeInfo": {"bootID": "0c9f9a3e-0000-4000-8000-000000000000"}}});
    let path = format!("/api/v1/nodes/{NODE}/status");
    cluster.admin().patch(Patch::Strategic, &path, &status).unwrap().ok().unwrap();
    fails(&good, &["n1 is another machine, booted as 0c9f9a3e"]);
    let own = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let status = json!({"status": {"nodeInfo": {"bootID": own.trim()}}});
    cluster.admin().patch(Patch::Strategic, &path, &status).unwrap().ok().unwrap();

    // `check` reports the same, and what would be used.
    let found = run_agent("check", &node, &["--kubeconfig", &good, "--node-name", NODE, "-o", "json"]);
    let findings: Value = serde_json::from_slice(&found.stdout).unwrap();
    let sources = findings["sources"].as_array().unwrap();
    assert!(sources.iter().any(|it| it["source"] == "pods" && it["backend"] == "watch"), "{findings}");
    assert!(found.status.success(), "{findings}");
    let found = run_agent(
        "check",
        &node,
        &["--kubeconfig", &kubeconfig_without_rights, "--node-name", NODE, "-o", "json"],
    );
    let findings: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found.status.code(), Some(1), "{findings}");
    let problems = findings["problems"].as_array().unwrap();
    assert!(problems.iter().any(|it| it.as_str().unwrap().contains("a permission is missing")), "{findings}");
}
