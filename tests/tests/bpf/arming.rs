//! Levels on many groups at once, as pods and containers with limits have them.

use aya::sys::{Stats, enable_stats};
use eviction_bpf::{Counter, KernelThreshold, LoadOptions};

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::Cgroup;

/// Nanoseconds that a program takes at a charge.
fn cost(fixture: &Fixture, process: &mut Stepper) -> f64 {
    let _counting = enable_stats(Stats::RunTime).unwrap();
    let ours = fixture.kernel.program_ids();
    let spent = || {
        let programs = aya::programs::loaded_programs().filter_map(Result::ok);
        let programs = programs.filter(|program| ours.contains(&program.id()));
        let charge = programs.filter(|program| {
            let name = program.name_as_str().unwrap_or_default();
            name.starts_with("charge_") || name.starts_with("counter_try_charge")
        });
        charge.fold((0.0, 0), |(ns, runs), program| {
            (ns + program.run_time().as_nanos() as f64, runs + program.run_count())
        })
    };
    let before = spent();
    for _ in 0..16 {
        process.step("touch 64");
        process.step("free");
    }
    let after = spent();
    (after.0 - before.0) / (after.1 - before.1).max(1) as f64
}

#[test]
fn of_five_hundred_armed_groups_the_one_that_crosses_is_reported_up_and_down() {
    need_bpf!();
    let node = Cgroup::new();
    let pods: Vec<_> = (0..500).map(|place| node.child(&format!("pod{place}"))).collect();
    let busy = &pods[321];
    let mut process = Stepper::start(busy);
    process.step("touch 8");
    let mut fixture = Fixture::load();
    for pod in &pods {
        fixture.kernel.set_threshold(pod.id(), above(busy.usage() + 64 * MIB)).unwrap();
    }
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (500, 500));
    process.step("touch 96");
    fixture.wait("the crossing", |reported| !reported.crossed.is_empty());
    let [crossed] = fixture.events.crossed.as_slice() else { panic!("{:?}", fixture.events.crossed) };
    assert_eq!((crossed.cgroup_id, crossed.leaf_id), (busy.id(), busy.id()));

    let down = KernelThreshold { usage_below: Some(busy.usage() - 48 * MIB), ..KernelThreshold::default() };
    let down = fixture.kernel.set_threshold(busy.id(), down).unwrap();
    process.step("touch 4");
    assert_eq!(fixture.crossings(down), [], "not yet");
    process.step("free");
    process.step("touch 4");
    fixture.wait("the way down", |reported| reported.crossed.len() > 1);
    process.step("touch 4");
    assert_eq!(fixture.crossings(down).len(), 1);
    assert_eq!(fixture.events.crossed.len(), 2, "{:?}", fixture.events.crossed);

    fixture.kernel.clear_threshold(busy.id());
    let elsewhere = cost(&fixture, &mut process);
    for group in [busy, &node] {
        fixture.kernel.set_threshold(group.id(), above(u64::MAX / 2)).unwrap();
    }
    let on_the_way = cost(&fixture, &mut process);
    for pod in &pods {
        fixture.kernel.clear_threshold(pod.id());
    }
    fixture.kernel.clear_threshold(node.id());
    let nothing = cost(&fixture, &mut process);
    println!(
        "a charge costs {nothing:.0} ns with nothing armed, {elsewhere:.0} ns with 500 groups armed beside it, \
         {on_the_way:.0} ns with two on its way"
    );
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!((lost.get(Counter::LostThresholdCrossed), lost.get(Counter::PathTruncated)), (0, 0));
}

#[test]
fn a_group_and_those_that_it_is_in_are_reported_each_at_its_own_level() {
    need_bpf!();
    let pods = Cgroup::new();
    let class = pods.child("burstable");
    let pod = class.child("pod");
    let container = pod.child("container");
    let mut process = Stepper::start(&container);
    process.step("touch 4");
    let mut fixture = Fixture::load();
    let grain = fixture.kernel.charge().unwrap().granularity_bytes;
    let ways = [(&pods, 128), (&class, 96), (&pod, 64), (&container, 32)];
    let start = pods.usage();
    let armed = ways
        .map(|(group, more)| fixture.kernel.set_threshold(group.id(), above(start + more * MIB)).unwrap());
    for (step, reported) in [(20, 0), (28, 1), (28, 2), (32, 3), (32, 4)] {
        process.step(&format!("touch {step}"));
        let crossed = armed.iter().filter(|armed| fixture.crossings(**armed).len() == 1).count();
        assert_eq!(crossed, reported, "after {} MiB more", (pods.usage() - start) / MIB);
    }
    for ((group, more), armed) in ways.into_iter().zip(armed) {
        let crossed = fixture.crossings(armed)[0];
        assert_eq!((crossed.cgroup_id, crossed.leaf_id), (group.id(), container.id()));
        let line = start + more * MIB;
        assert!(crossed.usage >= line && crossed.usage <= line + 2 * grain, "{crossed:?} for {line}");
    }
}

#[test]
fn of_a_group_that_is_removed_while_armed_nothing_is_left() {
    need_bpf!();
    let node = Cgroup::new();
    let mut fixture = Fixture::load();
    let mut ids = Vec::new();
    for place in 0..50 {
        let pod = node.child(&format!("pod{place}"));
        ids.push(pod.id());
        let level = KernelThreshold { usage_above: Some(MIB), usage_below: Some(1), gross: Some(MIB) };
        fixture.kernel.set_threshold(pod.id(), level).unwrap();
        pod.remove();
    }
    assert_eq!(
        fixture.kernel.threshold_entries().unwrap(),
        (0, 150),
        "the kernel side itself took the levels out"
    );
    ids.iter().for_each(|id| fixture.kernel.clear_threshold(*id));
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
    assert_eq!(fixture.kernel.thresholds().count(), 0);
}

#[test]
fn levels_of_groups_that_come_and_go_never_fill_the_map() {
    need_bpf!();
    let node = Cgroup::new();
    let mut fixture = Fixture::with(&LoadOptions { levels: Some(16), ..LoadOptions::default() });
    for place in 0..300 {
        let pod = node.child(&format!("pod{place}"));
        let id = pod.id();
        fixture.kernel.set_threshold(id, above(MIB)).unwrap();
        pod.remove();
        fixture.kernel.clear_threshold(id);
        if place % 50 == 0 {
            fixture.drain();
        }
    }
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
}

#[test]
fn what_was_armed_on_an_id_before_is_not_taken_for_what_is_armed_on_it_now() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 4");
    let mut fixture = Fixture::load();
    // As for another group with the same id: one crossing is on its way, one has not come.
    let first = fixture.kernel.set_threshold(group.id(), above(group.usage() + 8 * MIB)).unwrap();
    process.step("touch 24");
    fixture.kernel.clear_threshold(group.id());
    let second = fixture.kernel.set_threshold(group.id(), above(group.usage() + 32 * MIB)).unwrap();
    process.step("touch 8");
    assert_eq!((fixture.crossings(first).len(), fixture.crossings(second).len()), (1, 0));
    let third = fixture.kernel.set_threshold(group.id(), above(group.usage() + 16 * MIB)).unwrap();
    process.step("touch 64");
    assert_eq!((fixture.crossings(second).len(), fixture.crossings(third).len()), (0, 1));
    assert_eq!(fixture.crossings(first).len(), 1, "its right to fire went with it");
}

#[test]
fn groups_whose_ids_share_a_place_are_kept_apart() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 4");
    let mut fixture = Fixture::load();
    let other = group.id() + (1 << 16);
    let line = above(group.usage() + 16 * MIB);
    let armed = fixture.kernel.set_threshold(group.id(), line).unwrap();
    fixture.kernel.set_threshold(other, line).unwrap();
    fixture.kernel.clear_threshold(other);
    process.step("touch 64");
    assert_eq!(fixture.crossings(armed).len(), 1, "armed still");
    fixture.kernel.set_threshold(other, above(MIB)).unwrap();
    fixture.kernel.clear_threshold(group.id());
    process.step("touch 16");
    assert_eq!(fixture.events.crossed.len(), 1, "the other one's level is not its own");
    fixture.kernel.clear_threshold(other);
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
}
