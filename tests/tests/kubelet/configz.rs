//! The agent reads the configuration that the kubelet runs with.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::agent;
use tests::cluster::node::RealNode;
use tests::cluster::{Cluster, Options};

use crate::testbed::{Testbed, node};

const ACCOUNT: &str = "asks";

/// The configuration of an agent beside that kubelet, printed as JSON.
struct ConfigCommand {
    kubeconfig: String,
    config: String,
    file: String,
}

impl ConfigCommand {
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

    fn error_output(&self, more: &[&str]) -> String {
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
fn the_agent_reads_the_kubelets_running_configuration() {
    let config = json!({
        "evictionHard": {"memory.available": "150Mi", "pid.available": "7%"},
        "evictionSoft": {"memory.available": "200Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "evictionMinimumReclaim": {"memory.available": "10Mi"},
        "evictionMaxPodGracePeriod": 20,
        "evictionPressureTransitionPeriod": "45s",
        "enforceNodeAllocatable": [],
    });
    let Some(testbed) = node(&Options::default(), &config) else { return };
    let Testbed { mut node, mut cluster, programs: _programs } = testbed;
    let rules = json!([{"apiGroups": [""], "resources": ["nodes/configz"], "verbs": ["get"]}]);
    let account = cluster.account(ACCOUNT, &json!([])).unwrap();
    let config_command = ConfigCommand::of(&cluster, &node, &account.token);
    let certificate = node.path().join("certificates/kubelet.crt").display().to_string();
    let with_authority = ["--kubelet-certificate-authority", &*certificate];

    // The kubelet's certificate is self-signed: the API server's authority has not signed it.
    let errors = config_command.error_output(&[]);
    assert!(errors.contains("trust the server at 127.0.0.1:"), "{errors}");
    assert!(errors.contains("help: ") && errors.contains("kubelet.crt"), "{errors}");
    let errors = config_command.error_output(&with_authority);
    assert!(errors.contains("a permission is missing") && errors.contains("nodes/configz"), "{errors}");

    cluster.set_rules(ACCOUNT, &rules).unwrap();
    cluster
        .until("the kubelet hears of the right", |_| {
            Ok(config_command.output(&with_authority).status.success().then_some(()))
        })
        .unwrap();
    let from_kubelet = config_command.resolved(&with_authority);
    let (setting, url) =
        (hard_memory(&from_kubelet), format!("https://127.0.0.1:{}/configz", node.kubelet_port()));
    assert_eq!(
        (&setting["value"], &setting["origin"]["configz"]),
        (&json!("150Mi"), &json!(url)),
        "{setting}"
    );
    assert_eq!(from_kubelet["notes"], json!([]));
    // The kubelet reports what its file leads to.
    let plain_file = std::path::Path::new(&config_command.config).with_file_name("plain.yaml");
    let text = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "thresholdMargin": {"mode": "Never"},
    });
    std::fs::write(&plain_file, text.to_string()).unwrap();
    let plain = ConfigCommand { config: plain_file.display().to_string(), ..config_command };
    let from_file = plain.resolved(&["--kubelet-config", &plain.file]);
    assert_eq!(from_kubelet["thresholds"], from_file["thresholds"]);
    let settings = |resolved: &Value| -> Vec<(Value, Value)> {
        let all = resolved["settings"].as_array().unwrap();
        let kubelets = all.iter().filter(|it| it["path"].as_str().unwrap().starts_with("eviction"));
        kubelets.map(|it| (it["path"].clone(), it["value"].clone())).collect()
    };
    assert_eq!(settings(&from_kubelet), settings(&from_file));
    let config_command = ConfigCommand::of(&cluster, &node, &account.token);
    assert_eq!(
        config_command.resolved(&["--kubelet-insecure-tls"])["thresholds"],
        from_kubelet["thresholds"]
    );

    // A kubelet that does not answer: the agent uses its file, and reports that.
    node.kill_kubelet().unwrap();
    let errors = config_command.error_output(&with_authority);
    assert!(errors.contains("ask the kubelet at 127.0.0.1:"), "{errors}");
    let fallback =
        config_command.resolved(&[&with_authority[..], &["--kubelet-config", &config_command.file]].concat());
    assert_eq!(hard_memory(&fallback)["origin"]["file"], config_command.file.as_str());
    let note = fallback["notes"][0].as_str().unwrap();
    assert!(note.contains("its files count, without its command line"), "{note}");
}
