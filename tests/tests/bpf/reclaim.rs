//! Time spent in memcg direct reclaim.

use std::time::Instant;

use eviction_bpf::{Counter, ReclaimTime};

use crate::fixture::{Fixture, MIB, Stepper, need_bpf, wait_until};
use crate::groups::Cgroup;

#[test]
fn who_writes_beyond_a_limit_waits_in_reclaim_and_who_has_none_does_not() {
    need_bpf!();
    let (limited, free) = (Cgroup::new(), Cgroup::new());
    let mut bounded = Stepper::start(&limited);
    let mut unbounded = Stepper::start(&free);
    limited.limit(24 * MIB);
    let fixture = Fixture::load();
    let start = Instant::now();
    bounded.step("write 96");
    let wall = start.elapsed();
    unbounded.step("write 96");

    let stall = fixture.kernel.reclaim_time(limited.id()).unwrap();
    println!("{stall:?} in {wall:?}");
    assert!(stall.count > 0 && stall.ns > 0, "{stall:?}");
    // One thread cannot wait for longer than it took.
    assert!(u128::from(stall.ns) <= wall.as_nanos(), "{stall:?} in {wall:?}");
    // All that did not fit was taken back by whoever needed the room, but what a file's end freed.
    assert!(stall.reclaimed >= 32 * MIB, "{stall:?}");
    assert_eq!(fixture.kernel.reclaim_time(free.id()).unwrap(), ReclaimTime::default());
    let mut all = Vec::new();
    fixture.kernel.reclaim_times(&mut all).unwrap();
    assert!(all.contains(&(limited.id(), stall)));
    assert!(all.iter().all(|(id, _)| *id != free.id()));
}

#[test]
fn the_time_is_theirs_who_wait_also_when_the_limit_is_of_a_group_above() {
    need_bpf!();
    let pod = Cgroup::new();
    let (writer, idler) = (pod.child("writer"), pod.child("idler"));
    pod.limit(24 * MIB);
    let fixture = Fixture::load();
    let mut processes = [Stepper::start(&writer), Stepper::start(&writer)];
    let bystander = Stepper::start(&idler);
    let start = Instant::now();
    processes.iter_mut().for_each(|process| process.send("write 64"));
    processes.iter_mut().for_each(|process| assert_eq!(process.answer(), "ok"));
    let wall = start.elapsed();
    let stall = fixture.kernel.reclaim_time(writer.id()).unwrap();
    assert!(stall.ns > 0 && u128::from(stall.ns) <= 2 * wall.as_nanos(), "{stall:?} in {wall:?}");
    assert_eq!(
        fixture.kernel.reclaim_time(pod.id()).unwrap(),
        ReclaimTime::default(),
        "it has no process of its own"
    );
    assert_eq!(fixture.kernel.reclaim_time(idler.id()).unwrap(), ReclaimTime::default());
    drop(bystander);
}

#[test]
fn who_is_killed_while_it_reclaims_leaves_nothing_behind() {
    need_bpf!();
    let fixture = Fixture::load();
    for _ in 0..10 {
        let group = Cgroup::new();
        group.limit(24 * MIB);
        let id = group.id();
        let mut process = Stepper::start(&group);
        process.send("write 4096");
        wait_until("the first reclaim", || fixture.kernel.reclaim_time(id).unwrap().count > 0);
        process.kill();
        assert_eq!(fixture.kernel.reclaiming(id).unwrap(), 0);
        group.remove();
        assert_eq!(fixture.kernel.reclaim_time(id).unwrap(), ReclaimTime::default());
    }
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!((lost.get(Counter::ReclaimTimeFull), lost.get(Counter::ReclaimStartFull)), (0, 0));
}
