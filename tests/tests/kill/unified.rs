//! Cgroup v2: on a hybrid machine the unified hierarchy stands in for a node that has no other.

use std::time::Duration;

use eviction_core::progress::KillProgress;
use eviction_kill::CgroupDirs;
use eviction_kill::KillTarget;
use tests::cgroup::Group;
use tests::mounts::Hierarchy;
use tests::process::{HANG, is_alive};

use crate::fixture::{
    Fixture, LONG, TestKiller, assert_killed, ended_by, hold_ignoring_sigterm, hold_until_sigterm,
    process_cgroup, soft, steps, target,
};

/// Returns the directories of a cgroup as if there were the unified hierarchy alone.
fn unified_dirs(group: &Group) -> CgroupDirs {
    let dir = group.dir(Hierarchy::Unified);
    let memory = dir.clone().unwrap();
    CgroupDirs { id: None, memory, pids: dir.clone(), freezer: dir.clone(), unified: dir }
}

fn killer(fixture: &Fixture) -> TestKiller {
    fixture.killer_in(unified_dirs(fixture.subtree.root()))
}

fn with_unified_dirs(pod: &Group, target: KillTarget) -> KillTarget {
    KillTarget { groups: vec![unified_dirs(pod)], ..target }
}

/// Creates a node with the cgroups of a pod and of its container, where the unified hierarchy has `cgroup.kill`.
fn fixture(label: &str) -> Option<(Fixture, Group, Group)> {
    let fixture = Fixture::new(label);
    let (pod, container) = fixture.pod(1);
    if pod.dir(Hierarchy::Unified).is_none_or(|dir| !dir.join("cgroup.kill").exists()) {
        tests::skip!("no unified hierarchy with cgroup.kill");
    }
    Some((fixture, pod, container))
}

#[test]
fn the_kernel_kills_the_whole_cgroup() {
    let Some((fixture, pod, container)) = fixture("v2") else { return };
    let nested = container.group("nested").unwrap();
    let (_, other) = fixture.pod(10);
    let bystander = hold_ignoring_sigterm(&other);
    let mut victims = [
        hold_ignoring_sigterm(&process_cgroup(&pod)),
        hold_ignoring_sigterm(&process_cgroup(&container)),
        hold_until_sigterm(&nested),
    ];
    let mut killer = killer(&fixture);
    let updates = killer.kill(with_unified_dirs(&pod, target(&pod)));
    assert_eq!(steps(&updates), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &updates[0].progress else { panic!("{updates:?}") };
    assert!(sum.whole_group);
    assert_killed(&mut victims);
    assert!(is_alive(bystander.pid()));
    fixture.end(killer);
}

#[test]
fn process_mrelease_is_called_for_all_processes_of_the_cgroup() {
    let Some((fixture, pod, container)) = fixture("v2-reaped") else { return };
    let mut victims: Vec<_> = (0..5).map(|_| hold_ignoring_sigterm(&container)).collect();
    let mut killer = killer(&fixture);
    let updates = killer.kill(with_unified_dirs(&pod, target(&pod)));
    assert_eq!(steps(&updates), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &updates[0].progress else { panic!("{updates:?}") };
    assert_eq!((sum.sent, sum.whole_group), (5, true));
    assert!(matches!(updates[1].progress, KillProgress::Terminated { killed: 5, .. }), "{updates:?}");
    for victim in &mut victims {
        assert_eq!(ended_by(victim), Some(9));
        killer.mrelease_results.recv_timeout(HANG).unwrap();
    }
    fixture.end(killer);
}

#[test]
fn a_frozen_cgroup_is_killed_and_a_soft_kill_leaves_it_thawed() {
    let Some((fixture, pod, container)) = fixture("v2-frozen") else { return };
    let mut victim = hold_ignoring_sigterm(&container);
    let dir = pod.dir(Hierarchy::Unified).unwrap();
    let mut killer = killer(&fixture);
    killer.begin_with_sigterm(with_unified_dirs(&pod, soft(&pod, LONG)));
    assert_eq!(std::fs::read_to_string(dir.join("cgroup.freeze")).unwrap().trim(), "0");
    std::fs::write(dir.join("cgroup.freeze"), "1").unwrap();
    killer.begin(with_unified_dirs(&pod, target(&pod))).unwrap();
    assert_eq!(steps(&killer.wait_last()), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

#[test]
fn processes_that_end_in_time_are_not_killed() {
    let Some((fixture, pod, container)) = fixture("v2-soft") else { return };
    let mut victims = [hold_until_sigterm(&container), hold_until_sigterm(&process_cgroup(&pod))];
    let mut killer = killer(&fixture);
    assert_eq!(
        steps(&killer.kill(with_unified_dirs(&pod, soft(&pod, Duration::from_secs(600))))),
        ["term", "terminated"]
    );
    for victim in &mut victims {
        assert_eq!(victim.process().wait().unwrap().code(), Some(0));
    }
    fixture.end(killer);
}
