//! Kernel thresholds on many cgroups at once, as for pods and containers with limits.

use aya::sys::{Stats, enable_stats};
use eviction_bpf::{Counter, KernelThreshold, LoadOptions};

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::Cgroup;

/// Returns the nanoseconds that a program takes at a charge.
fn ns_per_charge(fixture: &Fixture, process: &mut Stepper) -> f64 {
    let _counting = enable_stats(Stats::RunTime).unwrap();
    let spent = || {
        let charge = fixture.programs().filter(|program| {
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
fn a_crossing_among_500_thresholds_is_reported_in_both_directions() {
    need_bpf!();
    let node = Cgroup::new();
    let pods: Vec<_> = (0..500).map(|place| node.child(&format!("pod{place}"))).collect();
    let busy = &pods[321];
    let mut process = Stepper::with_memory(busy, 8);
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
    let beside_ns = ns_per_charge(&fixture, &mut process);
    for group in [busy, &node] {
        fixture.kernel.set_threshold(group.id(), above(u64::MAX / 2)).unwrap();
    }
    let on_path_ns = ns_per_charge(&fixture, &mut process);
    for pod in &pods {
        fixture.kernel.clear_threshold(pod.id());
    }
    fixture.kernel.clear_threshold(node.id());
    let unset_ns = ns_per_charge(&fixture, &mut process);
    println!(
        "a charge costs {unset_ns:.0} ns without thresholds, {beside_ns:.0} ns with 500 thresholds on other cgroups, \
         {on_path_ns:.0} ns with two on its ancestor path"
    );
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!((lost.get(Counter::LostThresholdCrossed), lost.get(Counter::PathTruncated)), (0, 0));
}

#[test]
fn a_cgroup_and_its_ancestors_are_each_reported_at_their_threshold() {
    need_bpf!();
    let pods = Cgroup::new();
    let class = pods.child("burstable");
    let pod = class.child("pod");
    let container = pod.child("container");
    let mut process = Stepper::with_memory(&container, 4);
    let mut fixture = Fixture::load();
    let granularity = fixture.kernel.charge().unwrap().granularity_bytes;
    let levels = [(&pods, 128), (&class, 96), (&pod, 64), (&container, 32)];
    let start = pods.usage();
    let generations = levels
        .map(|(group, more)| fixture.kernel.set_threshold(group.id(), above(start + more * MIB)).unwrap());
    for (step, reported) in [(20, 0), (28, 1), (28, 2), (32, 3), (32, 4)] {
        process.step(&format!("touch {step}"));
        let crossed =
            generations.iter().filter(|generation| fixture.crossings(**generation).len() == 1).count();
        assert_eq!(crossed, reported, "after {} MiB more", (pods.usage() - start) / MIB);
    }
    for ((group, more), generation) in levels.into_iter().zip(generations) {
        let crossed = fixture.crossings(generation)[0];
        assert_eq!((crossed.cgroup_id, crossed.leaf_id), (group.id(), container.id()));
        let threshold_bytes = start + more * MIB;
        assert!(
            crossed.usage >= threshold_bytes && crossed.usage <= threshold_bytes + 2 * granularity,
            "{crossed:?} for {threshold_bytes}"
        );
    }
}

#[test]
fn the_thresholds_of_a_removed_cgroup_are_deleted() {
    need_bpf!();
    let node = Cgroup::new();
    let mut fixture = Fixture::load();
    let mut ids = Vec::new();
    for place in 0..50 {
        let pod = node.child(&format!("pod{place}"));
        ids.push(pod.id());
        let threshold = KernelThreshold { usage_above: Some(MIB), usage_below: Some(1), gross: Some(MIB) };
        fixture.kernel.set_threshold(pod.id(), threshold).unwrap();
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
fn thresholds_of_short_lived_cgroups_do_not_fill_the_map() {
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
fn a_new_threshold_is_distinguished_from_an_earlier_one_on_the_same_id() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 4);
    let mut fixture = Fixture::load();
    // As for another cgroup with the same id: one crossing is not read yet, one has not happened.
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
fn cgroups_whose_ids_share_a_bit_have_separate_thresholds() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 4);
    let mut fixture = Fixture::load();
    let other = group.id() + (1 << 16);
    let threshold = above(group.usage() + 16 * MIB);
    let generation = fixture.kernel.set_threshold(group.id(), threshold).unwrap();
    fixture.kernel.set_threshold(other, threshold).unwrap();
    fixture.kernel.clear_threshold(other);
    process.step("touch 64");
    assert_eq!(fixture.crossings(generation).len(), 1, "still set");
    fixture.kernel.set_threshold(other, above(MIB)).unwrap();
    fixture.kernel.clear_threshold(group.id());
    process.step("touch 16");
    assert_eq!(fixture.events.crossed.len(), 1, "the other one's level is not its own");
    fixture.kernel.clear_threshold(other);
    assert_eq!(fixture.kernel.threshold_entries().unwrap(), (0, 0));
}
