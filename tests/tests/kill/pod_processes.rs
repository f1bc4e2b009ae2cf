//! Which processes the killer signals, and which it does not.

use std::time::Duration;

use eviction_core::progress::{KillProgress, Signalled};
use tests::process::{is_alive, wait_until};

use crate::fixture::{
    Fixture, LONG, assert_killed, ended_by, has_cgroup_kill, hold_ignoring_sigterm, hold_until_sigterm,
    process_cgroup, run, soft, steps, target,
};

#[test]
fn all_processes_of_the_pod_are_killed_and_none_outside() {
    let fixture = Fixture::new("all");
    let (pod, container) = fixture.pod(1);
    let second = pod.group("second").unwrap();
    let nested = second.group("nested/deeper").unwrap();
    let mut victims = [
        hold_ignoring_sigterm(&container),
        hold_until_sigterm(&container),
        hold_ignoring_sigterm(&process_cgroup(&second)),
        hold_ignoring_sigterm(&nested),
        hold_ignoring_sigterm(&process_cgroup(&pod)),
    ];
    let forked = run(&nested, "forks --max 20 --rate 100000");

    // One pod's name begins with the other's; each of the cgroups above has one process.
    let class = fixture.subtree.group("kubepods/burstable").unwrap();
    let similar = class.group(format!("{}0", pod.path().file_name().unwrap().display())).unwrap();
    let similar_below = similar.group("container").unwrap();
    let (_, other) = fixture.pod(2);
    let system = fixture.subtree.group("system").unwrap();
    let mut bystanders = [
        hold_ignoring_sigterm(&process_cgroup(&class)),
        hold_ignoring_sigterm(&process_cgroup(&similar)),
        hold_ignoring_sigterm(&similar_below),
        hold_ignoring_sigterm(&other),
        hold_ignoring_sigterm(&system),
        hold_ignoring_sigterm(&process_cgroup(fixture.subtree.root())),
    ];
    wait_until("20 forks", || nested.processes().len() == 22).unwrap();

    let mut killer = fixture.killer();
    let updates = killer.kill(target(&pod));
    assert_eq!(steps(&updates), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &updates[0].progress else { panic!("{updates:?}") };
    let whole_group = has_cgroup_kill(&fixture);
    assert_eq!(sum, &Signalled { sent: 26, whole_group, ..Signalled::default() });
    assert_eq!(pod.processes(), [0_u32; 0]);
    assert_killed(&mut victims);
    drop(forked);
    for bystander in &mut bystanders {
        assert!(is_alive(bystander.pid()));
    }
    fixture.end(killer);
}

#[test]
fn a_pod_with_more_processes_than_a_batch_is_killed() {
    let fixture = Fixture::new("many");
    let (pod, container) = fixture.pod(1);
    let mut bomb = run(&container, "--on-term ignore forks --max 300 --rate 100000");
    bomb.wait_event("forked").unwrap();
    let mut killer = fixture.killer();
    let updates = killer.kill(soft(&pod, Duration::from_millis(1)));
    assert_eq!(steps(&updates), ["term", "kill", "terminated"]);
    let KillProgress::TermSent(sum) = &updates[0].progress else { panic!("{updates:?}") };
    assert_eq!(sum, &Signalled { sent: 301, ..Signalled::default() });
    assert!(matches!(updates[2].progress, KillProgress::Terminated { killed: 301, .. }), "{updates:?}");
    assert_eq!(pod.processes(), [0_u32; 0]);
    fixture.end(killer);
}

#[test]
fn a_process_that_left_the_pod_is_not_killed() {
    let fixture = Fixture::new("leaves");
    let (pod, container) = fixture.pod(1);
    let (_, other) = fixture.pod(2);
    let mut moved = hold_ignoring_sigterm(&container);
    let mut remaining = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin(soft(&pod, Duration::from_secs(2))).unwrap();
    assert!(matches!(killer.next().progress, KillProgress::TermSent(Signalled { sent: 2, .. })));
    other.add(moved.pid()).unwrap();
    let updates = killer.wait_last();
    assert_eq!(steps(&updates), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut remaining), Some(9));
    assert!(moved.process().is_running().unwrap());
    fixture.end(killer);
}

#[test]
fn a_process_that_joins_during_the_grace_period_is_killed() {
    let fixture = Fixture::new("comes");
    let (pod, container) = fixture.pod(1);
    let _first = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(soft(&pod, Duration::from_secs(1)));
    // As a probe or `kubectl exec` does, also into a cgroup that did not exist before.
    let late_group = pod.group("late").unwrap();
    let mut late = hold_ignoring_sigterm(&late_group);
    assert_eq!(steps(&killer.wait_last()), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut late), Some(9));
    fixture.end(killer);
}

#[test]
fn a_pod_removed_during_the_grace_period_counts_as_terminated() {
    let fixture = Fixture::new("vanishes");
    let (pod, container) = fixture.pod(1);
    let victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(soft(&pod, LONG));
    // As the runtime does when the pod is deleted at the same time.
    pod.destroy().unwrap();
    assert_eq!(steps(&killer.wait_last()), ["terminated"]);
    fixture.end((victim, killer));
}
