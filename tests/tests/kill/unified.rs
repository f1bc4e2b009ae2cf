//! Version 2: on a hybrid machine the unified hierarchy stands in for a node that has no other.

use std::time::Duration;

use eviction_core::progress::KillProgress;
use eviction_kill::CgroupDirs;
use eviction_kill::KillMode;
use eviction_kill::KillTarget;
use eviction_kill::KillerConfig;
use tests::cgroup::Group;
use tests::mounts::Hierarchy;
use tests::process::{HANG, is_alive};

use crate::fixture::{Acting, Fixture, LONG, ended_by, seat, soft, steps, stubborn, tame, target};

/// The group as if there were the unified hierarchy alone.
fn unified(group: &Group) -> CgroupDirs {
    let dir = group.dir(Hierarchy::Unified);
    CgroupDirs { id: None, memory: None, pids: dir.clone(), freezer: dir.clone(), unified: dir }
}

fn killer(fixture: &Fixture) -> Acting {
    let roots = unified(fixture.subtree.root());
    let config = KillerConfig { roots, ..fixture.config(KillMode::Kill) };
    fixture.try_killer(config).unwrap()
}

fn only(pod: &Group, target: KillTarget) -> KillTarget {
    KillTarget { groups: vec![unified(pod)], ..target }
}

fn has_kill(group: &Group) -> bool {
    group.dir(Hierarchy::Unified).is_some_and(|dir| dir.join("cgroup.kill").exists())
}

#[test]
fn the_kernel_kills_the_whole_group() {
    let fixture = Fixture::new("v2");
    let (pod, container) = fixture.pod(1);
    if !has_kill(&pod) {
        tests::skip!("no unified hierarchy with cgroup.kill");
    }
    let nested = container.group("nested").unwrap();
    let (_, other) = fixture.pod(10);
    let bystander = stubborn(&other);
    let mut victims = [stubborn(&seat(&pod)), stubborn(&seat(&container)), tame(&nested)];
    let mut killer = killer(&fixture);
    let outcomes = killer.kill(only(&pod, target(&pod)));
    assert_eq!(steps(&outcomes), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &outcomes[0].progress else { panic!("{outcomes:?}") };
    assert!(sum.whole_group);
    for victim in &mut victims {
        assert_eq!(ended_by(victim), Some(9));
    }
    assert!(is_alive(bystander.pid()));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn whoever_ended_with_the_group_is_seen_to() {
    let fixture = Fixture::new("v2-reaped");
    let (pod, container) = fixture.pod(1);
    if !has_kill(&pod) {
        tests::skip!("no unified hierarchy with cgroup.kill");
    }
    let mut victims: Vec<_> = (0..5).map(|_| stubborn(&container)).collect();
    let mut killer = killer(&fixture);
    let outcomes = killer.kill(only(&pod, target(&pod)));
    assert_eq!(steps(&outcomes), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &outcomes[0].progress else { panic!("{outcomes:?}") };
    assert_eq!((sum.sent, sum.whole_group), (5, true));
    assert!(matches!(outcomes[1].progress, KillProgress::Terminated { killed: 5, .. }), "{outcomes:?}");
    for victim in &mut victims {
        assert_eq!(ended_by(victim), Some(9));
        killer.reaped.recv_timeout(HANG).unwrap();
    }
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_frozen_group_ends_at_once_and_a_soft_one_is_thawed() {
    let fixture = Fixture::new("v2-frozen");
    let (pod, container) = fixture.pod(1);
    if !has_kill(&pod) {
        tests::skip!("no unified hierarchy with cgroup.kill");
    }
    let mut victim = stubborn(&container);
    let dir = pod.dir(Hierarchy::Unified).unwrap();
    let mut killer = killer(&fixture);
    killer.begin(only(&pod, soft(&pod, LONG))).unwrap();
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
    assert_eq!(std::fs::read_to_string(dir.join("cgroup.freeze")).unwrap().trim(), "0");
    std::fs::write(dir.join("cgroup.freeze"), "1").unwrap();
    killer.begin(only(&pod, target(&pod))).unwrap();
    assert_eq!(steps(&killer.wait_last()), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn processes_that_end_in_time_are_not_killed() {
    let fixture = Fixture::new("v2-soft");
    let (pod, container) = fixture.pod(1);
    if !has_kill(&pod) {
        tests::skip!("no unified hierarchy with cgroup.kill");
    }
    let mut victims = [tame(&container), tame(&seat(&pod))];
    let mut killer = killer(&fixture);
    assert_eq!(steps(&killer.kill(only(&pod, soft(&pod, Duration::from_secs(600))))), ["term", "terminated"]);
    for victim in &mut victims {
        assert_eq!(victim.process().wait().unwrap().code(), Some(0));
    }
    drop(killer);
    fixture.subtree.remove().unwrap();
}
