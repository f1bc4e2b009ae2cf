//! Who is hit and who is not.

use std::time::Duration;

use eviction_core::progress::{KillProgress, Signalled};
use tests::process::{is_alive, wait_until};

use crate::fixture::{
    Fixture, LONG, ended_by, has_group_kill, run, seat, soft, steps, stubborn, tame, target,
};

#[test]
fn everybody_in_the_pod_ends_and_nobody_outside() {
    let fixture = Fixture::new("all");
    let (pod, container) = fixture.pod(1);
    let second = pod.group("second").unwrap();
    let nested = second.group("nested/deeper").unwrap();
    let mut victims = [
        stubborn(&container),
        tame(&container),
        stubborn(&seat(&second)),
        stubborn(&nested),
        stubborn(&seat(&pod)),
    ];
    let forked = run(&nested, "forks --max 20 --rate 100000");

    // One pod's name begins with the other's; one process each sits in the groups above.
    let class = fixture.subtree.group("kubepods/burstable").unwrap();
    let similar = class.group(format!("{}0", pod.path().file_name().unwrap().display())).unwrap();
    let similar_below = similar.group("container").unwrap();
    let (_, other) = fixture.pod(2);
    let system = fixture.subtree.group("system").unwrap();
    let mut bystanders = [
        stubborn(&seat(&class)),
        stubborn(&seat(&similar)),
        stubborn(&similar_below),
        stubborn(&other),
        stubborn(&system),
        stubborn(&seat(fixture.subtree.root())),
    ];
    wait_until("20 forks", || nested.processes().len() == 22).unwrap();

    let mut killer = fixture.killer();
    let outcomes = killer.kill(target(&pod));
    assert_eq!(steps(&outcomes), ["kill", "terminated"]);
    let KillProgress::KillSent { signalled: sum, .. } = &outcomes[0].progress else { panic!("{outcomes:?}") };
    let whole_group = has_group_kill(&fixture);
    assert_eq!(sum, &Signalled { sent: 26, whole_group, ..Signalled::default() });
    assert_eq!(pod.processes(), [0_u32; 0]);
    for victim in &mut victims {
        assert_eq!(ended_by(victim), Some(9));
    }
    drop(forked);
    for bystander in &mut bystanders {
        assert!(is_alive(bystander.pid()));
    }
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn more_processes_than_a_batch() {
    let fixture = Fixture::new("many");
    let (pod, container) = fixture.pod(1);
    let mut bomb = run(&container, "--on-term ignore forks --max 300 --rate 100000");
    bomb.wait_event("forked").unwrap();
    let mut killer = fixture.killer();
    let outcomes = killer.kill(soft(&pod, Duration::from_millis(1)));
    assert_eq!(steps(&outcomes), ["term", "kill", "terminated"]);
    let KillProgress::TermSent(sum) = &outcomes[0].progress else { panic!("{outcomes:?}") };
    assert_eq!(sum, &Signalled { sent: 301, ..Signalled::default() });
    assert!(matches!(outcomes[2].progress, KillProgress::Terminated { killed: 301, .. }), "{outcomes:?}");
    assert_eq!(pod.processes(), [0_u32; 0]);
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn who_has_left_the_pod_is_let_be() {
    let fixture = Fixture::new("leaves");
    let (pod, container) = fixture.pod(1);
    let (_, other) = fixture.pod(2);
    let mut leaver = stubborn(&container);
    let mut stayer = stubborn(&container);
    let mut killer = fixture.killer();
    killer.begin(soft(&pod, Duration::from_secs(2))).unwrap();
    assert!(matches!(killer.next().progress, KillProgress::TermSent(Signalled { sent: 2, .. })));
    other.add(leaver.pid()).unwrap();
    let outcomes = killer.wait_last();
    assert_eq!(steps(&outcomes), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut stayer), Some(9));
    assert!(leaver.process().is_running().unwrap());
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn who_comes_during_the_grace_period_ends_too() {
    let fixture = Fixture::new("comes");
    let (pod, container) = fixture.pod(1);
    let _first = stubborn(&container);
    let mut killer = fixture.killer();
    killer.begin(soft(&pod, Duration::from_secs(1))).unwrap();
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
    // As a probe or `kubectl exec` does, also into a group that was not there.
    let late_group = pod.group("late").unwrap();
    let mut late = stubborn(&late_group);
    assert_eq!(steps(&killer.wait_last()), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut late), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_cgroup_that_goes_away_meanwhile_is_gone() {
    let fixture = Fixture::new("vanishes");
    let (pod, container) = fixture.pod(1);
    let victim = stubborn(&container);
    let mut killer = fixture.killer();
    assert_eq!(killer.begin(soft(&pod, LONG)), Ok(()));
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
    // As the runtime does when the pod is deleted at the same time.
    pod.destroy().unwrap();
    assert_eq!(steps(&killer.wait_last()), ["terminated"]);
    drop((victim, killer));
    fixture.subtree.remove().unwrap();
}
