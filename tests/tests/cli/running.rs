//! Agents that run: their signals, their lock, a pods file that changes, and fallbacks.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::agent;
use tests::cgroup::{Driver, Qos, Subtree, pod_uid};
use tests::folder::Folder;
use tests::metrics::Metrics;
use tests::process::{self, Process};

use super::{GOOD, GUARD, agent_command, only_error, output, source, write_file};

/// A running agent, killed when dropped.
pub(super) struct RunningAgent {
    process: Process,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl RunningAgent {
    pub(super) fn start(mut command: Command) -> (Self, Value) {
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

    /// Stops the agent with SIGTERM. Returns its exit code, its log, and how long it took.
    pub(super) fn stop(mut self) -> (Option<i32>, String, Duration) {
        let stopped_at = Instant::now();
        process::signal(self.process.pid(), Signal::TERM).unwrap();
        let status = self.process.child().wait().unwrap();
        let took = stopped_at.elapsed();
        (status.code(), self.log(), took)
    }
}

/// Returns a metric of the agent with this `started` event.
fn metric(started: &Value, name: &str) -> f64 {
    let address = started["listen_address"].as_str().unwrap().parse().unwrap();
    Metrics::read(address).unwrap().sum(name, &[])
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
    let list = |name: &str| {
        let metadata = json!({"name": name, "namespace": "ns", "uid": uid});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}});
        json!({"apiVersion": "v1", "kind": "PodList", "items": [pod]}).to_string()
    };
    let pods = write_file(&folder, "pods.json", &list("good"));
    let (mut running, started) = RunningAgent::start(in_subtree(&subtree, &["--pods-file", &pods]));
    assert_eq!(started["pods_known"], 1);
    assert_eq!(running.next_event("pods")["with_cgroup"], 1);
    fs::write(&pods, "{\"items\": 3").unwrap();
    let event = running.next_event("pods");
    let error = event["error"].as_str().unwrap();
    assert!(error.contains("pods.json"), "{error}");
    assert_eq!(event["pods_known"], 1, "the last good one stays");
    assert!(metric(&started, "eviction_agent_pods_file_errors_total") >= 1.0);
    fs::write(&pods, list("other")).unwrap();
    // The file may have been seen half-written in between.
    while running.next_event("pods").get("error").is_some() {}
    assert_eq!(running.stop().0, Some(0));
}

#[test]
fn a_new_cgroup_does_not_cause_continuous_syncs() {
    let subtree = Subtree::new("cli-tree").unwrap();
    let (mut running, started) = RunningAgent::start(in_subtree(&subtree, &[]));
    let uid = pod_uid(7);
    let _pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &uid).unwrap();
    while running.next_event("pods")["unknown_cgroups"][0] != uid.as_str() {}
    // A timer that is always due would run the loop some ten thousand times in this time.
    std::thread::sleep(Duration::from_secs(1));
    let syncs = metric(&started, "eviction_agent_syncs_total");
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
    let (running, started) = RunningAgent::start(command);
    let charge = source(&started, "charge");
    assert_eq!(charge["backend"], "none");
    assert!(charge["reason"].as_str().unwrap().contains("CAP_"), "the missing capability is named: {charge}");
    assert_eq!(running.stop().0, Some(0));
}
