//! Code that nobody has needed since the start: when the first pod has to go, none of it may have to come from
//! the disk.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use procfs::process::{MMPermissions, Process};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::interrupt::Interrupt;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::{self, Workload};

/// A guard against an agent that hangs.
const GUARD: Duration = Duration::from_secs(60);

/// The threads that decide and end a pod.
const HANDS: [&str; 3] = ["reaction", "kill-hand", "reaper"];

/// Faults of each thread of the hands that had to wait for a disk.
fn waited(agent: &Agent) -> BTreeMap<String, u64> {
    let process = Process::new(agent.pid().try_into().unwrap()).unwrap();
    let tasks = process.tasks().unwrap().flatten().filter_map(|task| task.stat().ok());
    tasks.filter(|stat| HANDS.contains(&stat.comm.as_str())).map(|stat| (stat.comm, stat.majflt)).collect()
}

/// KiB of code that it says it has fetched for them, and KiB of code that are locked in memory.
fn code(agent: &Agent) -> (u64, u64) {
    let (_, said) = agent.rung("memory lock").unwrap();
    let words: Vec<&str> = said.split(' ').collect();
    let unit = words.iter().position(|word| *word == "KiB").unwrap();
    let maps = Process::new(agent.pid().try_into().unwrap()).unwrap().smaps().unwrap();
    let locked = maps.iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    let locked: u64 = locked.filter_map(|map| map.extension.map.get("Locked")).sum();
    (words[unit - 1].parse().unwrap(), locked >> 10)
}

fn looks(agent: &Agent) -> f64 {
    agent.metrics().unwrap().sum("eviction_agent_looks_total", &[])
}

#[test]
fn the_first_pod_to_go_waits_for_no_disk() {
    let Ok(mut node) = Node::new("pages", 256 * MIB, 200) else { skip!("no cgroups can be made here") };
    let spec = PodSpec::new("shop", "hog", &["main"], 8);
    let pod = node.add(spec).unwrap();
    let binary = agent::binary().unwrap();
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi"}});
    let options = Options::of(&binary, &node, &kubelet).unwrap();
    let interrupt = Interrupt::default();
    let group = &node.pods[pod].containers[0].group;
    let mut hog = Workload::start(&workload::binary().unwrap(), group, ["hold", "--size", "224M"]).unwrap();
    let mut agent = Agent::start(&options, &interrupt).unwrap();
    let first = looks(&agent);
    interrupt
        .until("some looks at leisure", GUARD, || Ok((looks(&agent) > first + 2.0).then_some(())))
        .unwrap();

    // What of its file nobody has mapped is in memory no more; written out first, or it would stay.
    let file = File::open(&binary).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let before = waited(&agent);
    assert_eq!(before.len(), HANDS.len(), "{before:?}");
    let (fetched, locked) = code(&agent);
    assert!(fetched > 100 && locked >= fetched, "{fetched} KiB fetched, {locked} KiB locked");
    hog.go().unwrap();
    let gone = |event: &agent::Event| event.kind() == "eviction" && event.text("outcome") == "gone";
    agent.wait_for("the pod's end", GUARD, gone).unwrap();
    assert_eq!(before, waited(&agent));
    assert!(agent.stop().unwrap().success());
}
