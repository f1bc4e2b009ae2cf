//! The on-demand probe near a threshold.

use eviction_bpf::AttachWhen;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::Cgroup;

/// Returns whether there is such a probe; reports a skip if there is none.
fn has_on_demand_probe(fixture: &Fixture) -> bool {
    let sees_every_charge = fixture.kernel.charge().unwrap().sees_every_charge;
    if sees_every_charge {
        tests::report_skip("this kernel shows every charge without an on-demand probe");
    }
    !sees_every_charge
}

#[test]
fn growth_into_existing_page_tables_is_seen_near_a_threshold() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 128);
    process.step("give-back");
    let mut fixture = Fixture::load();
    if !has_on_demand_probe(&fixture) {
        return;
    }
    let near = fixture.kernel.sources().iter().find(|info| info.source == "charge near").unwrap();
    let granularity = near.granularity_bytes;
    assert!(!fixture.kernel.is_attached(AttachWhen::NearThreshold), "it costs too much for every day");
    for round in 0..3 {
        fixture.attach(AttachWhen::NearThreshold);
        fixture.attach(AttachWhen::NearThreshold);
        let threshold_bytes = group.usage() + 64 * MIB;
        let generation = fixture.kernel.set_threshold(group.id(), above(threshold_bytes)).unwrap();
        process.step("again");
        let crossed = fixture.only_crossing(generation, &format!("round {round}"));
        assert!(
            crossed.usage >= threshold_bytes && crossed.usage <= threshold_bytes + 2 * granularity,
            "{crossed:?} for {threshold_bytes}"
        );
        process.step("give-back");

        fixture.detach(AttachWhen::NearThreshold);
        fixture.count_gross_charges(group.id());
        let before = fixture.gross_bytes(group.id());
        process.step("again");
        process.step("give-back");
        let seen = fixture.gross_bytes(group.id()) - before;
        assert!(seen < 64 * MIB, "detached, it does not run: {seen} bytes");
    }
}

/// A cgroup that its page cache fills: its usage stands still, whatever is charged to it.
struct FullPageCache {
    node: Cgroup,
    _pod: Cgroup,
    process: Stepper,
}

const LIMIT: u64 = 256 * MIB;

impl FullPageCache {
    fn new() -> Self {
        let node = Cgroup::new();
        node.limit(LIMIT);
        let pod = node.child("pod");
        let mut process = Stepper::with_memory(&pod, 8);
        process.step("cache 400");
        assert!(node.usage() > LIMIT - 4 * MIB, "{} of {LIMIT}", node.usage());
        Self { node, _pod: pod, process }
    }
}

#[test]
fn growth_that_displaces_page_cache_is_seen_near_a_threshold() {
    need_bpf!();
    let FullPageCache { node, _pod, mut process } = FullPageCache::new();
    let bystander = Cgroup::new();
    let mut fixture = Fixture::load();
    if !has_on_demand_probe(&fixture) {
        return;
    }
    let reported = |fixture: &mut Fixture, process: &mut Stepper, growth: [u64; 2]| {
        let generation = fixture.kernel.set_threshold(node.id(), above(node.usage() + 48 * MIB)).unwrap();
        let other = fixture.kernel.set_threshold(bystander.id(), above(bystander.usage() + MIB)).unwrap();
        let crossings = growth.map(|grown| {
            process.step(&format!("touch {grown}"));
            let crossings = fixture.crossings(generation);
            assert!(crossings.iter().all(|crossed| crossed.usage <= LIMIT), "{crossings:?}");
            crossings.len()
        });
        assert_eq!(fixture.crossings(other), [], "nothing was taken of that one");
        crossings
    };
    assert_eq!(reported(&mut fixture, &mut process, [32, 32]), [0, 0], "usage alone does not show it");
    fixture.attach(AttachWhen::NearThreshold);
    assert_eq!(reported(&mut fixture, &mut process, [32, 32]), [0, 1], "at the threshold, and once");
}

#[test]
fn reclaim_during_a_sample_counts_towards_the_threshold() {
    need_bpf!();
    let FullPageCache { node, _pod, mut process } = FullPageCache::new();
    let mut fixture = Fixture::load();
    if !has_on_demand_probe(&fixture) {
        return;
    }
    fixture.attach(AttachWhen::NearThreshold);
    let far = above(LIMIT + 512 * MIB);
    for (counts, expected) in [(true, 1), (false, 0)] {
        fixture.kernel.set_threshold(node.id(), far).unwrap();
        let since = fixture.kernel.read_threshold(node.id()).filter(|_| counts);
        process.step("touch 28");
        let threshold = above(node.usage() + 48 * MIB);
        let generation = fixture.kernel.set_threshold_since(node.id(), threshold, since).unwrap();
        process.step("touch 28");
        assert_eq!(fixture.crossings(generation).len(), expected, "counted: {counts}");
    }
}
