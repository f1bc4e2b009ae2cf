//! The dense hook, near a line.

use eviction_bpf::AttachWhen;

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf, report_skip};
use crate::groups::Cgroup;

/// False, and said, where there is no such hook.
fn has_dense_hook(fixture: &Fixture) -> bool {
    let every = fixture.kernel.charge().unwrap().sees_every_charge;
    if every {
        report_skip("this kernel shows every charge without a dense hook");
    }
    !every
}

#[test]
fn near_a_line_growth_is_seen_where_page_tables_are_there_already() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 128");
    process.step("give-back");
    let mut fixture = Fixture::load();
    if !has_dense_hook(&fixture) {
        return;
    }
    let near = fixture.kernel.sources().iter().find(|info| info.source == "charge near").unwrap();
    let grain = near.granularity_bytes;
    assert!(!fixture.kernel.is_attached(AttachWhen::NearThreshold), "it costs too much for every day");
    for round in 0..3 {
        fixture.attach(AttachWhen::NearThreshold);
        fixture.attach(AttachWhen::NearThreshold);
        let line = group.usage() + 64 * MIB;
        let armed = fixture.kernel.set_threshold(group.id(), above(line)).unwrap();
        process.step("again");
        let crossings = fixture.crossings(armed);
        let [crossed] = crossings.as_slice() else {
            panic!("one crossing in round {round}, not {crossings:?}");
        };
        assert!(crossed.usage >= line && crossed.usage <= line + 2 * grain, "{crossed:?} for {line}");
        process.step("give-back");

        fixture.detach(AttachWhen::NearThreshold);
        let mut leaves = Vec::new();
        fixture.kernel.take_charged(&mut leaves).unwrap();
        process.step("again");
        process.step("give-back");
        fixture.kernel.take_charged(&mut leaves).unwrap();
        let fired: u64 = leaves.iter().filter(|leaf| leaf.id == group.id()).map(|leaf| leaf.fired).sum();
        assert!(fired < 128 * MIB / grain / 2, "detached, it looks no more: {fired} times");
    }
}

/// A group that its page cache fills: whatever is charged to it, its usage stands still.
struct Full {
    node: Cgroup,
    _pod: Cgroup,
    process: Stepper,
}

const LIMIT: u64 = 256 * MIB;

impl Full {
    fn new() -> Self {
        let node = Cgroup::new();
        node.limit(LIMIT);
        let pod = node.child("pod");
        let mut process = Stepper::start(&pod);
        process.step("touch 8");
        process.step("cache 400");
        assert!(node.usage() > LIMIT - 4 * MIB, "{} of {LIMIT}", node.usage());
        Self { node, _pod: pod, process }
    }
}

#[test]
fn near_a_line_growth_is_seen_where_page_cache_makes_room() {
    need_bpf!();
    let Full { node, _pod, mut process } = Full::new();
    let beside = Cgroup::new();
    let mut fixture = Fixture::load();
    if !has_dense_hook(&fixture) {
        return;
    }
    let reported = |fixture: &mut Fixture, process: &mut Stepper, growth: [u64; 2]| {
        let armed = fixture.kernel.set_threshold(node.id(), above(node.usage() + 48 * MIB)).unwrap();
        let other = fixture.kernel.set_threshold(beside.id(), above(beside.usage() + MIB)).unwrap();
        let crossings = growth.map(|grown| {
            process.step(&format!("touch {grown}"));
            let crossings = fixture.crossings(armed);
            assert!(crossings.iter().all(|crossed| crossed.usage <= LIMIT), "{crossings:?}");
            crossings.len()
        });
        assert_eq!(fixture.crossings(other), [], "nothing was taken of that one");
        crossings
    };
    assert_eq!(reported(&mut fixture, &mut process, [32, 32]), [0, 0], "usage alone does not tell");
    fixture.attach(AttachWhen::NearThreshold);
    assert_eq!(reported(&mut fixture, &mut process, [32, 32]), [0, 1], "at the line, and once");
}

#[test]
fn what_reclaim_takes_while_a_reading_is_made_counts() {
    need_bpf!();
    let Full { node, _pod, mut process } = Full::new();
    let mut fixture = Fixture::load();
    if !has_dense_hook(&fixture) {
        return;
    }
    fixture.attach(AttachWhen::NearThreshold);
    let far = above(LIMIT + 512 * MIB);
    for (counts, expected) in [(true, 1), (false, 0)] {
        fixture.kernel.set_threshold(node.id(), far).unwrap();
        let since = fixture.kernel.gross_charge(node.id()).filter(|_| counts);
        process.step("touch 28");
        let level = above(node.usage() + 48 * MIB);
        let armed = fixture.kernel.set_threshold_since(node.id(), level, since).unwrap();
        process.step("touch 28");
        assert_eq!(fixture.crossings(armed).len(), expected, "counted: {counts}");
    }
}
