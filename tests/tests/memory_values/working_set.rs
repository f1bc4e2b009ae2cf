//! The working set of a node that grows while its page cache is full: usage stands still, and so may the memory.stat
//! of an ancestor.

use std::path::Path;
use std::time::Duration;

use eviction_node::cgroup::sampler::{MemoryUsage, Sampler};
use eviction_node::clock::mono_ns;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::process::HANG;
use tests::report_finding;
use tests::stamps::{Record, STEP};
use tests::workload::Workload;

use crate::MIB;
use crate::sampler;

const NODE: u64 = 384 * MIB;
const GROWTH: u64 = 160 * MIB;

/// The error that a working set may have: the process's own memory and page tables, charges in the cache of each CPU,
/// updates that the kernel counts before it flushes them (64 pages per CPU each), and growth while one sample is
/// taken.
pub(crate) const TOLERANCE: u64 = 8 * MIB;

/// A sample, with the times before and after its values were read.
struct TimedSample {
    from: u64,
    to: u64,
    memory: MemoryUsage,
}

/// Lets a process grow in `hog` while the page cache that `cache` has filled makes room for it, and takes samples
/// meanwhile. Returns how many bytes the samples were behind and ahead of what the process had touched by its own
/// stamps.
pub(crate) fn grow_in_full_cache(
    subtree: &Subtree,
    cache: &Group,
    hog: &Group,
    rate: &str,
    mut sample: impl FnMut(&mut Sampler) -> MemoryUsage,
) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let cached = format!("{}", 2 * NODE);
    let (stamps_arg, size) = (stamps.to_str().unwrap(), GROWTH.to_string());
    let arguments = ["--stamps", stamps_arg, "grow", "--size", &size, "--rate", rate];
    let mut grower = Workload::start(hog, arguments).unwrap();

    let mut sampler = sampler(subtree);
    // A machine may reclaim cold pages by itself: then the test fills the cache once more.
    let mut fillers = Vec::new();
    let base = loop {
        fillers.push(crate::cache(cache, &cached));
        // The kernel flushes all statistics every 2 s.
        std::thread::sleep(Duration::from_millis(2500));
        sampler.sample_all(1);
        let base = node_memory(&mut sampler);
        if base.usage > NODE - TOLERANCE {
            break base.working_set;
        }
        assert!(fillers.len() < 8, "the cache is never full: {base:?}");
    };
    grower.go().unwrap();
    let mut samples = Vec::new();
    let start = mono_ns();
    let mut samples_after_growth = 0;
    // Sampling continues for some time after the growth, when nothing more is counted.
    while samples_after_growth < 300 {
        assert!(mono_ns() - start < HANG.as_nanos() as u64, "hangs");
        let from = mono_ns();
        let memory = sample(&mut sampler);
        samples.push(TimedSample { from, to: mono_ns(), memory });
        samples_after_growth +=
            usize::from(samples_after_growth > 0 || (samples.len() % 64 == 0 && finished(&stamps)));
        std::thread::sleep(Duration::from_millis(1));
    }
    let record = Record::read(&stamps).unwrap();
    assert_eq!(record.last().unwrap().bytes, GROWTH);
    let (mut behind, mut ahead) = (0, 0);
    for TimedSample { from, to, memory } in &samples {
        let grown = memory.working_set.saturating_sub(base);
        behind = behind.max(touched(&record, *from).saturating_sub(grown));
        ahead = ahead.max(grown.saturating_sub(touched(&record, *to) + STEP));
    }
    (behind, ahead)
}

fn node_memory(sampler: &mut Sampler) -> MemoryUsage {
    sampler.sample_node(&[]).memory.known().unwrap()
}

fn finished(stamps: &Path) -> bool {
    Record::read(stamps).unwrap().done.is_some()
}

fn touched(record: &Record, ns: u64) -> u64 {
    let before = record.stamps.partition_point(|stamp| stamp.ns <= ns);
    before.checked_sub(1).map_or(0, |last| record.stamps[last].bytes)
}

/// Creates a node with a limit that its page cache reaches, and two containers of two pods.
pub(crate) fn node(label: &str) -> (Subtree, Group, Group) {
    let subtree = Subtree::new(label).unwrap();
    subtree.root().limit_memory(NODE).unwrap();
    let container = |n| {
        let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(n)).unwrap();
        pod.group(container_id(n)).unwrap()
    };
    let (one, two) = (container(1), container(2));
    (subtree, one, two)
}

#[test]
fn the_working_set_follows_growth_while_the_page_cache_is_full() {
    for rate in ["100M", "1G", "0"] {
        for same in [true, false] {
            let (subtree, one, two) = node("fresh");
            let cache = if same { &two } else { &one };
            let (behind, ahead) = grow_in_full_cache(&subtree, cache, &two, rate, node_memory);
            println!("rate {rate}, cache in the same group {same}: {behind} bytes behind, {ahead} ahead");
            assert!(behind <= TOLERANCE, "{behind} bytes behind at {rate}/s, same group: {same}");
            assert!(ahead <= TOLERANCE, "{ahead} bytes ahead at {rate}/s, same group: {same}");
            subtree.remove().unwrap();
        }
    }
}

/// Reads the values as the kubelet does: usage less the inactive file pages of the group's own memory.stat.
fn as_kubelet(group: &Group) -> MemoryUsage {
    let inactive_file = group.memory_stat("inactive_file").unwrap();
    let usage = group.memory().unwrap();
    MemoryUsage { usage, working_set: usage.saturating_sub(inactive_file) }
}

#[test]
fn the_memory_stat_of_a_parent_may_be_stale() {
    // Whether and when it stands still depends on the kernel, so the test prints that and asserts nothing. Each round
    // takes a minute in a guest.
    let mut worst = 0;
    for round in 0..2 {
        let (subtree, one, two) = node("stale");
        let cache = if round % 2 == 0 { &two } else { &one };
        let (behind, _) = grow_in_full_cache(&subtree, cache, &two, "100M", |_| as_kubelet(subtree.root()));
        println!("round {round}: the root's own memory.stat was up to {} KiB behind", behind >> 10);
        worst = worst.max(behind);
        subtree.remove().unwrap();
        if worst > 2 * TOLERANCE {
            break;
        }
    }
    let state = if worst > 2 * TOLERANCE { "stale" } else { "current" };
    report_finding("memory.stat of a parent", &format!("{state}, {} MiB behind", worst >> 20));
}

#[test]
fn the_working_set_follows_a_container_at_its_own_limit() {
    // A machine may reclaim cold pages by itself: then usage does move, and the run shows nothing.
    let usage_stood_still = (0..5).any(|_| grow_at_own_limit());
    assert!(usage_stood_still, "usage is never held at the limit");
}

/// Returns whether usage stood still while the process grew. Asserts that the working set was right.
fn grow_at_own_limit() -> bool {
    let (subtree, _one, two) = node("own-limit");
    two.limit_memory(NODE / 2).unwrap();
    // The node itself is far from its limit: only the leaf's usage stands still.
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let growth = (100 * MIB).to_string();
    let arguments = ["--stamps", stamps.to_str().unwrap(), "grow", "--size", &growth, "--rate", "200M"];
    let mut grower = Workload::start(&two, arguments).unwrap();
    let mut sampler = sampler(&subtree);
    let filler = crate::cache(&two, &NODE.to_string());
    sampler.sample_all(1);
    let base = node_memory(&mut sampler);
    grower.go().unwrap();
    grower.wait_event("grown").unwrap();
    // One sample is enough, whatever the parent's own value is.
    let memory = node_memory(&mut sampler);
    let grown = memory.working_set.saturating_sub(base.working_set);
    let usage = memory.usage.abs_diff(base.usage);
    println!("usage moved by {} KiB, the working set by {} KiB", usage >> 10, grown >> 10);
    assert!(grown.abs_diff(100 * MIB) <= TOLERANCE, "{memory:?}");
    drop(filler);
    subtree.remove().unwrap();
    usage < 20 * MIB
}
