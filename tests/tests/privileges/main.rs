//! The smallest sets of capabilities (docs/reference/capabilities.md), for an ordinary user. With such a set no
//! source is lost; without any one of its capabilities `check` names the missing one and its cost. The agent also
//! decides and acts on real threshold crossings as such a user.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::agent::{self, Agent, Event, GUARD, Options};
use tests::mounts::{Hierarchy, Mounts};
use tests::node::{MIB, Node, PodSpec};
use tests::workload::Workload;
use tests::{privileges, skip};

/// The capabilities that `run` uses if it does not write to control files.
const SMALLEST_SET: [&str; 7] =
    ["BPF", "PERFMON", "SYS_RESOURCE", "SYS_NICE", "IPC_LOCK", "KILL", "DAC_READ_SEARCH"];

const CHECK: [&str; 3] = ["check", "-o", "json"];

/// Returns the capabilities of [`SMALLEST_SET`] that this process can pass on.
fn smallest_set() -> Vec<&'static str> {
    SMALLEST_SET.into_iter().filter(|name| privileges::has(name).unwrap()).collect()
}

fn without(name: &str) -> Vec<&'static str> {
    smallest_set().into_iter().filter(|held| *held != name).collect()
}

/// Returns a script that runs the agent as an ordinary user with these capabilities.
fn agent_script(folder: &Path, names: &[&str]) -> PathBuf {
    privileges::write_script(&folder.join("agent"), &agent::binary().unwrap(), names).unwrap()
}

/// Creates a folder that all users may read.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn output(names: &[&str], arguments: &[&str]) -> Output {
    let folder = folder();
    Command::new(agent_script(folder.path(), names)).args(arguments).output().unwrap()
}

/// The findings of `check` with a set of capabilities.
struct Findings(Value);

impl Findings {
    fn with(names: &[&str]) -> Self {
        Self::of(&output(names, &CHECK))
    }

    /// Runs `check` as root.
    fn of_root() -> Self {
        Self::of(&Command::new(agent::binary().unwrap()).args(CHECK).output().unwrap())
    }

    fn of(output: &Output) -> Self {
        let findings = serde_json::from_slice(&output.stdout);
        Self(findings.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }

    /// Returns backend and reason of each source.
    fn sources(&self) -> BTreeMap<String, (String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let sources = self.0["sources"].as_array().unwrap().iter();
        sources.map(|it| (text(&it["source"]), (text(&it["backend"]), text(&it["reason"])))).collect()
    }

    /// Returns the backend of each source, without the sources that write to control files.
    fn backends(&self) -> BTreeMap<String, String> {
        let backends = self.sources().into_iter().map(|(source, (backend, _))| (source, backend));
        backends.filter(|(source, _)| !["usage", "pressure", "limits"].contains(&source.as_str())).collect()
    }

    /// Returns whether a fact holds, and what was found.
    fn fact(&self, subject: &str) -> (bool, String) {
        let fact = self.0["facts"].as_array().unwrap().iter().find(|it| it["subject"] == subject).unwrap();
        (fact["usable"].as_bool().unwrap(), fact["found"].as_str().unwrap().to_owned())
    }

    fn missing(&self) -> Vec<&'static str> {
        let is_missing = |name: &&str| !self.fact(&subject(name)).0;
        SMALLEST_SET.into_iter().chain(["DAC_OVERRIDE"]).filter(is_missing).collect()
    }
}

fn subject(name: &str) -> String {
    format!("cap-{}", name.to_lowercase().replace('_', "-"))
}

/// Returns whether the kernel withholds perf events from ordinary users, by a level that Debian's and Ubuntu's
/// kernels have. A kprobe is a perf event.
fn perf_events_are_withheld() -> bool {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    level.trim().parse::<i32>().unwrap() > 2
}

macro_rules! need_root {
    () => {
        if !privileges::has("SETUID").unwrap() || !privileges::has("SETPCAP").unwrap() {
            skip!("this user cannot become another one with chosen capabilities");
        }
    };
}

// Behind the macro that they use.
mod denied;
mod testbed;

use testbed::Testbed;

#[test]
fn the_smallest_capability_set_keeps_all_sources() {
    need_root!();
    let all = Findings::of_root();
    let few = Findings::with(&smallest_set());
    let (mut found, mut wanted) = (few.backends(), all.backends());
    if perf_events_are_withheld() {
        for (source, _) in all.backends().iter().filter(|(_, backend)| backend.starts_with("kprobe")) {
            let why = &few.sources()[source].1;
            assert!(why.contains("CAP_SYS_ADMIN is missing"), "{source}: {why}");
            found.remove(source);
            wanted.remove(source);
        }
        if privileges::has("SYS_ADMIN").unwrap() {
            let more = Findings::with(&[&smallest_set()[..], &["SYS_ADMIN"]].concat());
            assert_eq!(more.backends(), all.backends(), "{:?}", more.sources());
        }
    }
    assert_eq!(found, wanted, "{:?}", few.sources());
    assert_eq!(few.0["would_start"], true);
    let lacking: Vec<_> = SMALLEST_SET
        .into_iter()
        .filter(|name| !smallest_set().contains(name))
        .chain(["DAC_OVERRIDE"])
        .collect();
    assert_eq!(few.missing(), lacking);
}

#[test]
fn check_names_each_missing_capability_and_its_cost() {
    need_root!();
    let all = Findings::with(&smallest_set());
    // The sources that a missing capability costs; empty if `check` cannot see the cost.
    let bpf: &[&str] = &["charge", "oom", "task", "cgroup"];
    // With the right to raise the limit of locked memory, as the agent does for its maps, the agent needs no other
    // right to lock its memory.
    let lock: &[&str] = if smallest_set().contains(&"SYS_RESOURCE") { &[] } else { &["memory lock"] };
    let costs: [(&str, &[&str]); 7] = [
        ("BPF", bpf),
        ("PERFMON", bpf),
        ("SYS_RESOURCE", &["oom protection"]),
        ("SYS_NICE", &["control loop thread"]),
        ("IPC_LOCK", lock),
        ("KILL", &[]),
        ("DAC_READ_SEARCH", &[]),
    ];
    for (name, lost) in costs.into_iter().filter(|(name, _)| smallest_set().contains(name)) {
        let found = Findings::with(&without(name));
        let (held, why) = found.fact(&subject(name));
        assert!(!held && why.contains(&format!("CAP_{name} is missing")), "{name}: {why}");
        let (mut missing, mut before) = (found.missing(), all.missing());
        missing.sort_unstable();
        before.push(name);
        before.sort_unstable();
        assert_eq!(missing, before, "without {name} nothing else is named");
        let sources = found.sources();
        // A lockdown may have withheld the source from all users.
        for source in lost.iter().filter(|source| all.backends()[**source] != "none") {
            let (backend, why) = &sources[*source];
            assert_ne!(Some(backend), all.backends().get(*source), "{source} without {name}");
            assert!(why.contains(&format!("CAP_{name}")), "{source} without {name}: {why}");
        }
        assert_eq!(found.0["would_start"], true, "without {name} there are fallbacks");
    }
}

#[test]
fn the_agent_would_start_with_fallbacks_without_any_capability() {
    need_root!();
    let found = Findings::with(&[]);
    let (held, why) = found.fact("bpf-syscall");
    assert!(
        !held && why.contains("CAP_BPF is missing") && why.contains("unprivileged_bpf_disabled"),
        "{why}"
    );
    assert_eq!(found.backends()["timer"], "timerfd");
    assert_eq!(found.0["would_start"], true);
}

#[test]
fn no_source_is_lost_without_securityfs() {
    need_root!();
    if !privileges::has("SYS_ADMIN").unwrap() {
        skip!("this process may not mount");
    }
    // As in a pod. On a locked-down kernel the agent then probes what the kernel withholds.
    let script = "mount --make-rprivate / 2>/dev/null; umount /sys/kernel/security 2>/dev/null; \
        test ! -e /sys/kernel/security/lockdown && exec \"$0\" check -o json";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(agent::binary().unwrap())
        .output()
        .unwrap();
    let found = Findings::of(&output);
    let all = Findings::of_root();
    let backends = |findings: &Findings| -> Vec<_> {
        findings.sources().into_iter().map(|(source, (backend, _))| (source, backend)).collect()
    };
    assert_eq!(backends(&found), backends(&all), "{:?}", found.sources());
}

#[test]
fn control_files_need_dac_override() {
    need_root!();
    if !privileges::has("DAC_OVERRIDE").unwrap() {
        skip!("this process has no DAC_OVERRIDE to pass on");
    }
    let mounts = Mounts::discover().unwrap();
    let Some(memory) = mounts.get(Hierarchy::Memory) else {
        // Cgroup v2 has no such thresholds, whatever the capabilities are.
        assert!(
            !Findings::with(&[&smallest_set()[..], &["DAC_OVERRIDE"]].concat()).fact("usage-threshold").0
        );
        return;
    };
    // Kernel 5.10 lets all users write there, later kernels only root.
    let control = std::fs::metadata(memory.join("cgroup.event_control")).unwrap();
    let is_world_writable = control.permissions().mode() & 0o002 != 0;
    assert_eq!(Findings::with(&smallest_set()).fact("usage-threshold").0, is_world_writable);
    let more = Findings::with(&["DAC_OVERRIDE"]);
    assert!(more.fact("usage-threshold").0, "{:?}", more.fact("usage-threshold"));
}

#[test]
fn a_root_only_configuration_needs_dac_read_search() {
    need_root!();
    let folder = folder();
    let file = folder.path().join("kubelet.yaml");
    let text = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"});
    std::fs::write(&file, text.to_string()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let check = |names: &[&str]| {
        let arguments = ["check", "-o", "json", "--kubelet-config", file.to_str().unwrap()];
        Findings(serde_json::from_slice(&output(names, &arguments).stdout).unwrap()).0
    };
    let denied = check(&without("DAC_READ_SEARCH"));
    assert_eq!(denied["would_start"], false);
    assert!(denied["problems"].to_string().contains("Permission denied"), "{denied}");
    assert_eq!(check(&smallest_set())["would_start"], true);
}

/// Asserts that the agent decides and acts on a real crossing as an ordinary user with these capabilities. Returns
/// the backend for charges.
fn assert_decides_and_kills(label: &str, names: &[&str]) -> String {
    let mut testbed = Testbed::new(label);
    let mut agent = testbed.agent(names);
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    assert!(status.contains("Uid:\t65534\t65534\t65534\t65534\n"), "{status}");
    let backend = agent.backend("charge").unwrap();
    assert_reported_protection_is_real(&agent, &status);
    testbed.go();
    testbed.assert_decided(&mut agent, label);
    agent.wait_for_result(&testbed.node.pods[0].full_name(), "terminated").unwrap();
    testbed.assert_hog_ended(label);
    agent.stop().unwrap();
    backend
}

/// Returns the scheduling policy of each thread (`policy` in proc_pid_stat(5)).
fn policies(pid: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(Result::unwrap);
    // A thread may have ended meanwhile.
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // Counted from the state, the third field, which follows the name.
    stats.map(|stat| stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().parse().unwrap()).collect()
}

/// Asserts that the protection of the agent in the `started` event is what the kernel reports.
fn assert_reported_protection_is_real(agent: &Agent, status: &str) {
    const SCHED_FIFO: i32 = 1;
    let backend = |source| agent.backend(source).unwrap();
    let real_time = policies(agent.pid()).iter().filter(|policy| **policy == SCHED_FIFO).count();
    assert_eq!(real_time > 0, backend("control loop thread") == "SCHED_FIFO", "{real_time} threads");
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid())).unwrap();
    assert_eq!(score.trim() == "-999", backend("oom protection") == "oom_score_adj -999", "{score}");
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap().trim().to_owned();
    assert_eq!(locked != "0 kB", backend("memory lock") == "mlockall on fault", "{locked}");
}

#[test]
fn the_agent_decides_and_kills_with_the_smallest_capability_set() {
    need_root!();
    let backend = assert_decides_and_kills("privileges", &smallest_set());
    assert_eq!(backend, Findings::with(&smallest_set()).backends()["charge"]);
}

#[test]
fn the_fallbacks_decide_and_kill_where_bpf_is_refused() {
    need_root!();
    let backend = assert_decides_and_kills("no-privileges", &["KILL", "DAC_READ_SEARCH"]);
    assert_eq!(backend, "none");
}
