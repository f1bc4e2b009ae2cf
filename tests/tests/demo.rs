//! The demo can report a failure, and leaves nothing behind when it is ended in the middle.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tests::cgroup::Subtree;
use tests::folder::write_executable;
use tests::mounts::{Hierarchy, Mounts};
use tests::process::{self, is_alive, wait_until};
use tests::{agent, skip};

/// A demo that runs, or has run.
struct Demo {
    child: Child,
}

impl Demo {
    fn start(agent: &Path, story: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(["--json", "--agent"])
            .arg(agent)
            .arg(story)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn signal(&self, signal: Signal) {
        process::signal(self.child.id(), signal).unwrap();
    }

    /// Returns the demo's entries in the cgroup hierarchies and among the files in memory.
    fn leftovers(&self) -> Vec<PathBuf> {
        let id = format!("-{}-", self.child.id());
        let mounts = Mounts::discover().unwrap();
        let mut folders: Vec<PathBuf> = mounts.iter().map(|(_, point)| point.to_owned()).collect();
        folders.push("/dev/shm".into());
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        entries
            .filter(|entry| {
                let name = entry.file_name().display().to_string();
                name.starts_with("eviction-") && name.contains("demo") && name.contains(&id)
            })
            .map(|entry| entry.path())
            .collect()
    }

    /// Returns every process in the demo's cgroups.
    fn processes(&self) -> BTreeSet<u32> {
        let mut folders = self.leftovers();
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        found
    }

    /// Returns the agent that the demo has started, once there is one.
    fn agent(&self, file: &Path) -> Option<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let mut children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        let file = file.canonicalize().unwrap();
        children.find(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == file))
    }

    /// Waits until the scenario is in its middle: the agent watches, and a process is about to grow or grows. Returns
    /// the agent and all processes.
    fn wait_until_running(&self, file: &Path) -> (u32, BTreeSet<u32>) {
        let mut running = None;
        wait_until("the middle of the story", || {
            let processes = self.processes();
            // Two bystanders and the process that grows.
            running = self.agent(file).filter(|_| processes.len() >= 3).map(|agent| (agent, processes));
            running.is_some()
        })
        .unwrap();
        running.unwrap()
    }

    fn end(self) -> Output {
        let output = self.child.wait_with_output().unwrap();
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn assert_nothing_is_left(&self, processes: &BTreeSet<u32>) {
        let alive: Vec<&u32> = processes.iter().filter(|pid| is_alive(**pid)).collect();
        assert_eq!((self.leftovers(), alive), (vec![], vec![]));
    }
}

/// Returns the JSON lines that the demo printed.
fn json_lines(output: &Output) -> Vec<Value> {
    String::from_utf8(output.stdout.clone())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns whether cgroups can be made here.
fn cgroups_work() -> bool {
    Subtree::new("demo-probe").and_then(Subtree::remove).is_ok()
}

macro_rules! need_cgroups {
    () => {
        if !cgroups_work() {
            skip!("no cgroups can be made here");
        }
    };
}

#[test]
fn a_killed_agent_fails_the_scenario_and_leaves_nothing_behind() {
    need_cgroups!();
    let file = agent::binary().unwrap();
    let mut demo = Demo::start(&file, "hard");
    let (agent, processes) = demo.wait_until_running(&file);
    process::signal(agent, Signal::KILL).unwrap();
    wait_until("the end of the demo", || demo.child.try_wait().unwrap().is_some()).unwrap();
    demo.assert_nothing_is_left(&processes);
    let output = demo.end();
    assert_eq!(output.status.code(), Some(1));
    let [story, total] = &json_lines(&output)[..] else { panic!("{output:?}") };
    assert_eq!((&story["story"], &story["ok"]), (&"hard".into(), &false.into()));
    assert!(story["why"].as_str().unwrap().contains("signal 9"), "{story}");
    assert_eq!(total["failed"], 1);
}

#[test]
fn ctrl_c_removes_all_processes_and_cgroups_of_the_demo() {
    need_cgroups!();
    let file = agent::binary().unwrap();
    let mut demo = Demo::start(&file, "hard");
    let (agent, mut processes) = demo.wait_until_running(&file);
    processes.insert(agent);
    demo.signal(Signal::INT);
    wait_until("the end of the demo", || demo.child.try_wait().unwrap().is_some()).unwrap();
    demo.assert_nothing_is_left(&processes);
    let output = demo.end();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(json_lines(&output), Vec::<Value>::new());
}

#[test]
fn the_next_demo_removes_what_a_killed_demo_left_behind() {
    need_cgroups!();
    let file = agent::binary().unwrap();
    let mut demo = Demo::start(&file, "hard");
    let (agent, mut processes) = demo.wait_until_running(&file);
    processes.insert(agent);
    demo.signal(Signal::KILL);
    wait_until("the end of the demo", || demo.child.try_wait().unwrap().is_some()).unwrap();
    // Its processes end with it; cgroups and files cannot.
    wait_until("the end of its processes", || !processes.iter().any(|pid| is_alive(*pid))).unwrap();
    assert!(!demo.leftovers().is_empty());

    // This demo fails at once, but only after it has removed what it found.
    let output = Demo::start(Path::new("/bin/false"), "hard").end();
    demo.assert_nothing_is_left(&processes);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(demo.end().status.signal(), Some(9));
}

/// Writes an agent that reacts at the crossing, names the right pod, and kills every process.
fn reckless_agent(folder: &Path) -> PathBuf {
    let mounts = Mounts::discover().unwrap();
    let (memory, usage) = match mounts.get(Hierarchy::Memory) {
        Some(point) => (point, "memory.usage_in_bytes"),
        None => (mounts.get(Hierarchy::Unified).unwrap(), "memory.current"),
    };
    let script = format!(
        r#"#!/bin/sh
while [ "$1" != --cgroup-root ]; do shift; done
root={}$2
now() {{ echo "$(cut -d ' ' -f 1 /proc/uptime | tr -d .)0000000"; }}
echo '{{"event": "started", "sources": [], "listen_address": "127.0.0.1:1"}}'
while [ "$(cat "$root/{usage}")" -lt 690000000 ]; do sleep 0.02; done
at=$(now)
echo '{{"event": "eviction_decision", "namespace": "batch", "pod": "report", "signal": "memory.available", "sampled_mono_ns": '$at', "decided_mono_ns": '$at'}}'
find "$root" -name cgroup.procs -exec cat '{{}}' + | xargs kill -9
echo '{{"event": "eviction_progress", "namespace": "batch", "pod": "report", "result": "terminated"}}'
exec sleep 60
"#,
        memory.display()
    );
    let file = folder.join("reckless-agent");
    write_executable(&file, &script).unwrap();
    file
}

#[test]
fn the_demo_fails_if_the_agent_kills_too_many_processes() {
    need_cgroups!();
    let folder = tempfile::tempdir().unwrap();
    let output = Demo::start(&reckless_agent(folder.path()), "hard").end();
    assert_eq!(output.status.code(), Some(1));
    let [story, total] = &json_lines(&output)[..] else { panic!("{output:?}") };
    assert_eq!(story["ok"], false);
    let why = story["why"].as_str().unwrap();
    for part in ["shop/checkout lives", "kube-system/etcd lives"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!((&total["passed"], &total["failed"]), (&0.into(), &1.into()));
}

#[test]
fn an_unknown_scenario_name_is_an_error() {
    let output = Demo::start(Path::new("/bin/false"), "harder").end();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json_lines(&output), Vec::<Value>::new());
}
