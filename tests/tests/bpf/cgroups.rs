//! Events about created and removed cgroups, and a full ring buffer.

use eviction_bpf::{Counter, LoadOptions};

use crate::fixture::{Fixture, MIB, Stepper, above, need_bpf};
use crate::groups::Cgroup;

#[test]
fn a_cgroup_is_reported_when_it_is_created_and_when_it_is_removed() {
    need_bpf!();
    let mut fixture = Fixture::load();
    let group = Cgroup::new();
    let child = group.child("kubepods-burstable.slice");
    let id = child.id();
    fixture.drain();
    let created: Vec<_> = fixture.events.created.iter().filter(|changed| **changed == id).collect();
    assert_eq!(created.len(), 1, "one record, though each v1 hierarchy could have one");
    child.remove();
    fixture.drain();
    let removed: Vec<_> = fixture.events.removed.iter().filter(|changed| **changed == id).collect();
    assert_eq!(removed.len(), 1);
}

#[test]
fn a_crossing_lost_to_a_full_ring_buffer_is_counted_and_repeated() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::with_memory(&group, 1);
    let mut fixture = Fixture::with(&LoadOptions { ring_bytes: 1, ..LoadOptions::default() });
    for round in 0..100 {
        group.child(&format!("g{round}")).remove();
    }
    let generation = fixture.kernel.set_threshold(group.id(), above(8 * MIB));
    process.step("touch 32");
    let lost = fixture.kernel.lost().unwrap();
    assert!(lost.get(Counter::LostCgroupCreated) > 0 && lost.get(Counter::LostCgroupRemoved) > 0, "{lost:?}");
    assert!(lost.get(Counter::LostThresholdCrossed) > 0, "{lost:?}");
    assert_eq!(fixture.crossings(generation.as_ref().copied().unwrap()), []);
    process.step("touch 32");
    assert_eq!(fixture.crossings(generation.unwrap()).len(), 1);

    // Other tests create and remove cgroups meanwhile; in a quiet moment the sum is exact.
    fixture.wait_until_all_records_are_known();
}
