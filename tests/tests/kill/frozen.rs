//! Frozen cgroups.

use std::time::Duration;

use eviction_core::progress::{KillProgress, UnkillableReason};
use tests::mounts::Hierarchy;
use tests::process::{is_alive, wait_until};

use crate::fixture::{
    Fixture, assert_killed, dirs_of, ended_by, hold_ignoring_sigterm, process_cgroup, soft, steps, target,
};

#[test]
fn a_frozen_pod_is_killed() {
    let fixture = Fixture::new("frozen");
    let (pod, container) = fixture.pod(1);
    let mut victim = hold_ignoring_sigterm(&container);
    pod.freeze(true).unwrap();
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(target(&pod))), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

#[test]
fn a_frozen_container_is_killed() {
    let fixture = Fixture::new("frozen-below");
    let (pod, container) = fixture.pod(1);
    let nested = container.group("nested").unwrap();
    let mut victims = [
        hold_ignoring_sigterm(&process_cgroup(&container)),
        hold_ignoring_sigterm(&nested),
        hold_ignoring_sigterm(&process_cgroup(&pod)),
    ];
    nested.freeze(true).unwrap();
    container.freeze(true).unwrap();
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(soft(&pod, Duration::from_millis(1)))), ["term", "kill", "terminated"]);
    assert_killed(&mut victims);
    fixture.end(killer);
}

#[test]
fn a_pod_is_not_frozen_after_sigterm() {
    let fixture = Fixture::new("thaws");
    let (pod, container) = fixture.pod(1);
    let victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(soft(&pod, Duration::from_secs(3600)));
    let (dir, file, thawed) = match pod.dir(Hierarchy::Freezer) {
        Some(dir) => (dir, "freezer.state", "THAWED"),
        None => (pod.dir(Hierarchy::Unified).unwrap(), "cgroup.freeze", "0"),
    };
    assert_eq!(std::fs::read_to_string(dir.join(file)).unwrap().trim(), thawed);
    assert!(is_alive(victim.pid()));
    assert_eq!(killer.stop(), [KillProgress::Abandoned]);
    fixture.subtree.remove().unwrap();
}

#[test]
fn processes_frozen_by_an_ancestor_are_reported_as_remaining() {
    let fixture = Fixture::new("frozen-above");
    if fixture.subtree.root().dir(Hierarchy::Freezer).is_none() {
        tests::skip!("frozen groups of cgroup v2 can be killed");
    }
    let (pod, container) = fixture.pod(1);
    let mut victim = hold_ignoring_sigterm(&container);
    let (class, mut killer) = fixture.frozen_class_and_killer();
    let updates = killer.kill(target(&pod));
    assert_eq!(steps(&updates), ["kill", "processes_remaining"]);
    let KillProgress::ProcessesRemaining { processes, unreachable: 0, unreadable_groups: 0 } =
        &updates[1].progress
    else {
        panic!("{updates:?}");
    };
    assert_eq!(*processes, [(victim.pid(), UnkillableReason::Frozen)].into());
    assert_eq!(pod.pids_limit().unwrap(), "max");
    // The signal is pending until the process is thawed.
    class.freeze(false).unwrap();
    wait_until("the process to end", || !is_alive(victim.pid())).unwrap();
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

#[test]
fn a_frozen_pod_is_thawed_on_drop_or_when_the_next_killer_starts() {
    let fixture = Fixture::new("freezes");
    let (_, container) = fixture.pod(1);
    let victim = hold_ignoring_sigterm(&container);
    let groups = [dirs_of(&container)];
    let mut dry = fixture.dry_killer();
    assert!(dry.executor.freeze(&groups).unwrap().is_none());
    assert!(!container.is_frozen().unwrap());
    drop(dry);
    let mut killer = fixture.killer();
    let frozen = killer.executor.freeze(&groups).unwrap().unwrap();
    assert!(container.is_frozen().unwrap());
    drop(frozen);
    assert!(!container.is_frozen().unwrap());
    // As by SIGKILL: nothing is written back.
    std::mem::forget(killer.executor.freeze(&groups).unwrap().unwrap());
    drop(killer);
    assert!(container.is_frozen().unwrap());
    drop(fixture.killer());
    assert!(!container.is_frozen().unwrap());
    assert!(is_alive(victim.pid()));
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_group_outside_the_node_is_not_frozen() {
    let (fixture, outside) = (Fixture::new("freezes-inside"), Fixture::new("freezes-outside"));
    let (_, container) = outside.pod(1);
    let _bystander = hold_ignoring_sigterm(&container);
    let error = fixture.killer().executor.freeze(&[dirs_of(&container)]).unwrap_err();
    assert!(error.to_string().contains("does not lie below the node's root"), "{error}");
    assert!(!container.is_frozen().unwrap());
    fixture.subtree.remove().unwrap();
    outside.subtree.remove().unwrap();
}
