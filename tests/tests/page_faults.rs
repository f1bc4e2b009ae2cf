//! Code that has not run since the start: when the first pod must be evicted, none of it may have to come from the
//! disk.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, MemoryPageFlags, PageInfo, Process};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use tests::agent::{self, Agent, Options};
use tests::folder;
use tests::node::{MIB, Node, PodSpec};
use tests::skip;

/// The threads that decide and end a pod.
const EVICTION_THREADS: [&str; 3] = ["control-loop", "killer", "mrelease"];

const SYNCS: &str = "eviction_agent_syncs_total";

/// Returns the faults of each of these threads that had to wait for a disk.
fn major_faults(agent: &Agent) -> BTreeMap<String, u64> {
    let process = Process::new(agent.pid().try_into().unwrap()).unwrap();
    let tasks = process.tasks().unwrap().flatten().filter_map(|task| task.stat().ok());
    tasks
        .filter(|stat| EVICTION_THREADS.contains(&stat.comm.as_str()))
        .map(|stat| (stat.comm, stat.majflt))
        .collect()
}

/// Returns how many pages of the agent's code are in memory, and how many there are.
fn resident_code_pages(agent: &Agent, binary: &Path) -> (usize, usize) {
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
    let is_present = |page: &&PageInfo| matches!(page, PageInfo::MemoryPage(flags) if flags.contains(MemoryPageFlags::PRESENT));
    (pages.iter().filter(is_present).count(), pages.len())
}

#[test]
fn the_first_eviction_causes_no_major_page_faults() {
    let Ok(mut node) = Node::new("pages", 256 * MIB, 200) else { skip!("no cgroups can be made here") };
    let spec = PodSpec::new("shop", "hog", &["main"], 8);
    let pod = node.add(spec).unwrap();
    let binary = agent::binary().unwrap();
    if folder::is_in_memory(&binary).unwrap() {
        skip!("the agent's file is on no disk");
    }
    let kubelet = json!({"evictionHard": {"memory.available": "64Mi"}});
    let options = Options::new(&node, &kubelet).unwrap();
    let mut hog = node.workload(pod, &["hold", "--size", "224M"]).unwrap();
    let mut agent = options.start().unwrap();
    // Some syncs without pressure.
    let first = agent.metric(SYNCS, &[]).unwrap();
    agent.wait_for_metric(SYNCS, &[], |syncs| syncs > first + 2.0).unwrap();

    // Drops the pages of the agent's file that no process has mapped. The file is written out first, because dirty
    // pages would stay.
    let file = File::open(&binary).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let before = major_faults(&agent);
    assert_eq!(before.len(), EVICTION_THREADS.len(), "{before:?}");
    let (resident, pages) = resident_code_pages(&agent, &binary);
    assert!(pages > 100 && resident == pages, "{resident} of {pages} pages of code are in memory");
    hog.go().unwrap();
    agent.wait_for_result("shop/hog", "terminated").unwrap();
    assert_eq!(before, major_faults(&agent));
    agent.stop().unwrap();
}
