//! The command line as a user calls it: each error is reported in one line, with its place and cause, and the exit
//! code tells wrong usage (2) from a failure (1).

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod configuration;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent;
use tests::cgroup::{Driver, Qos, Subtree, pod_uid};
use tests::folder::Folder;
use tests::process::{self, Process};

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

/// Returns a pods file with one pod.
fn pod_list(metadata: &Value) -> String {
    let pod = json!({"metadata": metadata, "spec": {"containers": []}});
    json!({"apiVersion": "v1", "kind": "PodList", "items": [pod]}).to_string()
}

/// A running agent, killed when dropped.
struct RunningAgent {
    process: Process,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl RunningAgent {
    fn start(mut command: Command) -> (Self, Value) {
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
        let lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let mut running = Self { process, lines };
        let started = running.next_event("started");
        (running, started)
    }

    /// Returns the next event of this kind.
    fn next_event(&mut self, kind: &str) -> Value {
        for line in self.lines.by_ref() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
        panic!("the agent ended before it said {kind}: {}", self.log());
    }

    /// Returns its log, once it has ended.
    fn log(&mut self) -> String {
        std::io::read_to_string(self.process.child().stderr.take().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        process::signal(self.process.pid(), signal).unwrap();
    }

    /// Stops the agent with SIGTERM. Returns its exit code, its log, and how long it took.
    fn stop(mut self) -> (Option<i32>, String, Duration) {
        let stopped_at = Instant::now();
        self.signal(Signal::TERM);
        let status = self.process.child().wait().unwrap();
        let took = stopped_at.elapsed();
        (status.code(), self.log(), took)
    }
}

/// Returns what a `started` event or the findings of `check` report about a source.
fn source<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["sources"].as_array().unwrap().iter().find(|it| it["source"] == name).unwrap()
}

/// Returns the only error of an agent that has failed.
fn only_error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    let mut errors = errors(output);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

fn in_subtree(subtree: &Subtree, more: &[&str]) -> Command {
    let root = subtree.path();
    let root = root.to_str().unwrap();
    let mut arguments =
        vec!["run", "--output", "json", "--listen-address", "127.0.0.1:0", "--cgroup-root", root];
    arguments.extend(["--memory-capacity", "256Mi", "--pid-capacity", "100"]);
    arguments.extend(more);
    agent_command(&arguments)
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
        let found = source(&findings, name);
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
    assert!(table.starts_with("run would not start: 2 errors; sources: "), "the verdict is first: {table}");
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

#[test]
fn sigterm_stops_the_agent_and_leaves_no_program_attached() {
    let subtree = Subtree::new("cli-term").unwrap();
    let (running, started) = RunningAgent::start(in_subtree(&subtree, &[]));
    assert_eq!(source(&started, "charge")["backend"], "tp_btf mod_memcg_state");
    assert_eq!(started["action"], "none", "nothing is done that was not asked for");
    let pid = running.process.pid();
    let programs = || fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    assert!(programs() > 0);
    let (code, log, took) = running.stop();
    assert_eq!(code, Some(0), "{log}");
    // Only descriptors hold the programs: they end with the process.
    assert_eq!(programs(), 0);
    assert!(took < GUARD);
}

#[test]
fn a_second_acting_agent_is_refused_and_the_first_is_named() {
    let subtree = Subtree::new("cli-lock").unwrap();
    let (first, _) = RunningAgent::start(in_subtree(&subtree, &["--action", "kill"]));
    let second = output(in_subtree(&subtree, &["--action", "kill"]));
    let error = only_error(&second);
    assert!(error.contains(&format!("pid {}", first.process.pid())), "{error}");
    // An agent that only watches works beside it.
    let (third, _) = RunningAgent::start(in_subtree(&subtree, &[]));
    assert_eq!(third.stop().0, Some(0));
    assert_eq!(first.stop().0, Some(0));
}

#[test]
fn an_invalid_pods_file_keeps_the_last_valid_pods() {
    let subtree = Subtree::new("cli-pods").unwrap();
    let uid = pod_uid(1);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    let folder = Folder::below(&std::env::temp_dir(), "cli-pods").unwrap();
    let list = |name: &str| pod_list(&json!({"name": name, "namespace": "ns", "uid": uid}));
    let pods = write_file(&folder, "pods.json", &list("good"));
    let (mut running, started) = RunningAgent::start(in_subtree(&subtree, &["--pods-file", &pods]));
    assert_eq!(started["pods_known"], 1);
    assert_eq!(running.next_event("pods")["with_cgroup"], 1);
    let listen = started["listen_address"].as_str().unwrap().parse().unwrap();
    fs::write(&pods, "{\"items\": 3").unwrap();
    let event = running.next_event("pods");
    let error = event["error"].as_str().unwrap();
    assert!(error.contains("pods.json"), "{error}");
    assert_eq!(event["pods_known"], 1, "the last good one stays");
    let metrics = tests::metrics::Metrics::read(listen).unwrap();
    assert!(metrics.sum("eviction_agent_pods_file_errors_total", &[]) >= 1.0);
    fs::write(&pods, list("other")).unwrap();
    // The file may have been seen half-written in between.
    while running.next_event("pods").get("error").is_some() {}
    assert_eq!(running.stop().0, Some(0));
}

#[test]
fn a_config_change_that_would_evict_a_pod_is_pending_until_applied() {
    let subtree = Subtree::new("cli-reload").unwrap();
    let uid = pod_uid(1);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    let folder = Folder::below(&std::env::temp_dir(), "cli-reload").unwrap();
    let owner = json!({"kind": "ReplicaSet", "name": "o", "uid": "o", "controller": true});
    let metadata = json!({"name": "only", "namespace": "ns", "uid": uid, "ownerReferences": [owner]});
    let pods = write_file(&folder, "pods.json", &pod_list(&metadata));
    let agent = write_file(&folder, "agent.yaml", &format!("{AGENT}profile: Enhanced\n"));
    let memory = |available: &str| {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             evictionHard:\n  memory.available: {available}\n"
        )
    };
    let kubelet = write_file(&folder, "kubelet.yaml", &memory("64Mi"));
    let options = ["--kubelet-config", &kubelet, "--config", &agent, "--pods-file", &pods];
    let (mut running, started) = RunningAgent::start(in_subtree(&subtree, &options));
    assert_eq!(running.next_event("pods")["with_cgroup"], 1);
    let listen = started["listen_address"].as_str().unwrap().parse().unwrap();
    let metric = |name: &str| tests::metrics::Metrics::read(listen).unwrap().sum(name, &[]);

    // The node has 256Mi, so this threshold is always met.
    fs::write(&kubelet, memory("300Mi")).unwrap();
    running.signal(Signal::HUP);
    let pending = running.next_event("config_change");
    assert_eq!(pending["state"], "pending", "{pending}");
    assert!(pending["until"].is_string(), "the transition period ends some time: {pending}");
    assert_eq!(pending["would_evict"][0], json!({"namespace": "ns", "pod": "only"}), "{pending}");
    assert!(metric("eviction_agent_config_pending") >= 1.0);
    fs::write(&kubelet, memory("no quantity")).unwrap();
    running.signal(Signal::HUP);
    let invalid = running.next_event("config_change");
    assert_eq!(invalid["state"], "invalid", "{invalid}");
    let error = invalid["errors"][0].as_str().unwrap();
    assert!(error.contains("kubelet.yaml") && error.contains("memory.available"), "{error}");
    assert!(metric("eviction_agent_config_reload_errors_total") >= 1.0);
    running.signal(Signal::USR1);
    assert_eq!(running.next_event("config_change")["state"], "applied", "the last good one still waited");
    let decision = running.next_event("eviction_decision");
    assert_eq!((&decision["namespace"], &decision["pod"]), (&"ns".into(), &"only".into()));
    assert_eq!(decision["value"], "300Mi");

    fs::write(&kubelet, memory("64Mi")).unwrap();
    running.signal(Signal::HUP);
    let harmless = loop {
        let reported = running.next_event("config_change");
        if reported["state"] != "pending" {
            break reported;
        }
    };
    assert_eq!(harmless["state"], "applied", "it evicts no pod: {harmless}");
    assert_eq!(running.stop().0, Some(0));
}

#[test]
fn a_new_cgroup_does_not_cause_continuous_syncs() {
    let subtree = Subtree::new("cli-tree").unwrap();
    let (mut running, started) = RunningAgent::start(in_subtree(&subtree, &[]));
    let listen = started["listen_address"].as_str().unwrap().parse().unwrap();
    let uid = pod_uid(7);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    while running.next_event("pods")["unknown_cgroups"][0] != uid.as_str() {}
    // A timer that is always due would run the loop some ten thousand times in this time.
    std::thread::sleep(Duration::from_secs(1));
    let syncs = tests::metrics::Metrics::read(listen).unwrap().sum("eviction_agent_syncs_total", &[]);
    assert!(syncs < 3_000.0, "{syncs} syncs");
    assert_eq!(running.stop().0, Some(0));
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
    let (running, started) = RunningAgent::start(command);
    let charge = source(&started, "charge");
    assert_eq!(charge["backend"], "none");
    assert!(charge["reason"].as_str().unwrap().contains("btf"), "{charge}");
    assert_eq!(source(&started, "timer")["backend"], "timerfd");
    let (code, log, _) = running.stop();
    assert_eq!(code, Some(0));
    assert!(log.contains("no BPF"), "{log}");
}

#[test]
fn without_privilege_the_missing_capability_is_reported() {
    let subtree = Subtree::new("cli-user").unwrap();
    // A folder that the user nobody can reach: a build folder may be closed to other users.
    let folder = Folder::below(&std::env::temp_dir(), "cli-user").unwrap();
    let program: PathBuf = folder.path().join("eviction-agent");
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
    let (running, started) = RunningAgent::start(command);
    let charge = source(&started, "charge");
    assert_eq!(charge["backend"], "none");
    assert!(charge["reason"].as_str().unwrap().contains("CAP_"), "the missing capability is named: {charge}");
    assert_eq!(running.stop().0, Some(0));
}
