//! Cgroups made and removed; the ring when it is full.

use eviction_bpf::{LoadOptions, cgroup_ids::CgroupIds};

use crate::groups::{Cgroup, mount};
use crate::rig::{MIB, Rig, Stepper, above, need_bpf, wait_until};

#[test]
fn a_cgroup_is_told_when_it_is_made_and_when_it_is_removed() {
    need_bpf!();
    let mut rig = Rig::load();
    let group = Cgroup::new();
    let child = group.child("kubepods-burstable.slice");
    let (id, path) = (child.id(), child.path());
    rig.drain();
    let made: Vec<_> = rig.told.made.iter().filter(|change| change.id == id).collect();
    assert_eq!(made.len(), 1, "one record, though each v1 hierarchy could have one");
    assert_eq!((made[0].path.as_str(), made[0].cut, made[0].level), (path.as_str(), false, 2));
    child.remove();
    rig.drain();
    let gone: Vec<_> = rig.told.gone.iter().filter(|change| change.id == id).collect();
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].path, path);
}

#[test]
fn a_path_that_is_too_long_is_marked() {
    need_bpf!();
    let mut rig = Rig::load();
    let group = Cgroup::new();
    let long = "x".repeat(250);
    let (a, b) = (group.child(&long), group.child("short"));
    let inner = a.child(&long);
    let deepest = inner.child(&long);
    rig.drain();
    let of = |id| rig.told.made.iter().find(|change| change.id == id).unwrap();
    assert!(of(deepest.id()).cut);
    assert!(deepest.path().starts_with(&of(deepest.id()).path));
    assert_eq!(of(deepest.id()).path.len(), 511);
    assert!(!of(b.id()).cut);
    deepest.remove();
    inner.remove();
}

#[test]
fn ids_are_resolved_from_a_walk_and_kept_right_by_the_records() {
    need_bpf!();
    let before = Cgroup::new();
    let old = before.child("old");
    let mut rig = Rig::load();
    let mut ids = CgroupIds::read(&mount()).unwrap();
    let (old_id, old_path) = (old.id(), old.path());
    assert_eq!(ids.path(old_id).unwrap().to_str(), Some(old_path.as_str()));
    let root = eviction_bpf::cgroup_ids::read_cgroup_id(&mount()).unwrap();
    assert_eq!(ids.path(root).unwrap().to_str(), Some("/"));

    let new = before.child("new");
    let (new_id, new_path) = (new.id(), new.path());
    old.remove();
    rig.ring.drain(|event| ids.apply(&event));
    assert_eq!(ids.path(new_id).unwrap().to_str(), Some(new_path.as_str()));
    assert_eq!(ids.path(old_id), None);
}

#[test]
fn a_full_ring_is_counted_and_a_crossing_comes_when_there_is_room_again() {
    need_bpf!();
    let group = Cgroup::new();
    let mut process = Stepper::start(&group);
    process.step("touch 1");
    let mut rig = Rig::with(&LoadOptions { ring_bytes: Some(1), ..LoadOptions::default() });
    for round in 0..40 {
        group.child(&format!("g{round}")).remove();
    }
    let armed = rig.kernel.arm(group.id(), above(8 * MIB));
    process.step("touch 32");
    let lost = rig.kernel.lost().unwrap();
    assert!(lost.cgroup_made > 0 && lost.cgroup_gone > 0, "{lost:?}");
    assert!(lost.crossed > 0, "{lost:?}");
    assert_eq!(rig.crossings(armed.as_ref().copied().unwrap()), []);
    process.step("touch 32");
    assert_eq!(rig.crossings(armed.unwrap()).len(), 1);

    // Cgroups of other tests come and go meanwhile; in a quiet moment the sum is exact.
    wait_until("every record to be read or counted as lost", || {
        let lost = rig.kernel.lost().unwrap();
        rig.drain();
        lost.records == rig.told.events + lost.records_lost()
    });
}
