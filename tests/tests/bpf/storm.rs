//! Many probes at once, a slow reader and a ring buffer that is too small: losses are counted, noticed and repaired,
//! and a crossing is reported all the same.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use aya::sys::{Stats, enable_stats};
use eviction_bpf::{Counter, LoadOptions};
use eviction_core::reading::Reading;
use eviction_node::cgroup::{
    hierarchy::{Hierarchies, Host},
    node_root::NodeRoot,
    sampler::{Sampler, max_descriptors},
};
use tests::process::Stop;
use tests::storm::{Storm, held_bytes};

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf, wait_until};
use crate::groups::Cgroup;

const GROUPS: usize = 500;

/// How often the programs run before the storm is over.
const PROGRAM_RUNS: u64 = 100_000;

/// A guard against a storm that makes no progress: an emulated machine with 500 processes is slow.
const GUARD: Duration = Duration::from_secs(900);

/// The size of a ring buffer that has room for 128 records of cgroups, and is soon full.
const SMALL_RING: u32 = 4096;

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario, in the order of its steps")]
fn lost_events_are_counted_in_a_storm_and_the_crossing_is_reported() {
    need_bpf!();
    let _counting = enable_stats(Stats::RunTime).unwrap();
    let node = Cgroup::new();
    let groups: Vec<_> = (0..GROUPS).map(|place| node.child(&format!("{place}"))).collect();
    let folders: Vec<_> = groups.iter().map(Cgroup::folder).collect();
    let ids: BTreeSet<u64> = groups.iter().map(Cgroup::id).collect();
    let grower = node.child("grower");
    let mut process = Stepper::start(&grower);
    let hierarchies = Hierarchies::discover(&Host::default()).unwrap();
    let root = NodeRoot::resolve(&hierarchies, Path::new(&node.path())).unwrap();
    let mut sampler = Sampler::new(root, Path::new("/proc"), max_descriptors(), |_| false).unwrap();
    let mut storm = Storm::start(&tests::binary::find("storm").unwrap(), &folders).unwrap();

    let mut fixture = Fixture::with(&LoadOptions { ring_bytes: SMALL_RING, ..LoadOptions::default() });
    let mut seen = BTreeSet::new();
    let generation = {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let churn = scope.spawn(|| {
                let mut made = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    Cgroup::new().remove();
                    made += 1;
                }
                made
            });
            let stop = Stop(&over);
            storm.go().unwrap();
            let start = std::time::Instant::now();
            let mut generation = None;
            while fixture.program_runs() < PROGRAM_RUNS
                || fixture.events.crossed.is_empty()
                || seen.len() < GROUPS
            {
                let (runs, groups) = (fixture.program_runs(), seen.len());
                assert!(
                    start.elapsed() < GUARD,
                    "{runs} firings, {groups} groups seen, crossed: {:?}",
                    fixture.events.crossed
                );
                assert!(!churn.is_finished());
                // The reader sleeps while the ring buffer overflows.
                std::thread::sleep(Duration::from_millis(50));
                fixture.drain();
                let charged = fixture.take_charged();
                seen.extend(charged.into_iter().filter(|id| ids.contains(id)));
                if generation.is_none() && fixture.kernel.lost().unwrap().records_lost() > 0 {
                    let threshold = above(grower.usage() + 4 * MIB);
                    generation = Some(fixture.kernel.set_threshold(grower.id(), threshold).unwrap());
                }
                if generation.is_some() && fixture.events.crossed.is_empty() {
                    process.step("touch 8");
                }
            }
            drop(stop);
            let runs = fixture.program_runs();
            let elapsed = start.elapsed();
            println!(
                "{runs} firings in {elapsed:?}, {} cgroups made and removed meanwhile",
                churn.join().unwrap()
            );
            generation.unwrap()
        })
    };
    storm.pause().unwrap();
    assert_eq!(fixture.crossings(generation).len(), 1);

    // Every record arrived or was counted as lost.
    fixture.wait_until_all_records_are_known();
    let lost = fixture.kernel.lost().unwrap();
    println!("{lost:?}");
    assert!(lost.records_lost() > 0, "the ring was too small for this");
    assert!(fixture.events.may_have_lost, "a loss is noticed when the other records are read");
    assert_eq!(lost.by_map(), lost.by_map().map(|(map, _)| (map, 0)), "every value had room in its map");

    // The full sample after a loss finds every value right, once the kernel has accounted what was given back: it
    // frees page tables some time later.
    sampler.refresh(|_| false).unwrap();
    wait_until("every usage to be found right", || {
        sampler.sample_all(1);
        let found = |group: &Cgroup| sampler.group(group.id()).unwrap().usage;
        groups.iter().all(|group| found(group) == Reading::Known(group.usage()))
    });
    for (place, group) in groups.iter().enumerate() {
        let usage = sampler.group(group.id()).unwrap().usage.known().unwrap();
        assert!(usage >= held_bytes(place) as u64, "group {place} has {usage}");
    }
    drop(storm);
}

#[test]
fn the_default_ring_buffer_has_room_for_a_restart_of_the_node() {
    need_bpf!();
    let node = Cgroup::new();
    let mut fixture = Fixture::load();
    let groups: Vec<_> = (0..440).map(|place| node.child(&format!("{place}"))).collect();
    // The ring buffer has not been read so far.
    fixture.drain();
    let is_created = |id| fixture.events.created.contains(&id);
    assert!(groups.iter().all(|group| is_created(group.id())));
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!(lost.get(Counter::LostCgroupCreated), 0, "{lost:?}");
}
