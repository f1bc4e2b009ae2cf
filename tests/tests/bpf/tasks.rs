//! Forks and exits per cgroup.

use crate::rig::{Cgroup, Rig, Stepper, need_bpf};

#[test]
fn forks_and_exits_are_counted_exactly() {
    need_bpf!();
    let (ours, other) = (Cgroup::new(), Cgroup::new());
    let mut process = Stepper::start(&ours);
    let bystander = Stepper::start(&other);
    process.step("forks 1");
    let rig = Rig::load();
    let before = rig.kernel.task_count(ours.id()).unwrap();
    let all = rig.kernel.lost().unwrap();
    process.step("forks 200");
    process.step("threads 30");
    // A thread is joined before it has quite ended.
    process.end();

    let count = rig.kernel.task_count(ours.id()).unwrap();
    assert_eq!(before, Default::default());
    assert_eq!(count.process_forks, 200);
    assert_eq!(count.forks, 230);
    assert_eq!(count.process_exits, 201, "the process itself ended, too");
    assert_eq!(count.exits, 231);
    assert_eq!(rig.kernel.task_count(other.id()).unwrap(), Default::default());
    let after = rig.kernel.lost().unwrap();
    assert!(after.forks - all.forks >= 230, "the whole machine counts them as well");
    assert!(after.exits - all.exits >= 231);

    let mut counts = Vec::new();
    rig.kernel.task_counts(&mut counts).unwrap();
    assert!(counts.contains(&(ours.id(), count)));
    drop(bystander);
}

#[test]
fn the_counts_of_a_removed_cgroup_are_gone() {
    need_bpf!();
    let group = Cgroup::new();
    let id = group.id();
    let mut process = Stepper::start(&group);
    let rig = Rig::load();
    process.step("forks 3");
    assert_eq!(rig.kernel.task_count(id).unwrap().process_forks, 3);
    process.end();
    group.remove();
    assert_eq!(rig.kernel.task_count(id).unwrap(), Default::default());
}
