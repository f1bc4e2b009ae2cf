//! Frozen groups.

use std::time::Duration;

use eviction_core::progress::{KillProgress, UnkillableReason};
use eviction_kill::KillMode;
use tests::mounts::Hierarchy;
use tests::process::{is_alive, wait_until};

use crate::fixture::{Fixture, dirs_of, ended_by, seat, soft, steps, stubborn, target};

#[test]
fn a_frozen_pod_ends() {
    let fixture = Fixture::new("frozen");
    let (pod, container) = fixture.pod(1);
    let mut victim = stubborn(&container);
    pod.freeze(true).unwrap();
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(target(&pod))), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_frozen_container_ends() {
    let fixture = Fixture::new("frozen-below");
    let (pod, container) = fixture.pod(1);
    let nested = container.group("nested").unwrap();
    let mut victims = [stubborn(&seat(&container)), stubborn(&nested), stubborn(&seat(&pod))];
    nested.freeze(true).unwrap();
    container.freeze(true).unwrap();
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(soft(&pod, Duration::from_millis(1)))), ["term", "kill", "terminated"]);
    for victim in &mut victims {
        assert_eq!(ended_by(victim), Some(9));
    }
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn nothing_stays_frozen_after_sigterm() {
    let fixture = Fixture::new("thaws");
    let (pod, container) = fixture.pod(1);
    let victim = stubborn(&container);
    let mut killer = fixture.killer();
    killer.begin(soft(&pod, Duration::from_secs(3600))).unwrap();
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
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
fn frozen_from_above_is_reported_as_left() {
    let fixture = Fixture::new("frozen-above");
    if fixture.subtree.root().dir(Hierarchy::Freezer).is_none() {
        tests::skip!("frozen groups of cgroup v2 can be killed");
    }
    let (pod, container) = fixture.pod(1);
    let mut victim = stubborn(&container);
    let class = fixture.subtree.group("kubepods/burstable").unwrap();
    class.freeze(true).unwrap();
    let mut config = fixture.config(KillMode::Kill);
    config.kill_wait = Duration::from_millis(300);
    let mut killer = fixture.try_killer(config).unwrap();
    let outcomes = killer.kill(target(&pod));
    assert_eq!(steps(&outcomes), ["kill", "processes_remaining"]);
    let KillProgress::ProcessesRemaining { processes, unreachable: 0, unreadable_groups: 0 } =
        &outcomes[1].progress
    else {
        panic!("{outcomes:?}");
    };
    let [left] = processes.as_slice() else { panic!("{outcomes:?}") };
    assert_eq!((left.pid, left.why), (victim.pid(), UnkillableReason::Frozen));
    assert_eq!(pod.pids_limit().unwrap(), "max");
    // The signal waits for it.
    class.freeze(false).unwrap();
    wait_until("the process to end", || !is_alive(victim.pid())).unwrap();
    assert_eq!(ended_by(&mut victim), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_pod_is_frozen_until_it_is_let_go_also_by_the_agent_after_one_that_was_killed() {
    let fixture = Fixture::new("freezes");
    let (_, container) = fixture.pod(1);
    let victim = stubborn(&container);
    let groups = [dirs_of(&container)];
    let mut dry = fixture.try_killer(fixture.config(KillMode::DryRun)).unwrap();
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
    let _bystander = stubborn(&container);
    let refused = fixture.killer().executor.freeze(&[dirs_of(&container)]).unwrap_err();
    assert!(refused.to_string().contains("does not lie below the node's root"), "{refused}");
    assert!(!container.is_frozen().unwrap());
    fixture.subtree.remove().unwrap();
    outside.subtree.remove().unwrap();
}
