//! What counts as growth: not memory of another process, page cache, or growth before the sample.

use super::*;

#[test]
fn a_process_that_grows_only_its_page_cache_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, order) = node.start_and_arm(&node.victim);
    process.step("cache 160");
    assert!(node.root.usage() > order.max_working_set.unwrap(), "the page cache has crossed the threshold");
    // These page faults make the probes check the process now.
    process.step("touch 4");
    assert_not_killed(&mut fixture, "not_grown");
}

#[test]
fn a_process_with_little_growth_of_its_own_is_not_killed() {
    need_bpf!();
    let node = Node::new();
    let mut small = Stepper::start(&node.victim);
    let mut big = Stepper::start(&node.other);
    small.step("touch 8");
    big.step("touch 8");
    let mut fixture = fixture();
    let order = node.order(&mut fixture);
    fixture.kernel.arm_kill(&order).unwrap();
    big.step(TOUCH_BEYOND_HEADROOM);
    small.step("touch 16");
    assert_not_killed(&mut fixture, "not_grown");
}

/// Lets the victim grow while another process frees much, so that usage stays where it was. Asserts that the victim
/// is not killed.
fn grow_while_another_frees(change: impl FnOnce(ArmedOrder) -> ArmedOrder) {
    let node = Node::new();
    let mut growing = Stepper::start(&node.victim);
    let mut freeing = Stepper::start(&node.other);
    growing.step("touch 8");
    freeing.step("touch 256");
    let mut fixture = fixture();
    let order = change(node.order(&mut fixture));
    fixture.kernel.arm_kill(&order).unwrap();
    // The rise of usage counts from the first charge on the node, which on a real machine comes at once.
    growing.step("touch 1");
    freeing.step("free");
    growing.step("touch 96");
    assert_not_killed(&mut fixture, "usage_not_grown");
}

#[test]
fn memory_freed_after_the_sample_adds_to_the_headroom() {
    need_bpf!();
    grow_while_another_frees(|order| ArmedOrder { max_working_set: None, ..order });
}

#[test]
fn memory_freed_by_others_is_not_mistaken_for_page_cache() {
    need_bpf!();
    grow_while_another_frees(|order| ArmedOrder {
        max_working_set: None,
        room: Some(0),
        still_until_ns: u64::MAX,
        ..order
    });
}

/// Lets a process grow while its page cache fills the `limited` group of the node, so that usage stands still.
/// Asserts that the process is killed if `expects_kill` is set, and else is not.
fn grow_with_the_cache_full(
    step: &str,
    limited: impl FnOnce(&Node) -> &Cgroup,
    change: impl FnOnce(ArmedOrder) -> ArmedOrder,
    expects_kill: bool,
) -> Fixture {
    let node = Node::new();
    limited(&node).limit(256 * MIB);
    let mut process = Stepper::with_memory(&node.victim, 8);
    process.step("cache 400");
    let mut fixture = fixture();
    let order = change(node.order(&mut fixture));
    fixture.kernel.arm_kill(&order).unwrap();
    process.send(step);
    if expects_kill {
        assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
        fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    } else {
        assert_eq!(process.answer(), "ok");
        assert_not_killed(&mut fixture, "usage_not_grown");
    }
    fixture
}

#[test]
fn a_full_page_cache_allows_kills_only_while_the_sample_is_recent() {
    need_bpf!();
    for is_recent in [true, false] {
        // Clean and inactive pages are no part of the working set, and make room.
        let still_until_ns = if is_recent { u64::MAX } else { 0 };
        let change = |order| ArmedOrder { max_working_set: None, still_until_ns, ..order };
        let fixture = grow_with_the_cache_full("touch 96", |node| &node.root, change, is_recent);
        assert!(fixture.events.kernel_kills.iter().all(|kill| kill.usage <= 256 * MIB), "usage stood still");
    }
}

/// For a huge page, reclaim may free more than the page takes: then usage stands a little below the limit.
#[test]
fn a_process_that_takes_huge_pages_is_killed_with_a_full_page_cache() {
    need_bpf!();
    // Where the kernel keeps pages by generations, reclaim frees more at a time, and the kill comes one huge page
    // later; elsewhere that is rare.
    let generations = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled");
    let may_be_later = if generations.is_ok_and(|mask| mask.trim() != "0x0000") { 4 } else { 1 };
    let mut later = 0;
    for _ in 0..4 {
        let change = |order| ArmedOrder { max_working_set: None, still_until_ns: u64::MAX, ..order };
        let fixture = grow_with_the_cache_full("touch-huge 96", |node| &node.root, change, true);
        let kill = &fixture.events.kernel_kills[0];
        assert!(kill.grown <= HEADROOM + 5 * MIB, "not at the huge page after the next: {kill:?}");
        later += u32::from(kill.grown > HEADROOM + 3 * MIB);
    }
    assert!(later <= may_be_later, "{later} of 4 were not at the next huge page");
}

/// The machine has no limit at which its usage stands still: there the free memory shows whether cache makes room.
#[test]
fn without_a_limit_a_process_is_killed_only_if_no_memory_is_free() {
    need_bpf!();
    for (room, expects_kill) in [(Some(0), true), (Some(16 * MIB), false), (None, false)] {
        let change = |order| ArmedOrder { max_working_set: None, room, still_until_ns: u64::MAX, ..order };
        grow_with_the_cache_full("touch 96", |node| &node.victim, change, expects_kill);
    }
}

/// An agent that is stopped between a sample and its kill order leaves the order of the sample before armed.
#[test]
fn a_kill_order_is_carried_out_after_the_next_sample_is_marked() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    fixture.kernel.mark_sample(node.root.id()).unwrap();
    process.send(TOUCH_BEYOND_HEADROOM);
    assert_eq!(process.ended_by(), Some(9), "{:?}", fixture.kernel.suppressed().unwrap());
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert!(fixture.events.kernel_kills[0].grown > HEADROOM, "{:?}", fixture.events.kernel_kills);
}

#[test]
fn growth_counts_from_the_sample_of_the_kill_order() {
    need_bpf!();
    let node = Node::new();
    let mut process = Stepper::with_memory(&node.victim, 8);
    let mut fixture = fixture();
    let first = node.order(&mut fixture);
    fixture.kernel.arm_kill(&first).unwrap();
    process.step("touch 32");
    // Another sample, with as much headroom as before.
    let second = node.order(&mut fixture);
    fixture.kernel.arm_kill(&second).unwrap();
    process.step("touch 32");
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, [], "64 MiB in all, but 32 since the sample");
    // The next sample is marked, and the kill order of the one before is still armed.
    fixture.kernel.mark_sample(node.root.id()).unwrap();
    process.send(TOUCH_BEYOND_HEADROOM);
    assert_eq!(process.ended_by(), Some(9));
    fixture.wait("the record", |reported| !reported.kernel_kills.is_empty());
    assert!(
        fixture.events.kernel_kills[0].usage < second.max_working_set.unwrap() + 3 * MIB,
        "{:?}",
        fixture.events.kernel_kills
    );
}

#[test]
fn short_lived_processes_do_not_count_as_growth() {
    need_bpf!();
    let node = Node::new();
    let (mut process, mut fixture, _) = node.start_and_arm(&node.victim);
    process.step("touch 40");
    process.step("forks 20");
    fixture.drain();
    assert_eq!(fixture.events.kernel_kills, []);
}
