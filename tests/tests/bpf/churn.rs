//! Cgroups that are created and removed: the maps never fill, and keep nothing of removed cgroups.

use std::time::Instant;

use eviction_bpf::{LoadOptions, TaskStats};

use crate::fixture::{Fixture, Stepper, need_bpf};
use crate::groups::Cgroup;

/// More cgroups than the maps have room for.
const CHURN: usize = 2_500;
const MAP_CAPACITY: u32 = 2_048;

#[test]
fn the_maps_keep_nothing_of_more_cgroups_than_their_capacity() {
    need_bpf!();
    let node = Cgroup::new();
    let mut fixture = Fixture::with(&LoadOptions { cgroups: Some(MAP_CAPACITY), ..LoadOptions::default() });
    let start = Instant::now();
    let mut ids = Vec::with_capacity(CHURN);
    for place in 0..CHURN {
        let group = node.child(&format!("{place}"));
        ids.push(group.id());
        assert!(fixture.kernel.has_entries(group.id()).unwrap(), "its event counts are noted at its making");
        group.remove();
        if place % 100 == 0 {
            fixture.drain();
        }
    }
    let rate = ids.len() as f64 / start.elapsed().as_secs_f64() * 60.0;
    println!("{} cgroups made and removed, {rate:.0} in a minute", ids.len());
    assert_eq!(ids.iter().filter(|id| fixture.kernel.has_entries(**id).unwrap()).count(), 0);
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!(lost.by_map(), lost.by_map().map(|(map, _)| (map, 0)));
}

#[test]
fn the_maps_keep_nothing_of_removed_cgroups_that_had_tasks() {
    need_bpf!();
    let node = Cgroup::new();
    let home = node.child("home");
    // Room for fewer cgroups than are created: each entry is used by several, one after the other.
    let mut fixture =
        Fixture::with(&LoadOptions { fork_storm: 1, cgroups: Some(40), ..LoadOptions::default() });
    let mut process = Stepper::start(&home);
    let mut late = 0;
    for place in 0..100 {
        let group = node.child(&format!("{place}"));
        let id = group.id();
        group.add(&process);
        process.step("threads 5");
        process.step("touch 4");
        process.step("free");
        assert_eq!(fixture.task_count(id).forks, 5);
        home.add(&process);
        group.remove();
        if fixture.kernel.has_entries(id).unwrap() {
            // Another CPU had found the cgroup a moment before its removal. The sweep is for such entries.
            late += 1;
            let exists = |this: u64| this != id;
            fixture.kernel.sweep(exists).unwrap();
            fixture.kernel.sweep(exists).unwrap();
            assert!(!fixture.kernel.has_entries(id).unwrap(), "cgroup {place}");
        }
        assert_eq!(fixture.task_count(id), TaskStats::default());
        fixture.drain();
    }
    assert!(late <= 3, "{late} of 100 were cleaned too early");
}

#[test]
fn entries_of_a_missing_cgroup_are_deleted_by_the_second_sweep() {
    need_bpf!();
    let group = Cgroup::new();
    let id = group.id();
    let mut fixture = Fixture::load();
    let mut process = Stepper::start(&group);
    process.step("threads 5");
    assert!(fixture.kernel.has_entries(id).unwrap());
    // As if the tree did not have the cgroup: one sweep is no proof.
    let exists = |this: u64| this != id;
    assert_eq!(fixture.kernel.sweep(exists).unwrap(), 0);
    assert!(fixture.kernel.has_entries(id).unwrap());
    assert_eq!(fixture.kernel.sweep(|_| true).unwrap(), 0, "it was there after all");
    assert_eq!(fixture.kernel.sweep(exists).unwrap(), 0);
    assert!(fixture.kernel.sweep(exists).unwrap() > 0);
    assert!(!fixture.kernel.has_entries(id).unwrap());
    // A counter that was swept too early starts again.
    process.step("threads 5");
    assert_eq!(fixture.task_count(id).forks, 5);
}
