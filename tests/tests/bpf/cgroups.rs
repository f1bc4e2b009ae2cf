//! Cgroups made and removed; the ring when it is full.

use eviction_bpf::{Counter, LoadOptions};

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf, wait_until};
use crate::groups::Cgroup;

#[test]
fn a_cgroup_is_reported_when_it_is_made_and_when_it_is_removed() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let group = Cgroup::new();
    let child = group.child("kubepods-burstable.slice");
    let id = child.id();
    fixture.drain();
    let made: Vec<_> = fixture.events.made.iter().filter(|change| change.id == id).collect();
    assert_eq!(made.len(), 1, "one record, though each v1 hierarchy could have one");
    child.remove();
    fixture.drain();
    let gone: Vec<_> = fixture.events.gone.iter().filter(|change| change.id == id).collect();
    assert_eq!(gone.len(), 1);
}

#[test]
fn a_full_ring_is_counted_and_a_crossing_comes_when_there_is_room_again() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 1");
    let mut fixture = Fixture::with(&LoadOptions { ring_bytes: 1, ..LoadOptions::default() });
    for round in 0..100 {
        group.child(&format!("g{round}")).remove();
    }
    let armed = fixture.kernel.set_threshold(group.id(), above(8 * MIB));
    process.step("touch 32");
    let lost = fixture.kernel.lost().unwrap();
    assert!(lost.get(Counter::LostCgroupCreated) > 0 && lost.get(Counter::LostCgroupRemoved) > 0, "{lost:?}");
    assert!(lost.get(Counter::LostThresholdCrossed) > 0, "{lost:?}");
    assert_eq!(fixture.crossings(armed.as_ref().copied().unwrap()), []);
    process.step("touch 32");
    assert_eq!(fixture.crossings(armed.unwrap()).len(), 1);

    // Cgroups of other tests come and go meanwhile; in a quiet moment the sum is exact.
    wait_until("every record to be read or counted as lost", || {
        let lost = fixture.kernel.lost().unwrap();
        fixture.drain();
        lost.get(Counter::Records) == fixture.events.events + lost.records_lost()
    });
}
