//! The kernel's threshold on the usage of a cgroup v1 group.

use std::path::PathBuf;
use std::time::Instant;

use eviction_node::notify::memcg_v1::{GRANULARITY, register_eventfd};
use eviction_node::notify::{register, take_count};
use tests::cgroup::{Group, Subtree};
use tests::mounts::Hierarchy;
use tests::workload::Workload;

use crate::MIB;
use crate::is_quiet;
use crate::run;

/// Returns the folder of the cgroup v1 memory controller, if the machine has one.
fn folder(group: &Group) -> Option<PathBuf> {
    group.dir(Hierarchy::Memory)
}

#[test]
fn a_crossing_is_reported_in_both_directions() {
    let subtree = Subtree::new("threshold").unwrap();
    subtree.root().limit_memory(128 * MIB).unwrap();
    let Some(folder) = folder(subtree.root()) else { tests::skip!("no memory controller of version 1") };
    run(async {
        let arguments = ["grow", "--size", "64M", "--stop-at", "32M", "--rate", "100M"];
        let mut grower = Workload::start(subtree.root(), arguments).unwrap();
        let base = subtree.root().memory().unwrap();
        let start = Instant::now();
        let levels = [base + 16 * MIB, base + 60 * MIB];
        let mut threshold = register(register_eventfd(&folder, &levels).unwrap()).unwrap();
        println!("two thresholds registered in {} us", start.elapsed().as_micros());
        assert!(is_quiet(take_count(&threshold)).await);
        grower.go().unwrap();
        take_count(&threshold).await.unwrap();
        let usage = subtree.root().memory().unwrap();
        assert!(usage + GRANULARITY >= base + 16 * MIB, "{usage} is below {base} + 16 MiB");
        grower.wait_event("grown").unwrap();

        // Downwards, over a threshold that was set while usage was above it.
        let start = Instant::now();
        threshold = register(register_eventfd(&folder, &[base + 8 * MIB]).unwrap()).unwrap();
        println!("one threshold set anew in {} us", start.elapsed().as_micros());
        assert!(is_quiet(take_count(&threshold)).await, "the old thresholds are removed");
        drop(grower);
        take_count(&threshold).await.unwrap();
        drop(threshold);
        subtree.remove().unwrap();
    });
}

#[test]
fn the_removal_of_the_cgroup_wakes_the_waiter() {
    let subtree = Subtree::new("threshold-end").unwrap();
    let group = subtree.group("group").unwrap();
    let Some(folder) = folder(&group) else { tests::skip!("no memory controller of version 1") };
    run(async {
        let threshold = register(register_eventfd(&folder, &[1 << 40]).unwrap()).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        take_count(&threshold).await.unwrap();
        let error = register_eventfd(&folder, &[1]).unwrap_err();
        assert!(error.to_string().starts_with("cannot open"), "{error}");
        subtree.remove().unwrap();
    });
}
