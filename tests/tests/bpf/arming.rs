//! Levels on many groups at once, as pods and containers with limits have them.

use aya::sys::{Stats, enable_stats};
use eviction_bpf::{Counter, KernelThreshold, LoadOptions};

use crate::groups::Cgroup;
use crate::rig::{MIB, Rig, Stepper, above, need_bpf};

/// Nanoseconds that a program takes at a charge.
fn cost(rig: &Rig, process: &mut Stepper) -> f64 {
    let _counting = enable_stats(Stats::RunTime).unwrap();
    let ours = rig.kernel.program_ids();
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
fn of_five_hundred_armed_groups_the_one_that_crosses_is_told_up_and_down() {
    need_bpf!();
    let node = Cgroup::new();
    let pods: Vec<_> = (0..500).map(|place| node.child(&format!("pod{place}"))).collect();
    let busy = &pods[321];
    let mut process = Stepper::start(busy);
    process.step("touch 8");
    let mut rig = Rig::load();
    for pod in &pods {
        rig.kernel.set_threshold(pod.id(), above(busy.usage() + 64 * MIB)).unwrap();
    }
    assert_eq!(rig.kernel.threshold_entries().unwrap(), (500, 500));
    process.step("touch 96");
    rig.wait("the crossing", |told| !told.crossed.is_empty());
    let [crossed] = rig.told.crossed.as_slice() else { panic!("{:?}", rig.told.crossed) };
    assert_eq!((crossed.cgroup_id, crossed.leaf_id), (busy.id(), busy.id()));

    let down = KernelThreshold { usage_below: Some(busy.usage() - 48 * MIB), ..KernelThreshold::default() };
    let down = rig.kernel.set_threshold(busy.id(), down).unwrap();
    process.step("touch 4");
    assert_eq!(rig.crossings(down), [], "not yet");
    process.step("free");
    process.step("touch 4");
    rig.wait("the way down", |told| told.crossed.len() > 1);
    process.step("touch 4");
    assert_eq!(rig.crossings(down).len(), 1);
    assert_eq!(rig.told.crossed.len(), 2, "{:?}", rig.told.crossed);

    rig.kernel.clear_threshold(busy.id());
    let elsewhere = cost(&rig, &mut process);
    for group in [busy, &node] {
        rig.kernel.set_threshold(group.id(), above(u64::MAX / 2)).unwrap();
    }
    let on_the_way = cost(&rig, &mut process);
    for pod in &pods {
        rig.kernel.clear_threshold(pod.id());
    }
    rig.kernel.clear_threshold(node.id());
    let nothing = cost(&rig, &mut process);
    println!(
        "a charge costs {nothing:.0} ns with nothing armed, {elsewhere:.0} ns with 500 groups armed beside it, \
         {on_the_way:.0} ns with two on its way"
    );
    assert_eq!(rig.kernel.threshold_entries().unwrap(), (0, 0));
    let lost = rig.kernel.lost().unwrap();
    assert_eq!((lost.get(Counter::LostThresholdCrossed), lost.get(Counter::PathTruncated)), (0, 0));
}

#[test]
fn a_group_and_those_that_it_is_in_are_told_each_at_its_own_level() {
    need_bpf!();
    let pods = Cgroup::new();
    let class = pods.child("burstable");
    let pod = class.child("pod");
    let container = pod.child("container");
    let mut process = Stepper::start(&container);
    process.step("touch 4");
    let mut rig = Rig::load();
    let grain = rig.kernel.charge().unwrap().granularity_bytes;
    let ways = [(&pods, 128), (&class, 96), (&pod, 64), (&container, 32)];
    let start = pods.usage();
    let armed =
        ways.map(|(group, more)| rig.kernel.set_threshold(group.id(), above(start + more * MIB)).unwrap());
    for (step, told) in [(20, 0), (28, 1), (28, 2), (32, 3), (32, 4)] {
        process.step(&format!("touch {step}"));
        let crossed = armed.iter().filter(|armed| rig.crossings(**armed).len() == 1).count();
        assert_eq!(crossed, told, "after {} MiB more", (pods.usage() - start) / MIB);
    }
    for ((group, more), armed) in ways.into_iter().zip(armed) {
        let crossed = rig.crossings(armed)[0];
        assert_eq!((crossed.cgroup_id, crossed.leaf_id), (group.id(), container.id()));
        let line = start + more * MIB;
        assert!(crossed.usage >= line && crossed.usage <= line + 2 * grain, "{crossed:?} for {line}");
    }
}

#[test]
fn of_a_group_that_is_removed_while_armed_nothing_is_left() {
    need_bpf!();
    let node = Cgroup::new();
    let mut rig = Rig::load();
    let mut ids = Vec::new();
    for place in 0..50 {
        let pod = node.child(&format!("pod{place}"));
        ids.push(pod.id());
        let level = KernelThreshold { usage_above: Some(MIB), usage_below: Some(1), gross: Some(MIB) };
        rig.kernel.set_threshold(pod.id(), level).unwrap();
        pod.remove();
    }
    assert_eq!(
        rig.kernel.threshold_entries().unwrap(),
        (0, 150),
        "the kernel side itself took the levels out"
    );
    ids.iter().for_each(|id| rig.kernel.clear_threshold(*id));
    assert_eq!(rig.kernel.threshold_entries().unwrap(), (0, 0));
    assert_eq!(rig.kernel.thresholds().count(), 0);
}

#[test]
fn levels_of_groups_that_come_and_go_never_fill_the_map() {
    need_bpf!();
    let node = Cgroup::new();
    let mut rig = Rig::with(&LoadOptions { levels: Some(16), ..LoadOptions::default() });
    for place in 0..300 {
        let pod = node.child(&format!("pod{place}"));
        let id = pod.id();
        rig.kernel.set_threshold(id, above(MIB)).unwrap();
        pod.remove();
        rig.kernel.clear_threshold(id);
        if place % 50 == 0 {
            rig.drain();
        }
    }
    assert_eq!(rig.kernel.threshold_entries().unwrap(), (0, 0));
}

#[test]
fn what_was_armed_on_an_id_before_is_not_taken_for_what_is_armed_on_it_now() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 4");
    let mut rig = Rig::load();
    // As for another group with the same id: one crossing is on its way, one has not come.
    let first = rig.kernel.set_threshold(group.id(), above(group.usage() + 8 * MIB)).unwrap();
    process.step("touch 24");
    rig.kernel.clear_threshold(group.id());
    let second = rig.kernel.set_threshold(group.id(), above(group.usage() + 32 * MIB)).unwrap();
    process.step("touch 8");
    assert_eq!((rig.crossings(first).len(), rig.crossings(second).len()), (1, 0));
    let third = rig.kernel.set_threshold(group.id(), above(group.usage() + 16 * MIB)).unwrap();
    process.step("touch 64");
    assert_eq!((rig.crossings(second).len(), rig.crossings(third).len()), (0, 1));
    assert_eq!(rig.crossings(first).len(), 1, "its right to fire went with it");
}

#[test]
fn groups_whose_ids_share_a_place_are_kept_apart() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 4");
    let mut rig = Rig::load();
    let other = group.id() + (1 << 16);
    let line = above(group.usage() + 16 * MIB);
    let armed = rig.kernel.set_threshold(group.id(), line).unwrap();
    rig.kernel.set_threshold(other, line).unwrap();
    rig.kernel.clear_threshold(other);
    process.step("touch 64");
    assert_eq!(rig.crossings(armed).len(), 1, "armed still");
    rig.kernel.set_threshold(other, above(MIB)).unwrap();
    rig.kernel.clear_threshold(group.id());
    process.step("touch 16");
    assert_eq!(rig.told.crossed.len(), 1, "the other one's level is not its own");
    rig.kernel.clear_threshold(other);
    assert_eq!(rig.kernel.threshold_entries().unwrap(), (0, 0));
}
