//! Armed levels and the dirty set.

use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues};
use eviction_bpf::{AsyncRing, BpfHandle, CgroupGrowth, Counter, Edge, Event, KernelThreshold, LoadOptions};
use eviction_common::MAX_ANCESTORS;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::{Cgroup, mount};

fn below(bytes: u64) -> KernelThreshold {
    KernelThreshold { usage_below: Some(bytes), ..KernelThreshold::default() }
}

#[test]
fn a_crossing_is_reported_once_with_the_right_ids_and_again_after_arming_again() {
    need_bpf!();
    let pod = Cgroup::new();
    let container = pod.child("container");
    let mut process = Stepper::start(&container);
    process.step("touch 8");
    let mut fixture = Fixture::load();
    let grain = fixture.kernel.sources()[0].granularity_bytes;

    let line = pod.usage() + 32 * MIB;
    let first = fixture.kernel.set_threshold(pod.id(), above(line)).unwrap();
    process.step("touch 16");
    assert_eq!(fixture.crossings(first), [], "not yet there");
    process.step("touch 64");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    process.step("touch 16");
    let crossings = fixture.crossings(first);
    let [crossed] = crossings.as_slice() else {
        panic!("one crossing, not {crossings:?}");
    };
    assert_eq!(crossed.cgroup_id, pod.id());
    assert_eq!(crossed.leaf_id, container.id());
    assert_eq!(crossed.edge, Edge::UsageAbove);
    assert_eq!((crossed.tgid, crossed.pid), (process.pid(), process.pid()));
    assert!(crossed.usage >= line, "{crossed:?}");
    assert!(crossed.usage <= line + 2 * grain, "{crossed:?} for {line}");
    assert!(crossed.stamp.ktime_ns > 0);

    let second = fixture.kernel.set_threshold(pod.id(), above(line + 96 * MIB)).unwrap();
    assert!(second > first);
    process.step("touch 128");
    fixture.wait("the second crossing", |reported| reported.crossed.len() > 1);
    assert_eq!(fixture.crossings(second).len(), 1);
    assert_eq!(fixture.crossings(first).len(), 1);
}

/// What programs keep on each CPU: turn, counter, serial number, levels, and the ids (`way.rs` of the programs).
type Kept = [u64; 4 + MAX_ANCESTORS];

/// So often somebody else may charge between a change of what is kept and the next charge.
const TRIES: usize = 40;

/// Changes what these programs have kept. By their own maps: another test may have loaded some since.
fn change_ways(kernel: &BpfHandle, change: impl Fn(&mut Kept)) {
    let programs = aya::programs::loaded_programs().filter_map(Result::ok);
    let ours = programs.filter(|program| kernel.program_ids().contains(&program.id()));
    let maps: Vec<u32> = ours.flat_map(|program| program.map_ids().unwrap().unwrap()).collect();
    let mut named = aya::maps::loaded_maps().filter_map(Result::ok);
    let ways =
        named.find(|map| map.name_as_str() == Some("CACHED_PATHS") && maps.contains(&map.id())).unwrap();
    let map = Map::PerCpuArray(MapData::from_id(ways.id()).unwrap());
    let mut ways = PerCpuArray::<_, Kept>::try_from(map).unwrap();
    for keeper in 0..ways.len() {
        let mut kept: Vec<Kept> = ways.get(&keeper, 0).unwrap().to_vec();
        kept.iter_mut().for_each(&change);
        ways.set(keeper, PerCpuValues::try_from(kept).unwrap(), 0).unwrap();
    }
}

/// The kernel may put a new memory cgroup where one was that is gone, and its page counter with it.
#[test]
fn the_way_up_is_kept_and_is_not_taken_for_that_of_another_in_the_same_place() {
    need_bpf!();
    let (pod, other) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&pod);
    process.step("touch 8");
    let mut fixture = Fixture::load();
    let line = pod.usage() + 64 * MIB;
    // Its own usage is less than this all the while.
    let others = fixture.kernel.set_threshold(other.id(), above(line)).unwrap();
    let own = fixture.kernel.set_threshold(pod.id(), above(line)).unwrap();
    process.step("touch 16");
    change_ways(&fixture.kernel, |[_, _, serial, _, ids @ ..]| {
        *serial = serial.wrapping_add(1);
        *ids = [other.id(); MAX_ANCESTORS];
    });
    process.step("touch 96");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    assert_eq!((fixture.crossings(own).len(), fixture.crossings(others).len()), (1, 0));
    // With its own number it is. On a busy machine another may charge on that CPU before: then its way is kept there.
    let is_believed = (0..TRIES).any(|_| {
        change_ways(&fixture.kernel, |[_, _, _, _, ids @ ..]| *ids = [other.id(); MAX_ANCESTORS]);
        process.step("touch 8");
        !fixture.crossings(others).is_empty()
    });
    assert!(is_believed, "it is not read again");
}

#[test]
fn of_many_that_cross_at_once_one_record_comes() {
    need_bpf!();
    let pod = Cgroup::new();
    let groups: Vec<_> = (0..4).map(|place| pod.child(&format!("c{place}"))).collect();
    let mut processes: Vec<_> = groups.iter().map(Stepper::start).collect();
    for process in &mut processes {
        process.step("touch 1");
    }
    let mut fixture = Fixture::load();
    for round in 0..20 {
        let armed = fixture.kernel.set_threshold(pod.id(), above(pod.usage() + 16 * MIB)).unwrap();
        for process in &mut processes {
            process.send("touch 16");
        }
        for process in &mut processes {
            assert_eq!(process.answer(), "ok");
        }
        assert_eq!(fixture.crossings(armed).len(), 1, "round {round}");
        for process in &mut processes {
            process.step("free");
        }
    }
    assert_eq!(fixture.kernel.lost().unwrap().get(Counter::LostThresholdCrossed), 0);
}

#[test]
fn a_growing_process_is_followed_by_arming_at_each_crossing() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 1");
    let mut fixture = Fixture::load();
    let mut line = 8 * MIB;
    let mut armed = fixture.kernel.set_threshold(group.id(), above(line)).unwrap();
    process.send("touch 400");
    let mut reported = Vec::new();
    while line < 256 * MIB {
        fixture.wait("the next crossing", |reported| {
            reported.crossed.iter().any(|crossed| crossed.generation == armed.0)
        });
        let crossings = fixture.crossings(armed);
        assert_eq!(crossings.len(), 1);
        assert!(crossings[0].usage >= line, "{:?}", crossings[0]);
        reported.push(armed);
        line = crossings[0].usage + 8 * MIB;
        armed = fixture.kernel.set_threshold(group.id(), above(line)).unwrap();
    }
    assert_eq!(process.answer(), "ok");
    for armed in reported {
        assert_eq!(fixture.crossings(armed).len(), 1, "{armed:?}");
    }
}

#[test]
fn a_level_that_is_crossed_already_fires_at_the_next_charge() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 32");
    let mut fixture = Fixture::load();
    let armed = fixture.kernel.set_threshold(group.id(), above(MIB)).unwrap();
    process.step("touch 8");
    assert_eq!(fixture.crossings(armed).len(), 1);
}

#[test]
fn the_way_down_is_reported_once() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 64");
    let mut fixture = Fixture::load();
    let armed = fixture.kernel.set_threshold(group.id(), below(32 * MIB)).unwrap();
    process.step("touch 16");
    assert_eq!(fixture.crossings(armed), []);
    process.step("free");
    process.step("touch 4");
    let crossings = fixture.crossings(armed);
    let [crossed] = crossings.as_slice() else {
        panic!("one crossing, not {crossings:?}");
    };
    assert_eq!(crossed.edge, Edge::UsageBelow);
    assert!(crossed.usage < 32 * MIB);
}

#[test]
fn both_edges_of_one_arming_fire_each_for_itself() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 16");
    let mut fixture = Fixture::load();
    let level = KernelThreshold { usage_above: Some(32 * MIB), usage_below: Some(8 * MIB), gross: Some(MIB) };
    let armed = fixture.kernel.set_threshold(group.id(), level).unwrap();
    for step in ["touch 32", "free", "touch 2", "touch 48"] {
        process.step(step);
    }
    let edges: Vec<_> = fixture.crossings(armed).iter().map(|crossed| crossed.edge).collect();
    // Where not every charge is seen the sum of charges is never reached.
    match fixture.kernel.charge().unwrap().sees_every_charge {
        true => assert_eq!(edges, [Edge::Gross, Edge::UsageAbove, Edge::UsageBelow]),
        false => assert_eq!(edges, [Edge::UsageAbove, Edge::UsageBelow]),
    }
}

#[test]
fn what_was_disarmed_is_silent() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let mut fixture = Fixture::load();
    let armed = fixture.kernel.set_threshold(group.id(), above(16 * MIB)).unwrap();
    assert_eq!(fixture.kernel.thresholds().collect::<Vec<_>>(), [group.id()]);
    fixture.kernel.clear_threshold(group.id());
    fixture.kernel.clear_threshold(group.id());
    assert_eq!(fixture.kernel.thresholds().count(), 0);
    process.step("touch 64");
    assert_eq!(fixture.crossings(armed), []);
}

#[test]
fn the_whole_node_is_armed_at_the_root() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    let mut fixture = Fixture::load();
    let root = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(mount()).unwrap());
    let armed = fixture.kernel.set_threshold(root, above(MIB)).unwrap();
    process.step("touch 16");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    let crossings = fixture.crossings(armed);
    assert_eq!(crossings.len(), 1);
    assert_eq!(crossings[0].cgroup_id, root);
}

#[test]
fn a_full_table_of_levels_is_an_error_and_loses_nothing_that_was_armed() {
    need_bpf!();
    let (one, two) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&one);
    let mut fixture = Fixture::with(&LoadOptions { levels: Some(1), ..LoadOptions::default() });
    let armed = fixture.kernel.set_threshold(one.id(), above(16 * MIB)).unwrap();
    for _ in 0..20 {
        fixture.kernel.set_threshold(two.id(), above(16 * MIB)).unwrap_err();
    }
    process.step("touch 64");
    assert_eq!(fixture.crossings(armed).len(), 1);
    fixture.kernel.clear_threshold(one.id());
    fixture.kernel.set_threshold(two.id(), above(16 * MIB)).unwrap();
}

#[test]
fn the_dirty_set_names_the_leaf_that_grew_and_is_empty_after() {
    need_bpf!();
    let pod = Cgroup::new();
    let (busy, calm) = (pod.child("busy"), pod.child("calm"));
    let mut grower = Stepper::start(&busy);
    let mut rester = Stepper::start(&calm);
    rester.step("touch 4");
    grower.step("touch 4");
    let mut fixture = Fixture::load();
    let mut dirty = Vec::new();
    fixture.kernel.take_charged(&mut dirty).unwrap();

    grower.step("touch 64");
    fixture.kernel.take_charged(&mut dirty).unwrap();
    let of = |dirty: &[CgroupGrowth], id| dirty.iter().find(|leaf| leaf.id == id).copied();
    let leaf = of(&dirty, busy.id()).expect("the leaf that grew");
    assert!((48 * MIB..=65 * MIB).contains(&leaf.grown), "{leaf:?}");
    assert!(leaf.fired >= 24, "{leaf:?}");
    assert_eq!(of(&dirty, calm.id()), None);
    assert_eq!(of(&dirty, pod.id()), None, "only the group that was charged itself");
    assert!(dirty.is_sorted_by_key(|leaf| std::cmp::Reverse(leaf.gross.max(leaf.grown))));

    fixture.kernel.take_charged(&mut dirty).unwrap();
    assert_eq!(of(&dirty, busy.id()), None);
    rester.step("touch 8");
    fixture.kernel.take_charged(&mut dirty).unwrap();
    assert!(of(&dirty, calm.id()).is_some());
}

#[test]
fn a_dirty_set_without_room_is_counted() {
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
fn a_tree_that_is_too_deep_is_counted() {
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
        let mut ring = AsyncRing::new(ring).unwrap();
        ring.drain(|_| ());
        let armed = kernel.set_threshold(group.id(), above(16 * MIB)).unwrap();
        let grower = std::thread::spawn(move || {
            process.step("touch 64");
            process
        });
        let mut crossings = 0;
        let wait = async {
            while crossings == 0 {
                let drained = ring.drain_ready(|event| {
                    if let Event::ThresholdCrossed(crossed) = event {
                        crossings += u32::from(crossed.generation == armed.0);
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
