//! Kernel thresholds on usage, and the set of charged cgroups.

use aya::maps::{Map, PerCpuArray, PerCpuValues};
use eviction_bpf::{Counter, Edge, Event, KernelThreshold, LoadOptions, ring};
use eviction_common::MAX_ANCESTORS;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::{Cgroup, mount};

fn below(bytes: u64) -> KernelThreshold {
    KernelThreshold { usage_below: Some(bytes), ..KernelThreshold::default() }
}

#[test]
fn a_crossing_is_reported_once_per_threshold_with_the_right_ids() {
    need_bpf!();
    let pod = Cgroup::new();
    let container = pod.child("container");
    let mut process = Stepper::with_memory(&container, 8);
    let mut fixture = Fixture::load();
    let granularity = fixture.kernel.sources()[0].granularity_bytes;

    let threshold_bytes = pod.usage() + 32 * MIB;
    let first = fixture.kernel.set_threshold(pod.id(), above(threshold_bytes)).unwrap();
    process.step("touch 16");
    assert_eq!(fixture.crossings(first), [], "not yet there");
    process.step("touch 64");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    process.step("touch 16");
    let crossed = fixture.only_crossing(first, "upwards");
    assert_eq!(crossed.cgroup_id, pod.id());
    assert_eq!(crossed.leaf_id, container.id());
    assert_eq!(crossed.edge, Edge::UsageAbove);
    assert_eq!((crossed.tgid, crossed.pid), (process.pid(), process.pid()));
    assert!(crossed.usage >= threshold_bytes, "{crossed:?}");
    assert!(crossed.usage <= threshold_bytes + 2 * granularity, "{crossed:?} for {threshold_bytes}");
    assert!(crossed.ktime_ns > 0);

    let second = fixture.kernel.set_threshold(pod.id(), above(threshold_bytes + 96 * MIB)).unwrap();
    assert!(second > first);
    process.step("touch 128");
    fixture.wait("the second crossing", |reported| reported.crossed.len() > 1);
    assert_eq!(fixture.crossings(second).len(), 1);
    assert_eq!(fixture.crossings(first).len(), 1);
}

/// A path that the programs cache on each CPU: turn, counter, serial number, levels, and the ids (`ancestors.rs` of
/// the programs).
type CachedPath = [u64; 4 + MAX_ANCESTORS];

/// The number of attempts: another process may charge between a change of the cached path and the next charge.
const ATTEMPTS: usize = 40;

/// Changes what these programs have cached.
fn change_cached_paths(fixture: &Fixture, change: impl Fn(&mut CachedPath)) {
    let map = Map::PerCpuArray(fixture.map("CACHED_PATHS"));
    let mut paths = PerCpuArray::<_, CachedPath>::try_from(map).unwrap();
    for index in 0..paths.len() {
        let mut values: Vec<CachedPath> = paths.get(&index, 0).unwrap().to_vec();
        values.iter_mut().for_each(&change);
        paths.set(index, PerCpuValues::try_from(values).unwrap(), 0).unwrap();
    }
}

/// The kernel may place a new memory cgroup, with its page counter, where a removed one was.
#[test]
fn the_cached_ancestor_path_is_used_only_for_the_same_cgroup() {
    need_bpf!();
    let (pod, other) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::with_memory(&pod, 8);
    let mut fixture = Fixture::load();
    let threshold_bytes = pod.usage() + 64 * MIB;
    // The usage of the other cgroup is less than this all the time.
    let others = fixture.kernel.set_threshold(other.id(), above(threshold_bytes)).unwrap();
    let own = fixture.kernel.set_threshold(pod.id(), above(threshold_bytes)).unwrap();
    process.step("touch 16");
    change_cached_paths(&fixture, |[_, _, serial, _, ids @ ..]| {
        *serial = serial.wrapping_add(1);
        *ids = [other.id(); MAX_ANCESTORS];
    });
    process.step("touch 96");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    assert_eq!((fixture.crossings(own).len(), fixture.crossings(others).len()), (1, 0));
    // With the right serial number it is. On a busy machine another process may charge on that CPU before: then the
    // path of that process is cached there.
    let is_cache_used = (0..ATTEMPTS).any(|_| {
        change_cached_paths(&fixture, |[_, _, _, _, ids @ ..]| *ids = [other.id(); MAX_ANCESTORS]);
        process.step("touch 8");
        !fixture.crossings(others).is_empty()
    });
    assert!(is_cache_used, "it is not read again");
}

#[test]
fn simultaneous_charges_over_a_threshold_yield_one_event() {
    need_bpf!();
    let pod = Cgroup::new();
    let groups: Vec<_> = (0..4).map(|place| pod.child(&format!("c{place}"))).collect();
    let mut processes: Vec<_> = groups.iter().map(Stepper::start).collect();
    for process in &mut processes {
        process.step("touch 1");
    }
    let mut fixture = Fixture::load();
    for round in 0..20 {
        let generation = fixture.kernel.set_threshold(pod.id(), above(pod.usage() + 16 * MIB)).unwrap();
        for process in &mut processes {
            process.send("touch 16");
        }
        for process in &mut processes {
            assert_eq!(process.answer(), "ok");
        }
        assert_eq!(fixture.crossings(generation).len(), 1, "round {round}");
        for process in &mut processes {
            process.step("free");
        }
    }
    assert_eq!(fixture.kernel.lost().unwrap().get(Counter::LostThresholdCrossed), 0);
}

#[test]
fn a_threshold_can_be_set_again_at_each_crossing_of_a_growing_process() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 1);
    let mut fixture = Fixture::load();
    let mut threshold_bytes = 8 * MIB;
    let mut generation = fixture.kernel.set_threshold(group.id(), above(threshold_bytes)).unwrap();
    process.send("touch 400");
    let mut reported = Vec::new();
    while threshold_bytes < 256 * MIB {
        fixture.wait("the next crossing", |reported| {
            reported.crossed.iter().any(|crossed| crossed.generation == generation)
        });
        let crossed = fixture.only_crossing(generation, "upwards");
        assert!(crossed.usage >= threshold_bytes, "{crossed:?}");
        reported.push(generation);
        threshold_bytes = crossed.usage + 8 * MIB;
        generation = fixture.kernel.set_threshold(group.id(), above(threshold_bytes)).unwrap();
    }
    assert_eq!(process.answer(), "ok");
    for generation in reported {
        assert_eq!(fixture.crossings(generation).len(), 1, "{generation:?}");
    }
}

#[test]
fn a_threshold_below_usage_fires_at_the_next_charge() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 32);
    let mut fixture = Fixture::load();
    let generation = fixture.kernel.set_threshold(group.id(), above(MIB)).unwrap();
    process.step("touch 8");
    assert_eq!(fixture.crossings(generation).len(), 1);
}

#[test]
fn a_downward_crossing_is_reported_once() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 64);
    let mut fixture = Fixture::load();
    let generation = fixture.kernel.set_threshold(group.id(), below(32 * MIB)).unwrap();
    process.step("touch 16");
    assert_eq!(fixture.crossings(generation), []);
    process.step("free");
    process.step("touch 4");
    let crossed = fixture.only_crossing(generation, "downwards");
    assert_eq!(crossed.edge, Edge::UsageBelow);
    assert!(crossed.usage < 32 * MIB);
}

#[test]
fn each_edge_of_a_threshold_fires_once() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 16);
    let mut fixture = Fixture::load();
    let threshold =
        KernelThreshold { usage_above: Some(32 * MIB), usage_below: Some(8 * MIB), gross: Some(MIB) };
    let generation = fixture.kernel.set_threshold(group.id(), threshold).unwrap();
    for step in ["touch 32", "free", "touch 2", "touch 48"] {
        process.step(step);
    }
    let edges: Vec<_> = fixture.crossings(generation).iter().map(|crossed| crossed.edge).collect();
    // Where the programs do not see every charge, the sum of charges is never reached.
    match fixture.kernel.charge().unwrap().sees_every_charge {
        true => assert_eq!(edges, [Edge::Gross, Edge::UsageAbove, Edge::UsageBelow]),
        false => assert_eq!(edges, [Edge::UsageAbove, Edge::UsageBelow]),
    }
}

#[test]
fn a_cleared_threshold_reports_nothing() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let mut fixture = Fixture::load();
    let generation = fixture.kernel.set_threshold(group.id(), above(16 * MIB)).unwrap();
    assert_eq!(fixture.kernel.thresholds().collect::<Vec<_>>(), [group.id()]);
    fixture.kernel.clear_threshold(group.id());
    fixture.kernel.clear_threshold(group.id());
    assert_eq!(fixture.kernel.thresholds().count(), 0);
    process.step("touch 64");
    assert_eq!(fixture.crossings(generation), []);
}

#[test]
fn a_threshold_on_the_root_cgroup_covers_the_whole_node() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let mut fixture = Fixture::load();
    let root = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mount()).unwrap());
    let generation = fixture.kernel.set_threshold(root, above(MIB)).unwrap();
    process.step("touch 16");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    assert_eq!(fixture.only_crossing(generation, "root").cgroup_id, root);
}

#[test]
fn a_full_threshold_map_is_an_error_and_keeps_existing_thresholds() {
    need_bpf!();
    let (one, two) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&one);
    let mut fixture = Fixture::with(&LoadOptions { levels: Some(1), ..LoadOptions::default() });
    let generation = fixture.kernel.set_threshold(one.id(), above(16 * MIB)).unwrap();
    for _ in 0..20 {
        fixture.kernel.set_threshold(two.id(), above(16 * MIB)).unwrap_err();
    }
    process.step("touch 64");
    assert_eq!(fixture.crossings(generation).len(), 1);
    fixture.kernel.clear_threshold(one.id());
    fixture.kernel.set_threshold(two.id(), above(16 * MIB)).unwrap();
}

#[test]
fn the_charged_set_names_the_cgroup_that_grew_and_is_then_cleared() {
    need_bpf!();
    let pod = Cgroup::new();
    let (busy, calm) = (pod.child("busy"), pod.child("calm"));
    let mut grower = Stepper::start(&busy);
    let mut idle_process = Stepper::with_memory(&calm, 4);
    grower.step("touch 4");
    let fixture = Fixture::load();
    fixture.take_charged();

    grower.step("touch 64");
    let mut charged = fixture.take_charged();
    charged.retain(|id| [pod.id(), busy.id(), calm.id()].contains(id));
    assert_eq!(charged, [busy.id()], "only the group that was charged itself");

    assert!(!fixture.take_charged().contains(&busy.id()));
    idle_process.step("touch 8");
    assert!(fixture.take_charged().contains(&calm.id()));
}

#[test]
fn charges_that_do_not_fit_in_the_charged_set_are_counted() {
    need_bpf!();
    let groups = [Cgroup::new(), Cgroup::new(), Cgroup::new()];
    let mut processes: Vec<_> = groups.iter().map(Stepper::start).collect();
    let fixture = Fixture::with(&LoadOptions { cgroups: Some(1), ..LoadOptions::default() });
    for process in &mut processes {
        process.step("touch 8");
    }
    let lost = fixture.kernel.lost().unwrap();
    assert!(lost.get(Counter::ChargedCgroupsFull) > 0, "{lost:?}");
    assert!(lost.get(Counter::Charges) > lost.get(Counter::ChargedCgroupsFull), "{lost:?}");
}

#[test]
fn a_truncated_ancestor_path_is_counted() {
    need_bpf!();
    let top = Cgroup::new();
    let mut groups = vec![top.child("g")];
    for _ in 0..30 {
        let next = groups.last().unwrap().child("g");
        groups.push(next);
    }
    let mut process = Stepper::start(groups.last().unwrap());
    let fixture = Fixture::load();
    process.step("touch 8");
    assert!(fixture.kernel.lost().unwrap().get(Counter::PathTruncated) > 0);
    drop(process);
    while let Some(group) = groups.pop() {
        group.remove();
    }
}

#[test]
fn a_crossing_wakes_a_reader_on_tokio() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let Fixture { mut kernel, ring, .. } = Fixture::load();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut ring = ring::watch(ring).unwrap();
        ring.get_mut().drain(|_| ());
        let generation = kernel.set_threshold(group.id(), above(16 * MIB)).unwrap();
        let grower = std::thread::spawn(move || {
            process.step("touch 64");
            process
        });
        let mut crossings = 0;
        let wait = async {
            while crossings == 0 {
                let drained = ring::drain_ready(&mut ring, |event| {
                    if let Event::ThresholdCrossed(crossed) = event {
                        crossings += u32::from(crossed.generation == generation);
                    }
                });
                assert_eq!(drained.await.unwrap().malformed, 0);
            }
        };
        tokio::time::timeout(tests::process::HANG, wait).await.expect("woken by the crossing");
        grower.join().unwrap();
        assert_eq!(crossings, 1);
    });
}
