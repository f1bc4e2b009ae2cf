//! Code that nobody has needed since the start: when the first pod has to go, none of it may have to come from
//! the disk.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, MemoryPageFlags, PageInfo, Process};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::folder;
use tests::interrupt::Interrupt;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;
use tests::workload::{self, Workload};

/// A guard against an agent that hangs.
const GUARD: Duration = Duration::from_secs(60);

/// The threads that decide and end a pod.
const HANDS: [&str; 3] = ["control-loop", "killer", "mrelease"];

/// Faults of each thread of the hands that had to wait for a disk.
fn waited(agent: &Agent) -> BTreeMap<String, u64> {
    let process = Process::new(agent.pid().try_into().unwrap()).unwrap();
    let tasks = process.tasks().unwrap().flatten().filter_map(|task| task.stat().ok());
    tasks.filter(|stat| HANDS.contains(&stat.comm.as_str())).map(|stat| (stat.comm, stat.majflt)).collect()
}

/// How many pages of the agent's code are in memory, and how many there are.
fn code(agent: &Agent, binary: &Path) -> (usize, usize) {
    let process = Process::new(agent.pid().try_into().unwrap()).unwrap();
    let is_code = |map: &MemoryMap| {
        map.perms.contains(MMPermissions::EXECUTE) && map.pathname == MMapPath::Path(binary.to_owned())
    };
    let mut pagemap = process.pagemap().unwrap();
    let mut pages = Vec::new();
    for map in process.maps().unwrap().iter().filter(|map| is_code(map)) {
        let page = |address: u64| usize::try_from(address / procfs::page_size()).unwrap();
        pages.extend(pagemap.get_range_info(page(map.address.0)..page(map.address.1)).unwrap());
    }
    let is_there = |page: &&PageInfo| matches!(page, PageInfo::MemoryPage(flags) if flags.contains(MemoryPageFlags::PRESENT));
    (pages.iter().filter(is_there).count(), pages.len())
}

fn looks(agent: &Agent) -> f64 {
    agent.metrics().unwrap().sum("eviction_agent_syncs_total", &[])
}

#[test]
fn the_first_pod_to_go_waits_for_no_disk() {
    let Ok(mut node) = Node::new("pages", 256 * MIB, 200) else { skip!("no cgroups can be made here") };
    let spec = PodSpec::new("shop", "hog", &["main"], 8);
    let pod = node.add(spec).unwrap();
    let binary = agent::binary().unwrap();
    if folder::is_in_memory(&binary).unwrap() {
        skip!("the agent's file is on no disk");
    }
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
    let (there, pages) = code(&agent, &binary);
    assert!(pages > 100 && there == pages, "{there} of {pages} pages of code are in memory");
    hog.go().unwrap();
    let gone =
        |event: &agent::Event| event.kind() == "eviction_progress" && event.text("result") == "terminated";
    agent.wait_for("the pod's end", GUARD, gone).unwrap();
    assert_eq!(before, waited(&agent));
    assert!(agent.stop().unwrap().success());
}
