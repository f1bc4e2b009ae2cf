//! What counts as growth: not what another one's memory, page cache or the time before the sample explains.

use super::*;

#[test]
fn a_process_that_writes_files_is_never_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, order) = node.begin(&node.victim);
    process.step("cache 160");
    assert!(node.root.usage() > order.max_working_set.unwrap(), "the page cache has crossed the line");
    // Faults, so that the hooks look at it now.
    process.step("touch 4");
    assert_not_killed(&mut fixture, "not_grown");
}

#[test]
fn a_process_that_only_charges_what_others_began_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let mut small = Stepper::start(&node.victim);
    let mut big = Stepper::start(&node.other);
    small.step("touch 8");
    big.step("touch 8");
    let mut fixture = fixture();
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    big.step(TOO_MUCH);
    small.step("touch 16");
    assert_not_killed(&mut fixture, "not_grown");
}

/// Who frees much meanwhile is another: the victim's growth keeps usage where it was.
fn grow_while_another_frees(change: impl FnOnce(ArmedOrder) -> ArmedOrder) {
    let node = Node::new();
    let mut growing = Stepper::start(&node.victim);
    let mut freeing = Stepper::start(&node.other);
    growing.step("touch 8");
    freeing.step("touch 256");
    let mut fixture = fixture();
    let order = change(node.order(&mut fixture));
    fixture.kernel.arm_kill(&order).unwrap();
    // The rise counts from the first charge on the node, which on a machine comes at once.
    growing.step("touch 1");
    freeing.step("free");
    growing.step("touch 96");
    assert_not_killed(&mut fixture, "usage_not_grown");
}

#[test]
fn what_was_freed_meanwhile_adds_to_the_headroom() {
    need_bpf!();
    grow_while_another_frees(|order| ArmedOrder { max_working_set: None, ..order });
}

#[test]
fn what_others_free_is_not_taken_for_page_cache() {
    need_bpf!();
    grow_while_another_frees(|order| ArmedOrder {
        max_working_set: None,
        room: Some(0),
        still_until_ns: u64::MAX,
        ..order
    });
}

/// Its page cache fills the `limited` group of the node, so that usage stands still while it grows.
fn grow_with_the_cache_full(
    step: &str,
    limited: impl FnOnce(&Node) -> &Cgroup,
    change: impl FnOnce(ArmedOrder) -> ArmedOrder,
    hits: bool,
) -> Fixture {
    let node = Node::new();
    limited(&node).limit(256 * MIB);
    let mut process = Stepper::start(&node.victim);
    process.step("touch 8");
    process.step("cache 400");
    let mut fixture = fixture();
    let order = change(node.order(&mut fixture));
    fixture.kernel.arm_kill(&order).unwrap();
    process.send(step);
    if hits {
        assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
        fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    } else {
        assert_eq!(process.answer(), "ok");
        assert_not_killed(&mut fixture, "usage_not_grown");
    }
    fixture
}

#[test]
fn with_a_full_page_cache_it_kills_while_the_sample_is_young() {
    need_bpf!();
    for young in [true, false] {
        // What is clean and inactive is no part of the working set, and makes room.
        let still_until_ns = if young { u64::MAX } else { 0 };
        let change = |order| ArmedOrder { max_working_set: None, still_until_ns, ..order };
        let fixture = grow_with_the_cache_full("touch 96", |node| &node.root, change, young);
        assert!(fixture.events.kernel_kills.iter().all(|kill| kill.usage <= 256 * MIB), "usage stood still");
    }
}

/// For a huge page reclaim may make more free than it takes: usage stands a little below the limit then.
#[test]
fn with_a_full_page_cache_it_kills_who_takes_huge_pages() {
    need_bpf!();
    // Where pages are kept by generations reclaim frees more at a time, and it is one huge page later; elsewhere
    // that is so seldom.
    let generations = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled");
    let may_be_later = if generations.is_ok_and(|mask| mask.trim() != "0x0000") { 4 } else { 1 };
    let mut later = 0;
    for _ in 0..4 {
        let change = |order| ArmedOrder { max_working_set: None, still_until_ns: u64::MAX, ..order };
        let fixture = grow_with_the_cache_full("touch-huge 96", |node| &node.root, change, true);
        let kill = &fixture.events.kernel_kills[0];
        assert!(kill.grown <= DISTANCE + 5 * MIB, "not at the huge page after the next: {kill:?}");
        later += u32::from(kill.grown > DISTANCE + 3 * MIB);
    }
    assert!(later <= may_be_later, "{later} of 4 were not at the next huge page");
}

/// The machine has no limit at which its usage stands: there what is free says whether cache makes room.
#[test]
fn without_a_limit_it_kills_once_nothing_is_free() {
    need_bpf!();
    for (room, hits) in [(Some(0), true), (Some(16 * MIB), false), (None, false)] {
        let change = |order| ArmedOrder { max_working_set: None, room, still_until_ns: u64::MAX, ..order };
        grow_with_the_cache_full("touch 96", |node| &node.victim, change, hits);
    }
}

#[test]
fn growth_counts_from_the_sample_of_the_kill_order() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::start(&node.victim);
    process.step("touch 8");
    let mut fixture = fixture();
    let first = node.order(&mut fixture);
    fixture.kernel.arm_kill(&first).unwrap();
    process.step("touch 32");
    // Another sample, with as much left as before.
    let second = node.order(&mut fixture);
    fixture.kernel.arm_kill(&second).unwrap();
    process.step("touch 32");
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, [], "64 MiB in all, but 32 since the sample");
    // The next sample is marked, and the kill order of the one before still stands.
    fixture.kernel.mark_sample(node.root.id()).unwrap();
    process.send(TOO_MUCH);
    assert_eq!(process.ended_by(), Some(9));
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert!(
        fixture.events.kernel_kills[0].usage < second.max_working_set.unwrap() + 3 * MIB,
        "{:?}",
        fixture.events.kernel_kills
    );
}

#[test]
fn processes_that_come_and_go_have_not_grown() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.begin(&node.victim);
    process.step("touch 40");
    process.step("forks 20");
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, []);
}
