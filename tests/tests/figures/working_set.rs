//! The working set of a node that grows while its page cache is full, where usage stands still
//! and the memory.stat of an ancestor may too.

use std::path::Path;
use std::time::Duration;

use eviction_core::reading::Reading;
use eviction_node::cgroup::sample::{LevelSample, Tasks};
use eviction_node::cgroup::sampler::Sampler;
use eviction_node::clock::mono_ns;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::process::HANG;
use tests::report_finding;
use tests::stamps::{Record, STEP};
use tests::workload::Workload;

use crate::MIB;
use crate::sampler;
use crate::workload;

const NODE: u64 = 384 * MIB;
const GROWTH: u64 = 160 * MIB;

/// What a working set may be off by: the process's own memory and page tables, charges that
/// each CPU holds in stock, updates that the kernel counts before it flushes (64 pages of each
/// CPU for each), and what grows while one sample is taken.
pub(crate) const TOLERANCE: u64 = 8 * MIB;

/// A sample, with the times between which its figures were read.
struct Seen {
    from: u64,
    to: u64,
    level: LevelSample,
}

/// Lets a process grow in `hog` while the cache that `cache` has filled makes room for it, and
/// takes samples all the while. Returns how far the samples were behind and ahead of what the
/// process had touched by its own stamps.
pub(crate) fn grow_in_full_cache(
    subtree: &Subtree,
    cache: &Group,
    hog: &Group,
    rate: &str,
    mut sample: impl FnMut(&mut Sampler) -> LevelSample,
) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let cached = format!("{}", 2 * NODE);
    let (stamps_arg, size) = (stamps.to_str().unwrap(), GROWTH.to_string());
    let arguments = ["--stamps", stamps_arg, "grow", "--size", &size, "--rate", rate];
    let mut grower = Workload::start(workload(), hog, arguments).unwrap();

    let mut sampler = sampler(subtree);
    // A machine may take back cold pages by itself: then the cache is filled once more.
    let mut fillers = Vec::new();
    let base = loop {
        fillers.push(crate::cache(cache, &cached));
        // The kernel brings everything up to date every 2 s.
        std::thread::sleep(Duration::from_millis(2500));
        sampler.sample_all(1, Tasks::Count);
        let base = sampler.sample_node(&[]).level;
        if base.usage.known().unwrap() > NODE - TOLERANCE {
            break base.working_set.known().unwrap();
        }
        assert!(fillers.len() < 8, "the cache is never full: {base:?}");
    };
    grower.go().unwrap();
    let mut seen = Vec::new();
    let start = mono_ns();
    let mut after = 0;
    // And for some time after, when nothing is counted any more.
    while after < 300 {
        assert!(mono_ns() - start < HANG.as_nanos() as u64, "hangs");
        let from = mono_ns();
        let level = sample(&mut sampler);
        seen.push(Seen { from, to: mono_ns(), level });
        after += usize::from(after > 0 || (seen.len() % 64 == 0 && finished(&stamps)));
        std::thread::sleep(Duration::from_millis(1));
    }
    let record = Record::read(&stamps).unwrap();
    assert_eq!(record.last().unwrap().bytes, GROWTH);
    let (mut behind, mut ahead) = (0, 0);
    for Seen { from, to, level } in &seen {
        let grown = level.working_set.known().unwrap().saturating_sub(base);
        behind = behind.max(touched(&record, *from).saturating_sub(grown));
        ahead = ahead.max(grown.saturating_sub(touched(&record, *to) + STEP));
    }
    (behind, ahead)
}

fn finished(stamps: &Path) -> bool {
    Record::read(stamps).unwrap().done.is_some()
}

fn touched(record: &Record, ns: u64) -> u64 {
    let before = record.stamps.partition_point(|stamp| stamp.ns <= ns);
    before.checked_sub(1).map_or(0, |last| record.stamps[last].bytes)
}

/// A node whose limit its page cache has reached, with two containers of two pods.
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
fn ours_follows_the_growth_wherever_the_cache_is() {
    for rate in ["100M", "1G", "0"] {
        for same in [true, false] {
            let (subtree, one, two) = node("fresh");
            let cache = if same { &two } else { &one };
            let (behind, ahead) =
                grow_in_full_cache(&subtree, cache, &two, rate, |sampler| sampler.sample_node(&[]).level);
            println!("rate {rate}, cache in the same group {same}: {behind} bytes behind, {ahead} ahead");
            assert!(behind <= TOLERANCE, "{behind} bytes behind at {rate}/s, same group: {same}");
            assert!(ahead <= TOLERANCE, "{ahead} bytes ahead at {rate}/s, same group: {same}");
            subtree.remove().unwrap();
        }
    }
}

/// As the kubelet reads it: usage less the inactive file pages of the group's own memory.stat.
fn as_kubelet(group: &Group) -> LevelSample {
    let inactive_file = group.memory_stat("inactive_file").unwrap();
    let usage = group.memory().unwrap();
    LevelSample {
        usage: Reading::Known(usage),
        inactive_file: Reading::Known(inactive_file),
        working_set: Reading::Known(usage.saturating_sub(inactive_file)),
    }
}

#[test]
fn the_parent_alone_may_stand_still() {
    // Whether and when it does is the kernel's affair, so that is printed and not asserted; and a minute of
    // a guest's time is for each round.
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
    let verdict = if worst > 2 * TOLERANCE { "stale" } else { "current" };
    report_finding("memory.stat of a parent", &format!("{verdict}, {} MiB behind", worst >> 20));
}

#[test]
fn a_leaf_at_its_own_limit_is_followed_too() {
    // A machine may take back cold pages by itself: then usage does move, and it says nothing.
    let stood_still = (0..5).any(|_| follow_a_leaf_at_its_own_limit());
    assert!(stood_still, "usage is never held at the limit");
}

/// Whether usage stood still while the process grew; then the working set was right.
fn follow_a_leaf_at_its_own_limit() -> bool {
    let (subtree, _one, two) = node("own-limit");
    two.limit_memory(NODE / 2).unwrap();
    // The node itself is far from its limit: only the leaf's usage stands still.
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join("stamps");
    let growth = (100 * MIB).to_string();
    let arguments = ["--stamps", stamps.to_str().unwrap(), "grow", "--size", &growth, "--rate", "200M"];
    let mut grower = Workload::start(workload(), &two, arguments).unwrap();
    let mut sampler = sampler(&subtree);
    let filler = crate::cache(&two, &NODE.to_string());
    sampler.sample_all(1, Tasks::Count);
    let base = sampler.sample_node(&[]).level;
    grower.go().unwrap();
    grower.wait_event("grown").unwrap();
    // One sample is enough, whatever the parent's own figure says.
    let level = sampler.sample_node(&[]).level;
    let grown = level.working_set.known().unwrap().saturating_sub(base.working_set.known().unwrap());
    let usage = level.usage.known().unwrap().abs_diff(base.usage.known().unwrap());
    println!("usage moved by {} KiB, the working set by {} KiB", usage >> 10, grown >> 10);
    assert!(grown.abs_diff(100 * MIB) <= TOLERANCE, "{level:?}");
    drop(filler);
    subtree.remove().unwrap();
    usage < 20 * MIB
}
