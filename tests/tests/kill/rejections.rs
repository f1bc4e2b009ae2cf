//! Targets that the killer rejects, and why.

use eviction_core::progress::KillRejection;
use eviction_kill::{CgroupDirs, KillTarget};
use tests::process::is_alive;

use crate::fixture::{Fixture, dirs_of, hold_ignoring_sigterm, steps, target};

#[test]
fn targets_not_below_the_nodes_root_are_rejected() {
    let fixture = Fixture::new("inside");
    let outside = Fixture::new("outside");
    let (pod, container) = outside.pod(1);
    let bystander = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    let rejected_path = |result: Result<(), KillRejection>| match result {
        Err(KillRejection::NotAPod { what }) => what,
        other => panic!("{other:?}"),
    };
    let message = rejected_path(killer.begin(target(&pod)));
    assert!(message.contains("does not lie below the node's root"), "{message}");
    // Neither by a path around the root, nor the node itself.
    let around = |dirs: CgroupDirs| {
        let relative = format!("../../{}", pod.path().display());
        let memory = dirs.memory.join("kubepods").join(relative);
        CgroupDirs { memory, ..CgroupDirs::default() }
    };
    fixture.subtree.group("kubepods").unwrap();
    let roundabout = around(dirs_of(fixture.subtree.root()));
    assert!(roundabout.memory.exists());
    rejected_path(killer.begin(KillTarget { groups: vec![roundabout], ..target(&pod) }));
    rejected_path(killer.begin(target(fixture.subtree.root())));
    assert!(is_alive(bystander.pid()));
    fixture.end(killer);
    outside.subtree.remove().unwrap();
}

#[test]
fn a_cgroup_that_replaced_the_target_is_rejected() {
    let fixture = Fixture::new("replaced");
    let (pod, _) = fixture.pod(1);
    let id = |dirs: &CgroupDirs| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(&dirs.memory).unwrap().ino()
    };
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    let decided = KillTarget { groups: vec![dirs], ..target(&pod) };
    pod.destroy().unwrap();
    let mut killer = fixture.killer();
    assert_eq!(killer.begin(decided.clone()), Err(KillRejection::Empty));
    let (pod, container) = fixture.pod(1);
    let bystander = hold_ignoring_sigterm(&container);
    let error = killer.begin(decided.clone()).unwrap_err();
    assert!(error.to_string().contains("was replaced after the decision"), "{error}");
    assert!(is_alive(bystander.pid()));
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    assert_eq!(steps(&killer.kill(KillTarget { groups: vec![dirs], ..decided })), ["kill", "terminated"]);
    fixture.end(killer);
}

#[test]
fn a_pod_without_processes_is_rejected() {
    let fixture = Fixture::new("empty");
    let (pod, _) = fixture.pod(1);
    let mut killer = fixture.killer();
    assert_eq!(killer.begin(target(&pod)), Err(KillRejection::Empty));
    fixture.end(killer);
}
