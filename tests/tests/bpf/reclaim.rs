//! Time spent in memcg direct reclaim.

use std::time::Instant;

use eviction_bpf::{Counter, ReclaimTime};

use crate::fixture::{Fixture, MIB, Stepper, need_bpf, wait_until};
use crate::groups::Cgroup;

#[test]
fn reclaim_time_is_counted_only_for_a_writer_beyond_its_limit() {
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

    let reclaim_time = fixture.reclaim_time(limited.id());
    println!("{reclaim_time:?} in {wall:?}");
    assert!(reclaim_time.count > 0 && reclaim_time.ns > 0, "{reclaim_time:?}");
    // One thread cannot wait for longer than the step took.
    assert!(u128::from(reclaim_time.ns) <= wall.as_nanos(), "{reclaim_time:?} in {wall:?}");
    // The process itself reclaimed all that did not fit, except what the end of a file freed.
    assert!(reclaim_time.reclaimed * rustix::param::page_size() as u64 >= 32 * MIB, "{reclaim_time:?}");
    assert_eq!(fixture.reclaim_time(free.id()), ReclaimTime::default());
    let mut all = Vec::new();
    fixture.kernel.reclaim_times(&mut all).unwrap();
    assert!(all.iter().all(|(id, _)| *id != free.id()));
}

#[test]
fn reclaim_time_counts_for_the_waiting_cgroup_at_an_ancestors_limit() {
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
    let reclaim_time = fixture.reclaim_time(writer.id());
    assert!(
        reclaim_time.ns > 0 && u128::from(reclaim_time.ns) <= 2 * wall.as_nanos(),
        "{reclaim_time:?} in {wall:?}"
    );
    assert_eq!(fixture.reclaim_time(pod.id()), ReclaimTime::default(), "it has no process of its own");
    assert_eq!(fixture.reclaim_time(idler.id()), ReclaimTime::default());
    drop(bystander);
}

#[test]
fn a_process_killed_during_reclaim_leaves_no_map_entries() {
    need_bpf!();
    let fixture = Fixture::load();
    for _ in 0..10 {
        let group = Cgroup::new();
        group.limit(24 * MIB);
        let id = group.id();
        let mut process = Stepper::start(&group);
        process.send("write 4096");
        wait_until("the first reclaim", || fixture.reclaim_time(id).count > 0);
        process.kill();
        assert_eq!(fixture.kernel.reclaiming(id).unwrap(), 0);
        group.remove();
        assert_eq!(fixture.reclaim_time(id), ReclaimTime::default());
    }
    let lost = fixture.kernel.lost().unwrap();
    assert_eq!((lost.get(Counter::ReclaimTimeFull), lost.get(Counter::ReclaimStartFull)), (0, 0));
}
