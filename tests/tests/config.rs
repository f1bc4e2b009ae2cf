//! `eviction-agent config`: the settings by which the agent would decide, and the origin of each.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::agent;
use tests::folder::Folder;

const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const AGENT: &str = "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\n";

/// A folder with configuration files.
struct Files(Folder);

impl Files {
    fn new() -> Self {
        let folder = Folder::below(&std::env::temp_dir(), "config").unwrap();
        let text =
            format!("{KUBELET}evictionHard: {{memory.available: 1Gi}}\nevictionMaxPodGracePeriod: 5\n");
        fs::write(folder.path().join("kubelet.yaml"), text).unwrap();
        fs::create_dir(folder.path().join("drop-ins")).unwrap();
        let text = format!("{KUBELET}evictionHard: {{pid.available: \"1000\"}}\n");
        fs::write(folder.path().join("drop-ins/10-pids.conf"), text).unwrap();
        let files = Self(folder);
        files.write("agent.yaml", &format!("{AGENT}thresholdMargin: {{value: 10%}}\n"));
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `config` with these files.
    fn config(&self, more: &[&str]) -> Output {
        let [kubelet, drop_ins, own] = ["kubelet.yaml", "drop-ins", "agent.yaml"].map(|name| self.path(name));
        Command::new(agent::binary().unwrap())
            .args([
                "config",
                "--kubelet-config",
                &kubelet,
                "--kubelet-config-dir",
                &drop_ins,
                "--config",
                &own,
            ])
            .args(["--memory-capacity", "64Gi", "--pid-capacity", "32768"])
            .args(more)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("NODE_NAME")
            .env("NO_COLOR", "1")
            .output()
            .unwrap()
    }

    fn resolved(&self, more: &[&str]) -> Value {
        let output = self.config(&[&["-o", "json"], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn setting<'a>(resolved: &'a Value, path: &str) -> (&'a str, &'a Value) {
    let all = resolved["settings"].as_array().unwrap();
    let found = all.iter().find(|setting| setting["path"] == path).unwrap();
    (found["value"].as_str().unwrap(), &found["origin"])
}

fn threshold_values(resolved: &Value) -> Vec<String> {
    let all = resolved["thresholds"].as_array().unwrap().iter();
    all.map(|it| format!("{} {}", it["signal"].as_str().unwrap(), it["below"].as_str().unwrap())).collect()
}

const STANDALONE_THRESHOLDS: [&str; 3] =
    ["memory.available 1Gi", "pid.available 1k", "allocatableMemory.available 1Gi"];

#[test]
fn every_setting_shows_its_origin() {
    let files = Files::new();
    let resolved = files.resolved(&["--action", "kill", "--listen-address", "[::1]:1"]);
    let [kubelet, drop_in, own] =
        ["kubelet.yaml", "drop-ins/10-pids.conf", "agent.yaml"].map(|name| files.path(name));
    assert_eq!(setting(&resolved, "evictionHard[\"memory.available\"]"), ("1Gi", &json!({"file": kubelet})));
    assert_eq!(setting(&resolved, "evictionHard[\"pid.available\"]"), ("1000", &json!({"dropIn": drop_in})));
    assert_eq!(setting(&resolved, "thresholdMargin.value"), ("10%", &json!({"file": own})));
    assert_eq!(setting(&resolved, "thresholdMargin.minimum"), ("32Mi", &json!("default")));
    assert_eq!(setting(&resolved, "action"), ("Kill", &json!("commandLine")));
    assert_eq!(setting(&resolved, "server.listenAddress"), ("[::1]:1", &json!("commandLine")));
    assert_eq!(threshold_values(&resolved), STANDALONE_THRESHOLDS);
}

#[test]
fn thresholds_have_a_margin_beside_a_kubelet_and_none_standalone() {
    let files = Files::new();
    // A tenth of 1Gi is 102.4Mi.
    let raised = ["memory.available 1127Mi", "pid.available 1100", "allocatableMemory.available 1127Mi"];
    for beside in [
        &["--node-name", "n1"][..],
        &["--action", "evict"],
        &["--action", "evict", "--dry-run=server"],
        &["--action", "evict", "--dry-run"],
    ] {
        assert_eq!(threshold_values(&files.resolved(beside)), raised, "{beside:?}");
    }
    for alone in
        [&["--action", "kill"][..], &["--kubeconfig", "k", "--pods-file", "p", "--action", "kill"], &[]]
    {
        assert_eq!(threshold_values(&files.resolved(alone)), STANDALONE_THRESHOLDS, "{alone:?}");
    }
    files.write("agent.yaml", &format!("{AGENT}thresholdMargin: {{mode: Never}}\n"));
    assert_eq!(
        threshold_values(&files.resolved(&["--node-name", "n1", "--action", "evict"])),
        STANDALONE_THRESHOLDS
    );
    files.write(
        "agent.yaml",
        &format!("{AGENT}thresholdMargin: {{mode: Always, value: 1Mi, minimum: 1Mi}}\n"),
    );
    assert_eq!(threshold_values(&files.resolved(&[]))[0], "memory.available 1025Mi");
}

#[test]
fn text_and_yaml_output_show_the_same_settings() {
    let files = Files::new();
    let table = String::from_utf8(files.config(&["--node-name", "n1"]).stdout).unwrap();
    let line = |start: &str| {
        let line = table.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("--node-name"), ["--node-name", "n1", "command", "line"]);
    assert_eq!(line("evictionMaxPodGracePeriod")[1..], ["5".to_owned(), files.path("kubelet.yaml")]);
    assert_eq!(line("memory.available"), ["memory.available", "1127Mi", "none", "none"]);
    let yaml = String::from_utf8(files.config(&["-o", "yaml"]).stdout).unwrap();
    assert!(yaml.contains("path: thresholdMargin.value") && yaml.contains("profile: Kubelet"), "{yaml}");
}

#[test]
fn all_configuration_errors_are_reported_and_nothing_is_printed() {
    let files = Files::new();
    files.write("agent.yaml", &format!("{AGENT}thresholdMargins: {{}}\nthresholdMargin: {{value: 200%}}\n"));
    let output = files.config(&[]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("agent.yaml: thresholdMargin.value: must be 0% to 100%, got 200%"), "{errors}");
    assert!(
        errors.contains("agent.yaml: thresholdMargins: is not known here (did you mean `thresholdMargin`?)"),
        "{errors}"
    );
    let output = files.config(&["--memory-capacity", "much"]);
    assert_eq!(output.status.code(), Some(2));
}
