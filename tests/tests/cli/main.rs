//! The command line as a user calls it: each error is reported in one line, with its place and cause, and the exit
//! code is 2 for wrong usage and 1 for a failure.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod configuration;
mod running;

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::agent;
use tests::folder::Folder;

/// A guard against a program that hangs, not a measure of its speed.
const GUARD: Duration = Duration::from_secs(30);

const GOOD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    evictionHard:\n  memory.available: 64Mi\n";

const AGENT: &str = "apiVersion: eviction-agent.io/v1alpha1\nkind: AgentConfiguration\n";

fn agent_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(agent::binary().unwrap());
    command.args(arguments).env("RUST_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs the agent, which must end by itself.
fn output(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + GUARD;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("the agent did not end by itself: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the lines that begin with `error: `.
fn errors(output: &Output) -> Vec<String> {
    stderr(output).lines().filter_map(|line| line.strip_prefix("error: ")).map(str::to_owned).collect()
}

fn write_file(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the only error of an agent that has failed.
fn only_error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    let mut errors = errors(output);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

#[test]
fn wrong_usage_exits_with_code_2() {
    for arguments in [
        &["run", "--action", "nothing"][..],
        &["run", "--action", "kill", "--dry-run=server"],
        &["run", "--dry-run=both"],
        &["run", "--listen-address", "here"],
        &["run", "--profile", "nobody"],
        &["run", "--pid-capacity", "many"],
        &["run", "--memory-capacity", "lots"],
        &["run", "--memory-capacity", "0"],
        &["run", "--no-such-option"],
        &["evict"],
        &[],
    ] {
        let output = output(agent_command(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert_eq!(output.stdout, b"", "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn old_flags_and_verbs_are_refused_with_their_new_names() {
    for (arguments, new) in [
        (&["run", "--act", "kill"][..], &["--act: use --action none|kill|evict"][..]),
        (&["run", "--act=evict-dry-run"], &["--act: use --action evict --dry-run=server"]),
        (&["run", "--rung", "timerfd"], &["--rung: use --backend NAME"]),
        (&["check", "--deny-rung", "timerfd"], &["--deny-rung: use --disable-backend NAME"]),
        (&["run", "--state", "f"], &["--state: use --state-dir DIR"]),
        (&["run", "--accept"], &["--accept: use --apply-config-now"]),
        (&["config", "--pods", "f"], &["--pods: use --pods-file FILE"]),
        (&["run", "--listen=here"], &["--listen: use --listen-address ADDRESS"]),
        (&["run", "--bpf-log"], &["--bpf-log: use --bpf-debug-log"]),
        (&["replay", "--explain", "f"], &["--explain: use the verb `explain FILE`"]),
        (&["node", "clean", "n1"], &["node clean: use the verb `cleanup NODE...`"]),
        (
            &["run", "--accept", "--bpf-log"],
            &["--accept: use --apply-config-now", "--bpf-log: use --bpf-debug-log"],
        ),
    ] {
        let output = output(agent_command(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        let expected: Vec<String> = new.iter().map(|new| format!("parse arguments: {new}")).collect();
        assert_eq!(errors(&output), expected, "{arguments:?}");
    }
}

#[test]
fn a_server_dry_run_is_refused_with_action_kill() {
    let refused = output(agent_command(&["run", "--action", "kill", "--dry-run=server"]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused)[0].contains("--dry-run=server with --action kill"), "{}", stderr(&refused));
    let folder = Folder::below(&std::env::temp_dir(), "cli-dry-run").unwrap();
    let config = write_file(&folder, "agent.yaml", &format!("{AGENT}action: Kill\n"));
    let refused = output(agent_command(&["config", "--config", &config, "--dry-run=server"]));
    assert_eq!(refused.status.code(), Some(1));
    let error = errors(&refused).remove(0);
    assert!(error.contains("agent.yaml: dryRun: ") && error.contains("Kill"), "{error}");
}

#[test]
fn an_invalid_quantity_is_reported() {
    let output = output(agent_command(&["run", "--memory-capacity", "1K"]));
    assert_eq!(errors(&output), ["--memory-capacity 1K: unable to parse quantity's suffix"]);
}

#[test]
fn a_missing_file_is_reported() {
    for option in ["--kubelet-config", "--kubelet-config-dir", "--config", "--pods-file"] {
        let output =
            output(agent_command(&["run", "--listen-address", "127.0.0.1:0", option, "/no/such/file"]));
        let error = only_error(&output);
        assert!(error.contains("/no/such/file") && error.contains("No such file"), "{error}");
    }
}

#[test]
fn a_missing_cgroup_root_is_reported() {
    let output = output(agent_command(&["run", "--cgroup-root", "/no/such/group"]));
    let error = only_error(&output);
    assert!(error.contains("/no/such/group does not exist"), "{error}");
    assert!(stderr(&output).contains("help: "));
}

#[test]
fn check_reports_what_run_would_use() {
    let output = output(agent_command(&["check", "-o", "json"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings["would_start"], true);
    for name in ["charge", "oom", "task", "reclaim", "cgroup", "timer"] {
        let found = findings["sources"].as_array().unwrap().iter().find(|it| it["source"] == name).unwrap();
        for field in ["reason", "backend"] {
            assert_ne!(found[field].as_str().unwrap(), "", "{name} has a {field}");
        }
    }
    assert!(findings["facts"].as_array().unwrap().iter().any(|fact| fact["subject"] == "memory-controller"));
}

#[test]
fn check_fails_where_run_would_not_start() {
    let output =
        output(agent_command(&["check", "--cgroup-root", "/no/such/group", "--kubelet-config", "/no/file"]));
    assert_eq!(output.status.code(), Some(1));
    let errors = errors(&output).join("\n");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("run would not start: 2 errors; sources: "), "the result is first: {table}");
    assert!(errors.contains("/no/such/group") && errors.contains("/no/file"), "both are said: {errors}");
}

#[test]
fn check_reports_the_same_kubeconfig_error_as_run() {
    let folder = Folder::below(&std::env::temp_dir(), "cli-server").unwrap();
    let pods = write_file(&folder, "pods.json", r#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#);
    let arguments = ["--pods-file", &pods, "--kubeconfig", "/no/kubeconfig"];
    let checked =
        |action: &str| output(agent_command(&[&["check", "--action", action], &arguments[..]].concat()));
    assert_eq!(checked("kill").status.code(), Some(0), "the API server is not used");
    let check = checked("evict");
    assert_eq!(check.status.code(), Some(1));
    let run = output(agent_command(&[&["run", "--action", "evict"], &arguments[..]].concat()));
    assert_eq!(run.status.code(), Some(1));
    let (checked, error) = (errors(&check), errors(&run).remove(0));
    assert!(error.contains("/no/kubeconfig") && checked.contains(&error), "{error}\n{checked:?}");
}

#[test]
fn check_and_config_fit_into_forty_columns() {
    for (verb, columns) in [("check", "40"), ("config", "40"), ("check", "80")] {
        let mut command = agent_command(&[verb]);
        command.env("COLUMNS", columns);
        let output = output(command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= columns.parse().unwrap(), "{verb}: {widest}");
    }
}

#[test]
fn an_invalid_log_filter_is_reported() {
    let mut command = agent_command(&["version"]);
    command.env("RUST_LOG", "eviction_agent=nonsense=1");
    let output = output(command);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).starts_with("warning: RUST_LOG: "), "{}", stderr(&output));
}

#[test]
fn a_recording_is_replayed_and_explained() {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/kubelet");
    let text = |arguments: &[&str]| {
        // The output is more than a pipe holds.
        let output = agent_command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = text(&["replay", scenarios]);
    assert!(table.starts_with("SCENARIO"), "{table}");
    let lines = text(&["replay", "--scenarios", scenarios]);
    assert_eq!(lines, text(&["replay", scenarios, "-o", "jsonl"]), "the old spelling prints JSON lines");
    let verified = text(&["replay", scenarios, "--verify", "--profile", "kubelet"]);
    assert_eq!(verified, text(&["replay", "--scenarios", scenarios, "--check", "--profile", "kubelet"]));
    assert!(verified.ends_with(" 0 failed\n"), "{verified}");
    let memory = text(&["explain", scenarios, "--signal", "memory.available", "-o", "jsonl"]);
    let all = text(&["explain", scenarios, "-o", "json"]);
    assert!(!memory.is_empty() && memory.lines().count() < all.lines().count());
}

#[test]
fn there_are_completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish", "nushell", "powershell"] {
        let output = output(agent_command(&["completion", shell]));
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("bpf-debug-log"), "{shell}");
    }
    let folder = Folder::below(&std::env::temp_dir(), "cli-man").unwrap();
    let written = output(agent_command(&["man", folder.path().to_str().unwrap()]));
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    for page in ["eviction-agent.1", "eviction-agent-run.1", "eviction-agent-explain.1"] {
        assert!(fs::read_to_string(folder.path().join(page)).unwrap().contains(".TH"), "{page}");
    }
}
