//! Agents that run: their signals, their lock, a pods file that changes, and fallbacks.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tests::agent::{self, Agent, Event, GUARD};
use tests::cgroup::{Driver, Qos, Subtree, pod_uid};
use tests::folder::Folder;
use tests::interrupt::Interrupt;
use tests::program;

use super::{GOOD, agent_command, only_error, output, write_file};

/// Starts the agent.
pub(super) fn start(command: Command) -> Agent {
    Agent::start_command(command, &Interrupt::default()).unwrap()
}

/// Returns the command of an agent on a small node.
pub(super) fn in_subtree(subtree: &Subtree, more: &[&str]) -> Command {
    let root = subtree.path();
    let root = root.to_str().unwrap();
    let mut arguments =
        vec!["run", "--output", "json", "--listen-address", "127.0.0.1:0", "--cgroup-root", root];
    arguments.extend(["--memory-capacity", "256Mi", "--pid-capacity", "100"]);
    arguments.extend(more);
    agent_command(&arguments)
}

#[test]
fn sigterm_stops_the_agent_and_leaves_no_program_attached() {
    let subtree = Subtree::new("cli-term").unwrap();
    let agent = start(in_subtree(&subtree, &[]));
    assert_eq!(agent.backend("charge").unwrap(), "tp_btf mod_memcg_state");
    let action = agent.started().unwrap().text("action");
    assert_eq!(action, "none", "nothing is done that was not asked for");
    let programs = program::ids_of(agent.pid()).unwrap();
    assert!(!programs.is_empty());
    agent.stop().unwrap();
    program::wait_until_unloaded(&programs).unwrap();
}

#[test]
fn a_second_acting_agent_is_refused_and_the_first_is_named() {
    let subtree = Subtree::new("cli-lock").unwrap();
    let first = start(in_subtree(&subtree, &["--action", "kill"]));
    let second = output(in_subtree(&subtree, &["--action", "kill"]));
    let error = only_error(&second);
    assert!(error.contains(&format!("pid {}", first.pid())), "{error}");
    // An agent that only watches works beside it.
    start(in_subtree(&subtree, &[])).stop().unwrap();
    first.stop().unwrap();
}

#[test]
fn an_invalid_pods_file_keeps_the_last_valid_pods() {
    let subtree = Subtree::new("cli-pods").unwrap();
    let uid = pod_uid(1);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    let folder = Folder::below(&std::env::temp_dir(), "cli-pods").unwrap();
    let list = |name: &str| {
        let metadata = json!({"name": name, "namespace": "ns", "uid": uid});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}});
        json!({"apiVersion": "v1", "kind": "PodList", "items": [pod]}).to_string()
    };
    let pods = write_file(&folder, "pods.json", &list("good"));
    let mut agent = start(in_subtree(&subtree, &["--pods-file", &pods]));
    assert_eq!(agent.started().unwrap().number("pods_known"), Some(1));
    agent.wait_for_pods(1).unwrap();
    fs::write(&pods, "{\"items\": 3").unwrap();
    let is_error = |event: &Event| event.kind() == "pods" && !event.text("error").is_empty();
    let invalid = agent.wait_for("that the file is invalid", GUARD, is_error).unwrap();
    let error = invalid.text("error");
    assert!(error.contains("pods.json"), "{error}");
    assert_eq!(invalid.number("pods_known"), Some(1), "the last good one stays");
    assert!(agent.metric("eviction_agent_pods_file_errors_total", &[]).unwrap() >= 1.0);
    fs::write(&pods, list("other")).unwrap();
    // The file may have been seen half-written in between.
    let is_good = |event: &Event| {
        event.kind() == "pods" && event.read_ns > invalid.read_ns && event.value.get("error").is_none()
    };
    agent.wait_for("that the file is good again", GUARD, is_good).unwrap();
    agent.stop().unwrap();
}

#[test]
fn a_new_cgroup_does_not_cause_continuous_syncs() {
    let subtree = Subtree::new("cli-tree").unwrap();
    let mut agent = start(in_subtree(&subtree, &[]));
    let uid = pod_uid(7);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    let is_found =
        |event: &Event| event.kind() == "pods" && event.value["unknown_cgroups"][0] == uid.as_str();
    agent.wait_for("the new cgroup", GUARD, is_found).unwrap();
    // A timer that is always due would run the loop some ten thousand times in this time.
    std::thread::sleep(Duration::from_secs(1));
    let syncs = agent.metric("eviction_agent_syncs_total", &[]).unwrap();
    assert!(syncs < 3_000.0, "{syncs} syncs");
    agent.stop().unwrap();
}

#[test]
fn without_btf_the_agent_uses_and_reports_its_fallbacks() {
    let subtree = Subtree::new("cli-btf").unwrap();
    let folder = Folder::below(&std::env::temp_dir(), "cli-btf").unwrap();
    let kubelet = write_file(&folder, "kubelet.yaml", GOOD);
    let inner = in_subtree(&subtree, &["--kubelet-config", &kubelet]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    let mut agent = start(command);
    assert_eq!(agent.backend("charge").unwrap(), "none");
    let reason = agent.backend_reason("charge").unwrap();
    assert!(reason.contains("btf"), "{reason}");
    assert_eq!(agent.backend("timer").unwrap(), "timerfd");
    agent.wait_for_log("no BPF").unwrap();
    agent.stop().unwrap();
}

#[test]
fn without_privilege_the_missing_capability_is_reported() {
    let subtree = Subtree::new("cli-user").unwrap();
    // A directory that an unprivileged user can reach: the build directory may be closed to other users.
    let folder = Folder::below(&std::env::temp_dir(), "cli-user").unwrap();
    let program = folder.path().join("eviction-agent");
    fs::copy(agent::binary().unwrap(), &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let inner = in_subtree(&subtree, &[]);
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    command.arg(&program).args(inner.get_args()).env("NO_COLOR", "1").stdin(Stdio::null());
    let agent = start(command);
    assert_eq!(agent.backend("charge").unwrap(), "none");
    let reason = agent.backend_reason("charge").unwrap();
    assert!(reason.contains("CAP_"), "the missing capability is named: {reason}");
    agent.stop().unwrap();
}
