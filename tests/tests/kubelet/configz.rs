//! The agent asks the kubelet what it runs with.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::agent;
use tests::cluster::node::RealNode;
use tests::cluster::{Cluster, Options};

use crate::world::{World, node};

const ACCOUNT: &str = "asks";

/// The agent's configuration beside that kubelet, in JSON.
struct Asking {
    kubeconfig: String,
    config: String,
    file: String,
}

impl Asking {
    fn of(cluster: &Cluster, node: &RealNode, token: &str) -> Self {
        let kubeconfig = cluster.kubeconfig(ACCOUNT, token).unwrap();
        let config = node.path().join("agent.yaml");
        let text = json!({
            "apiVersion": "eviction-agent.io/v1alpha1",
            "kind": "AgentConfiguration",
            "thresholds": {"source": "Configz", "configz": {"port": node.kubelet_port()}},
            "thresholdMargin": {"mode": "Never"},
        });
        std::fs::write(&config, text.to_string()).unwrap();
        Self {
            kubeconfig: kubeconfig.display().to_string(),
            config: config.display().to_string(),
            file: node.path().join("kubelet.json").display().to_string(),
        }
    }

    fn output(&self, more: &[&str]) -> Output {
        Command::new(agent::binary().unwrap())
            .args(["config", "-o", "json", "--config", &self.config, "--kubeconfig", &self.kubeconfig])
            .args(["--node-name", "n1"])
            .args(more)
            .env_remove("NODE_IP")
            .env("NO_COLOR", "1")
            .output()
            .unwrap()
    }

    fn resolved(&self, more: &[&str]) -> Value {
        let output = self.output(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, more: &[&str]) -> String {
        let output = self.output(more);
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
        String::from_utf8(output.stderr).unwrap()
    }
}

fn hard_memory(resolved: &Value) -> &Value {
    let settings = resolved["settings"].as_array().unwrap();
    settings.iter().find(|it| it["path"] == "evictionHard[\"memory.available\"]").unwrap()
}

#[test]
fn the_kubelet_says_itself_what_it_runs_with() {
    let config = json!({
        "evictionHard": {"memory.available": "150Mi", "pid.available": "7%"},
        "evictionSoft": {"memory.available": "200Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "evictionMinimumReclaim": {"memory.available": "10Mi"},
        "evictionMaxPodGracePeriod": 20,
        "evictionPressureTransitionPeriod": "45s",
        "enforceNodeAllocatable": [],
    });
    let Some(world) = node(&Options::default(), &config) else { return };
    let World { mut node, mut cluster, programs: _programs } = world;
    let rules = json!([{"apiGroups": [""], "resources": ["nodes/configz"], "verbs": ["get"]}]);
    let account = cluster.account(ACCOUNT, &json!([])).unwrap();
    let asking = Asking::of(&cluster, &node, &account.token);
    let own = node.path().join("certificates/kubelet.crt").display().to_string();
    let trusting = ["--kubelet-certificate-authority", &*own];

    // Its certificate is its own work: the API server's authority does not vouch for it.
    let errors = asking.refused(&[]);
    assert!(errors.contains("trust the server at 127.0.0.1:"), "{errors}");
    assert!(errors.contains("help: ") && errors.contains("kubelet.crt"), "{errors}");
    let errors = asking.refused(&trusting);
    assert!(errors.contains("a permission is missing") && errors.contains("nodes/configz"), "{errors}");

    cluster.set_rules(ACCOUNT, &rules).unwrap();
    cluster
        .until("the kubelet hears of the right", |_| {
            Ok(asking.output(&trusting).status.success().then_some(()))
        })
        .unwrap();
    let asked = asking.resolved(&trusting);
    let (line, url) = (hard_memory(&asked), format!("https://127.0.0.1:{}/configz", node.kubelet_port()));
    assert_eq!((&line["value"], &line["origin"]["configz"]), (&json!("150Mi"), &json!(url)), "{line}");
    assert_eq!(asked["notes"], json!([]));
    // What it says is what its file comes to.
    let files = std::path::Path::new(&asking.config).with_file_name("plain.yaml");
    let text = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "thresholdMargin": {"mode": "Never"},
    });
    std::fs::write(&files, text.to_string()).unwrap();
    let plain = Asking { config: files.display().to_string(), ..asking };
    let from_file = plain.resolved(&["--kubelet-config", &plain.file]);
    assert_eq!(asked["thresholds"], from_file["thresholds"]);
    let settings = |resolved: &Value| -> Vec<(Value, Value)> {
        let all = resolved["settings"].as_array().unwrap();
        let kubelets = all.iter().filter(|it| it["path"].as_str().unwrap().starts_with("eviction"));
        kubelets.map(|it| (it["path"].clone(), it["value"].clone())).collect()
    };
    assert_eq!(settings(&asked), settings(&from_file));
    let asking = Asking::of(&cluster, &node, &account.token);
    assert_eq!(asking.resolved(&["--kubelet-insecure-tls"])["thresholds"], asked["thresholds"]);

    // A kubelet that does not answer: its file counts, and that is said.
    node.kill_kubelet().unwrap();
    let errors = asking.refused(&trusting);
    assert!(errors.contains("ask the kubelet at 127.0.0.1:"), "{errors}");
    let instead = asking.resolved(&[&trusting[..], &["--kubelet-config", &asking.file]].concat());
    assert_eq!(hard_memory(&instead)["origin"]["file"], asking.file.as_str());
    let note = instead["notes"][0].as_str().unwrap();
    assert!(note.contains("its files count, without its command line"), "{note}");
}
