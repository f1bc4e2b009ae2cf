//! Changes of the configuration of the shipped agent: by SIGHUP, by its file, and by a restart with other files.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
use tests::process::{signal, wait_until};
use tests::skip;
use tests::workload::Workload;

/// A node with one pod that holds 48 MiB, and the agent's files.
struct Testbed {
    node: Node,
    options: Options,
    _quiet: Workload,
}

impl Testbed {
    fn new(label: &str) -> Option<Self> {
        let mut node = Node::new(label, 384 * MIB, 200).ok()?;
        node.add(PodSpec::new("shop", "quiet", &["main"], 8)).unwrap();
        let quiet = node.run(0, &["hold", "--size", "48M"]).unwrap();
        let config = node.write_agent_config(&json!({"profile": "Enhanced"})).unwrap();
        let options = Options::new(&node, &hard_threshold("64Mi")).unwrap();
        let options = options.with_path("--state-dir", node.file("state"));
        Some(Self { node, options: Options { config: Some(config), ..options }, _quiet: quiet })
    }

    /// Changes the kubelet's file to a threshold above the available memory.
    fn raise_threshold(&self) {
        self.set_threshold("380Mi");
    }

    fn set_threshold(&self, memory: &str) {
        self.node.write_config(&hard_threshold(memory)).unwrap();
    }

    /// Waits until the saved configuration in force has this text.
    fn wait_until_saved(&self, text: &str) {
        let saved = self.node.file("state").join("config.json");
        let is_saved = || fs::read_to_string(&saved).is_ok_and(|saved| saved.contains(text));
        wait_until(&format!("{text} in {}", saved.display()), is_saved).unwrap();
    }

    fn start(&self, more: &[&str]) -> Agent {
        let mut options = self.options.clone();
        options.more.extend(more.iter().map(|&word| word.to_owned()));
        options.start().unwrap()
    }
}

fn hard_threshold(memory: &str) -> Value {
    json!({"evictionHard": {"memory.available": memory}})
}

/// Waits for the event about a change in that state.
fn wait_for_change(agent: &mut Agent, state: &str) -> Event {
    wait_for_nth_change(agent, 1, state)
}

fn wait_for_nth_change(agent: &mut Agent, nth: usize, state: &str) -> Event {
    let is_match = |event: &Event| event.kind() == "config_change" && event.text("state") == state;
    agent.wait_for_nth(nth, &format!("that a change is {state}"), GUARD, is_match).unwrap()
}

fn wait_for_decision(agent: &mut Agent) -> Event {
    let is_match = |event: &Event| event.is_decision() && event.pod() == "shop/quiet";
    agent.wait_for("the decision on shop/quiet", GUARD, is_match).unwrap()
}

fn assert_no_decision(agent: &mut Agent) {
    assert_eq!(agent.count_decisions().unwrap(), 0, "{:?}", agent.events());
}

/// Waits until a change is pending that would evict the pod. Asserts that nothing is decided yet.
fn assert_pending(agent: &mut Agent) -> Event {
    let pending = wait_for_change(agent, "pending");
    let would_evict = json!([{"namespace": "shop", "pod": "quiet"}]);
    assert_eq!(pending.value["would_evict"], would_evict);
    assert_no_decision(agent);
    pending
}

#[test]
fn a_change_that_would_evict_is_pending_until_sigusr1() {
    let Some(testbed) = Testbed::new("change-by-hand") else { skip!("no cgroups can be made here") };
    let mut agent = testbed.start(&[]);
    testbed.raise_threshold();
    signal(agent.pid(), Signal::HUP).unwrap();
    let pending = assert_pending(&mut agent);
    assert!(pending.value["until"].is_string(), "the transition period ends some time: {pending:?}");
    assert!(agent.metric("eviction_agent_config_pending", &[]).unwrap() >= 1.0);
    testbed.wait_until_saved("64Mi");

    // An invalid change is reported, and the one before it stays pending.
    testbed.set_threshold("no quantity");
    signal(agent.pid(), Signal::HUP).unwrap();
    let invalid = wait_for_change(&mut agent, "invalid");
    let error = invalid.value["errors"][0].as_str().unwrap();
    assert!(error.contains("kubelet.yaml") && error.contains("memory.available"), "{error}");
    assert!(agent.metric("eviction_agent_config_reload_errors_total", &[]).unwrap() >= 1.0);
    assert_no_decision(&mut agent);
    signal(agent.pid(), Signal::USR1).unwrap();
    wait_for_change(&mut agent, "applied");
    assert_eq!(wait_for_decision(&mut agent).text("value"), "380Mi");
    testbed.wait_until_saved("380Mi");

    // This change evicts no pod.
    testbed.set_threshold("64Mi");
    signal(agent.pid(), Signal::HUP).unwrap();
    wait_for_nth_change(&mut agent, 2, "applied");
    agent.stop().unwrap();
}

#[test]
fn a_change_at_restart_is_pending_unless_apply_config_now_is_set() {
    let Some(testbed) = Testbed::new("change-restart") else { skip!("no cgroups can be made here") };
    testbed.start(&[]).stop().unwrap();
    testbed.raise_threshold();
    let mut agent = testbed.start(&[]);
    assert_pending(&mut agent);
    agent.stop().unwrap();
    let mut agent = testbed.start(&["--apply-config-now"]);
    wait_for_decision(&mut agent);
    agent.stop().unwrap();
    testbed.wait_until_saved("380Mi");
}

#[test]
fn the_agent_starts_with_a_corrupt_saved_configuration() {
    let Some(testbed) = Testbed::new("change-spoiled") else { skip!("no cgroups can be made here") };
    testbed.start(&[]).stop().unwrap();
    fs::write(testbed.node.file("state").join("config.json"), "{").unwrap();
    testbed.raise_threshold();
    let mut agent = testbed.start(&[]);
    wait_for_decision(&mut agent);
    agent.stop().unwrap();
}

/// Writes a ConfigMap as the kubelet mounts and replaces it: `AtomicWriter`.
fn publish(volume: &Path, version: u32, policy: &Value) {
    let data = format!("..version_{version}");
    fs::create_dir_all(volume.join(&data)).unwrap();
    let text = json!({
        "apiVersion": "eviction-agent.io/v1alpha1", "kind": "AgentConfiguration", "profile": "Enhanced",
        "policy": policy,
    });
    fs::write(volume.join(&data).join("agent.yaml"), text.to_string()).unwrap();
    symlink(&data, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    let link = volume.join("agent.yaml");
    if !link.exists() {
        symlink("..data/agent.yaml", link).unwrap();
    }
}

#[test]
fn a_config_map_update_is_reported_as_pending_invalid_or_applied() {
    let Some(mut testbed) = Testbed::new("change-map") else { skip!("no cgroups can be made here") };
    let volume = testbed.node.file("volume");
    let with_threshold = |value: &str| json!({"signals": [{"signal": "memory.available", "hard": value}]});
    publish(&volume, 1, &json!({}));
    testbed.options.config = Some(volume.join("agent.yaml"));
    let mut agent = testbed.start(&[]);
    publish(&volume, 2, &with_threshold("380Mi"));
    assert_pending(&mut agent);
    publish(&volume, 3, &with_threshold("much"));
    let errors = wait_for_change(&mut agent, "invalid").value["errors"].to_string();
    assert!(errors.contains("volume/agent.yaml: policy.signals[0].hard: "), "{errors}");
    publish(&volume, 4, &with_threshold("32Mi"));
    wait_for_change(&mut agent, "applied");
    assert_no_decision(&mut agent);
    agent.stop().unwrap();
}

/// The agent reads its file first, and does much before it reports that it has started.
#[test]
fn a_change_while_the_agent_starts_is_detected() {
    let Some(mut testbed) = Testbed::new("change-start") else { skip!("no cgroups can be made here") };
    let volume = testbed.node.file("volume");
    publish(&volume, 1, &json!({}));
    testbed.options.config = Some(volume.join("agent.yaml"));
    // The agent reads the kubelet's file after its own, and only when the test writes it.
    let kubelet = testbed.node.file("kubelet.yaml");
    let text = fs::read(&kubelet).unwrap();
    fs::remove_file(&kubelet).unwrap();
    mkfifoat(CWD, &kubelet, Mode::RUSR | Mode::WUSR).unwrap();
    let writer = std::thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(&kubelet).unwrap();
        publish(&volume, 2, &json!({"signals": [{"signal": "memory.available", "hard": "380Mi"}]}));
        fs::remove_file(&kubelet).unwrap();
        fs::write(&kubelet, &text).unwrap();
        pipe.write_all(&text).unwrap();
    });
    let mut agent = testbed.start(&[]);
    writer.join().unwrap();
    assert_pending(&mut agent);
    agent.stop().unwrap();
}
