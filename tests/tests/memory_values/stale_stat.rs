//! The values of a pod with a container that has grown and stands still: for 2 s the pod's own memory.stat may not
//! show the growth.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eviction_core::reading::Reading;
use eviction_node::cgroup::files::parse_memory_stat;
use eviction_node::cgroup::sampler::{GroupSample, MemoryUsage, Sampler};
use eviction_node::clock::mono_ns;
use tests::cgroup::{Driver, Group, Qos, Subtree, container_id, pod_uid};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::MIB;
use crate::cache;
use crate::sampler;
use crate::working_set::TOLERANCE;

/// The growth of the container in bytes.
const GROWTH: u64 = 100 * MIB;

/// The number of rounds. Whether a pod's memory.stat stands still is chance: in most of them it does.
const ROUNDS: u64 = 12;

fn folder(group: &Group) -> PathBuf {
    group.dir(Hierarchy::Memory).or_else(|| group.dir(Hierarchy::Unified)).unwrap()
}

fn anonymous(sample: &GroupSample) -> u64 {
    sample.stat.anon.known().unwrap()
}

/// Returns the memory of the only pod, from a full sample, or as a sync reads it before it decides.
fn pod(sampler: &mut Sampler, in_full: bool, since_ns: u64) -> GroupSample {
    match in_full {
        true => sampler.sample_all(1),
        false => sampler.sample_changed(32, since_ns),
    }
    let id = sampler.pods().pods[0].cgroup_id;
    sampler.read_again(id, since_ns);
    sampler.group(id).unwrap()
}

fn read_repeatedly(time: Duration, stat_file: &Path) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        fs::read(stat_file).unwrap();
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn a_pods_memory_includes_its_containers_if_its_memory_stat_is_stale() {
    let mut stale_rounds = 0;
    for round in 0..ROUNDS {
        let subtree = Subtree::new("parts").unwrap();
        let group = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
        let container = group.group(container_id(1)).unwrap();
        // In a pod with many cgroups the sampler does not read all of them for the pod.
        let others = if round % 3 == 2 { 20 } else { 0 };
        let _others: Vec<_> = (2..2 + others).map(|n| group.group(container_id(n)).unwrap()).collect();
        let size = GROWTH.to_string();
        let arguments = ["--on-term", "ignore", "grow", "--size", &size, "--rate", "0"];
        let mut grower = Workload::start(&container, arguments).unwrap();
        let mut running = sampler(&subtree);
        pod(&mut running, true, 0);
        grower.go().unwrap();
        // Other programs read the file as well: cAdvisor, or an agent that ran before.
        let stat_file = folder(&group).join("memory.stat");
        read_repeatedly(Duration::from_millis(round * 4), &stat_file);
        grower.wait_event("grown").unwrap();
        // The container's own file is right, and reading it does not update the pod's.
        fs::read(folder(&container).join("memory.stat")).unwrap();
        let version = running.root().version;
        let own = parse_memory_stat(version, &fs::read(&stat_file).unwrap()).anon.known().unwrap();
        stale_rounds += u64::from(own + TOLERANCE < GROWTH);
        let since_ns = mono_ns();
        // The order alternates: once a cgroup above the pod was read, the pod's file may be right.
        let samples = match round % 2 {
            0 => [pod(&mut running, false, since_ns), pod(&mut sampler(&subtree), true, since_ns)],
            _ => [pod(&mut sampler(&subtree), false, since_ns), pod(&mut running, true, since_ns)],
        };
        for sample in samples {
            assert!(anonymous(&sample).abs_diff(GROWTH) <= TOLERANCE, "{own} by its own text, {sample:?}");
            let Reading::Known(working_set) = sample.working_set else { panic!("{sample:?}") };
            assert!(working_set.abs_diff(GROWTH) <= TOLERANCE, "{sample:?}");
        }
        drop(grower);
        subtree.remove().unwrap();
    }
    // This depends on the kernel, and so is not asserted.
    println!("the pod's own memory.stat stood still in {stale_rounds} of {ROUNDS} rounds");
}

#[test]
fn the_first_sample_of_a_node_is_current() {
    let mut stale_rounds = 0;
    for round in 1..=ROUNDS {
        let subtree = Subtree::new("first-look").unwrap();
        let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
        let container = pod.group(container_id(1)).unwrap();
        let folders = tests::folder::on_disk().unwrap();
        let (size, dir) = (GROWTH.to_string(), folders.to_str().unwrap());
        let arguments = ["cache", "--size", &size, "--dir", dir];
        let stat_file = folder(subtree.root()).join("memory.stat");
        let mut filler = Workload::run(&container, arguments).unwrap();
        read_repeatedly(Duration::from_millis(round * 2), &stat_file);
        filler.wait_event("cached").unwrap();
        let mut sampler = sampler(&subtree);
        let MemoryUsage { usage, working_set } = sampler.sample_node(&[]).memory.known().unwrap();
        let own = parse_memory_stat(sampler.root().version, &fs::read(&stat_file).unwrap());
        stale_rounds += u64::from(own.inactive_file.known().unwrap() + TOLERANCE < GROWTH);
        assert!(usage + TOLERANCE >= GROWTH && working_set <= TOLERANCE, "{usage}, {working_set}, {own:?}");
        drop(filler);
        subtree.remove().unwrap();
    }
    println!("the node's own memory.stat stood still in {stale_rounds} of {ROUNDS} rounds");
}

/// Only the memory.stat of the parent has the pages that a removed cgroup leaves behind.
#[test]
fn page_cache_of_removed_cgroups_is_not_counted_as_working_set() {
    let subtree = Subtree::new("parts").unwrap();
    let pod = subtree.pod(Driver::Cgroupfs, Qos::Burstable, &pod_uid(1)).unwrap();
    let first = pod.group(container_id(1)).unwrap();
    let _second = pod.group(container_id(2)).unwrap();
    let cache = cache(&first, "64M");
    let mut sampler = sampler(&subtree);
    // The open files keep the pages when the process and its cgroup are removed.
    let open = fs::read_dir(format!("/proc/{}/fd", cache.pid())).unwrap();
    let kept: Vec<_> = open.filter_map(|entry| fs::File::open(entry.unwrap().path()).ok()).collect();
    drop(cache);
    first.destroy().unwrap();
    sampler.refresh(|_| false).unwrap();
    sampler.sample_all(1);
    let memory = sampler.group(sampler.pods().pods[0].cgroup_id).unwrap();
    assert!(memory.usage.known().unwrap() >= 60 * MIB, "the pages stay charged to the pod: {memory:?}");
    assert!(memory.working_set.known().unwrap() <= 8 * MIB, "and are no working set: {memory:?}");
    drop(kept);
    subtree.remove().unwrap();
}
