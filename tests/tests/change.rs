//! Changes of the configuration of the shipped agent: by SIGHUP, by its file, and by a restart with other files.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::agent::{Agent, Event, GUARD, Options};
use tests::node::{MIB, Node, PodSpec};
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
        let spec = PodSpec::new("shop", "quiet", &["main"], 8);
        node.add(spec).unwrap();
        let quiet = node.run(0, &["hold", "--size", "48M"]).unwrap();
        let config = node.write_agent_config(&json!({"profile": "Enhanced"})).unwrap();
        let state = node.file("state").display().to_string();
        let mut options = Options::new(&node, &hard_threshold("64Mi")).unwrap();
        options.config = Some(config);
        options.more = vec!["--state-dir".to_owned(), state];
        Some(Self { node, options, _quiet: quiet })
    }

    /// Changes the files to a threshold above the available memory.
    fn raise_threshold(&self) {
        self.node.write_config(&hard_threshold("380Mi")).unwrap();
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

fn send_signal(agent: &Agent, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits for the event about a change in that state.
fn wait_for_change(agent: &mut Agent, state: &str) -> Event {
    let is_match = |event: &Event| event.kind() == "config_change" && event.text("state") == state;
    agent.wait_for(&format!("that the change {state}"), GUARD, is_match).unwrap()
}

fn wait_for_decision(agent: &mut Agent) {
    let is_match = |event: &Event| event.is_decision() && event.pod() == "shop/quiet";
    agent.wait_for("the decision on shop/quiet", GUARD, is_match).unwrap();
}

fn assert_no_decision(agent: &mut Agent) {
    assert_eq!(agent.count_decisions().unwrap(), 0, "{:?}", agent.events());
}

/// Waits until a change is pending that would evict the pod. Asserts that nothing is decided yet.
fn assert_pending(agent: &mut Agent) {
    let would_evict = json!([{"namespace": "shop", "pod": "quiet"}]);
    assert_eq!(wait_for_change(agent, "pending").value["would_evict"], would_evict);
    assert_no_decision(agent);
}

/// Waits until the saved configuration in force has this text.
fn wait_until_saved(testbed: &Testbed, text: &str) {
    let saved = testbed.node.file("state").join("config.json");
    let end = std::time::Instant::now() + GUARD;
    while !fs::read_to_string(&saved).is_ok_and(|saved| saved.contains(text)) {
        assert!(std::time::Instant::now() < end, "{} says {:?}", saved.display(), fs::read_to_string(&saved));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_change_that_would_evict_is_pending_until_sigusr1() {
    let Some(testbed) = Testbed::new("change-by-hand") else { skip!("no cgroups can be made here") };
    let mut agent = testbed.start(&[]);
    testbed.raise_threshold();
    send_signal(&agent, Signal::HUP);
    assert_pending(&mut agent);
    wait_until_saved(&testbed, "64Mi");
    send_signal(&agent, Signal::USR1);
    wait_for_change(&mut agent, "applied");
    wait_for_decision(&mut agent);
    wait_until_saved(&testbed, "380Mi");
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
    wait_until_saved(&testbed, "380Mi");
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
