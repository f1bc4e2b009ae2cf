//! What is not killed, and why.

use eviction_core::progress::KillRejection;
use eviction_kill::{CgroupDirs, KillTarget};
use tests::process::is_alive;

use crate::fixture::{Fixture, dirs_of, steps, stubborn, target};

#[test]
fn only_what_lies_below_the_nodes_root() {
    let fixture = Fixture::new("inside");
    let outside = Fixture::new("outside");
    let (pod, container) = outside.pod(1);
    let bystander = stubborn(&container);
    let mut killer = fixture.killer();
    let refused = |result: Result<(), KillRejection>| match result {
        Err(KillRejection::NotAPod { what }) => what,
        other => panic!("{other:?}"),
    };
    let said = refused(killer.begin(target(&pod)));
    assert!(said.contains("does not lie below the node's root"), "{said}");
    // Neither by a way around, nor the node itself.
    let around = |dirs: CgroupDirs| {
        let relative = format!("../../{}", pod.path().display());
        let join = |dir: Option<std::path::PathBuf>| dir.map(|dir| dir.join("kubepods").join(&relative));
        CgroupDirs { memory: join(dirs.memory), pids: None, freezer: None, unified: None, ..dirs }
    };
    fixture.subtree.group("kubepods").unwrap();
    let roundabout = around(dirs_of(fixture.subtree.root()));
    assert!(roundabout.memory.as_ref().unwrap().exists());
    refused(killer.begin(KillTarget { groups: vec![roundabout], ..target(&pod) }));
    refused(killer.begin(target(fixture.subtree.root())));
    assert!(is_alive(bystander.pid()));
    drop(killer);
    fixture.subtree.remove().unwrap();
    outside.subtree.remove().unwrap();
}

#[test]
fn not_a_group_that_took_the_place_of_another() {
    let fixture = Fixture::new("replaced");
    let (pod, _) = fixture.pod(1);
    let id = |dirs: &CgroupDirs| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(dirs.deciding().unwrap()).unwrap().ino()
    };
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    let decided = KillTarget { groups: vec![dirs], ..target(&pod) };
    pod.destroy().unwrap();
    let mut killer = fixture.killer();
    assert_eq!(killer.begin(decided.clone()), Err(KillRejection::Empty));
    let (pod, container) = fixture.pod(1);
    let bystander = stubborn(&container);
    let refused = killer.begin(decided.clone()).unwrap_err();
    assert!(refused.to_string().contains("another one than was decided on"), "{refused}");
    assert!(is_alive(bystander.pid()));
    let dirs = dirs_of(&pod);
    let dirs = CgroupDirs { id: Some(id(&dirs)), ..dirs };
    assert_eq!(steps(&killer.kill(KillTarget { groups: vec![dirs], ..decided })), ["kill", "terminated"]);
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn not_a_pod_without_processes() {
    let fixture = Fixture::new("empty");
    let (pod, _) = fixture.pod(1);
    let mut killer = fixture.killer();
    assert_eq!(killer.begin(target(&pod)), Err(KillRejection::Empty));
    drop(killer);
    fixture.subtree.remove().unwrap();
}
