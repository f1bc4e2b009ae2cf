//! Processes that fork while they are being killed.

use std::time::Duration;

use eviction_core::progress::KillProgress;
use eviction_core::signal::Resource;
use eviction_kill::CgroupDirs;
use eviction_kill::KillTarget;
use tests::process::{is_alive, wait_until};

use crate::fixture::{Fixture, LONG, run, soft, steps, stubborn, tame, target};

const BOMB: &str = "--on-term ignore forks --max 100000 --rate 100000 --bomb";

/// A bomb that has filled its limit, and goes off again whenever a process ends.
fn bomb(label: &str, kill: impl FnOnce(KillTarget) -> KillTarget) -> Vec<&'static str> {
    let fixture = Fixture::new(label);
    let (pod, container) = fixture.pod(1);
    let (_, other) = fixture.pod(10);
    pod.limit_pids(100).unwrap();
    let bystander = stubborn(&other);
    let bomb = run(&container, BOMB);
    wait_until("the bomb to fill its limit", || pod.pids().unwrap() == 100).unwrap();
    let mut killer = fixture.killer();
    let outcomes = killer.kill(kill(target(&pod)));
    assert_eq!(pod.processes(), [0_u32; 0]);
    assert_eq!(pod.pids_limit().unwrap(), "100");
    assert!(is_alive(bystander.pid()));
    drop((bomb, killer));
    fixture.subtree.remove().unwrap();
    steps(&outcomes)
}

#[test]
fn a_fork_bomb_ends() {
    let pids = |target| KillTarget { resource: Resource::Pids, ..target };
    assert_eq!(bomb("bomb-hard", pids), ["kill", "terminated"]);
    let grace = Duration::from_millis(50);
    let graceful = |target| KillTarget { grace, ..pids(target) };
    assert_eq!(bomb("bomb-grace", graceful), ["term", "kill", "terminated"]);
    let soft = |target| KillTarget { hard: false, ..graceful(target) };
    assert_eq!(bomb("bomb-soft", soft), ["term", "kill", "terminated"]);
    let memory = |target| KillTarget { hard: false, grace, ..target };
    assert_eq!(bomb("bomb-memory", memory), ["term", "kill", "terminated"]);
}

#[test]
fn a_fork_bomb_ends_also_where_forking_cannot_be_stopped() {
    // As if the pids controller were off or its files could not be written: the freezer holds the
    // bomb still while everybody in it is signalled.
    let blind = |target: KillTarget| {
        let groups = target.groups.into_iter().map(|dirs| CgroupDirs { pids: None, ..dirs });
        KillTarget { groups: groups.collect(), ..target }
    };
    assert_eq!(bomb("bomb-blind", blind), ["kill", "terminated"]);
}

#[test]
fn a_hard_threshold_stops_forking_until_the_end() {
    let fixture = Fixture::new("stops");
    let (pod, container) = fixture.pod(1);
    let _victim = stubborn(&container);
    let mut killer = fixture.killer();
    assert_eq!(pod.pids_limit().unwrap(), "max");
    killer.begin(KillTarget { grace: LONG, ..target(&pod) }).unwrap();
    // On return, not some time later.
    assert_eq!(pod.pids_limit().unwrap(), "0");
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
    // An agent that ends lets the pod go on.
    assert_eq!(killer.stop(), [KillProgress::Abandoned]);
    assert_eq!(pod.pids_limit().unwrap(), "max");
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_limit_that_somebody_sets_meanwhile_stays() {
    let fixture = Fixture::new("limit");
    let (pod, container) = fixture.pod(1);
    let _victim = stubborn(&container);
    let mut killer = fixture.killer();
    killer.begin(KillTarget { grace: Duration::from_millis(500), ..target(&pod) }).unwrap();
    pod.limit_pids(77).unwrap();
    assert_eq!(steps(&killer.wait_last()), ["term", "kill", "terminated"]);
    assert_eq!(pod.pids_limit().unwrap(), "77");
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn what_a_killed_agent_has_stopped_goes_on() {
    let fixture = Fixture::new("recovers");
    let (pod, container) = fixture.pod(1);
    let _victim = stubborn(&container);
    pod.limit_pids(50).unwrap();
    let mut killer = fixture.killer();
    killer.begin(KillTarget { grace: LONG, ..target(&pod) }).unwrap();
    // What it has noted by now is what is left of an agent that is killed at this moment.
    let logs: Vec<_> = std::fs::read_dir(fixture.run_dir.path()).unwrap().flatten().collect();
    let [log] = logs.as_slice() else { panic!("{logs:?}") };
    let noted = std::fs::read(log.path()).unwrap();
    drop(killer);
    pod.limit_pids(0).unwrap();
    std::fs::write(log.path(), &noted).unwrap();
    let killer = fixture.killer();
    assert_eq!(pod.pids_limit().unwrap(), "50");
    drop(killer);
    // And a limit that was set since is not touched.
    pod.limit_pids(60).unwrap();
    std::fs::write(log.path(), &noted).unwrap();
    drop(fixture.killer());
    assert_eq!(pod.pids_limit().unwrap(), "60");
    fixture.subtree.remove().unwrap();
}

#[test]
fn what_is_not_waited_for_is_counted() {
    let fixture = Fixture::new("zombie");
    let (pod, container) = fixture.pod(1);
    // Its parent, this test, does not wait for it yet.
    let victim = tame(&container);
    let mut killer = fixture.killer();
    let outcomes = killer.kill(soft(&pod, LONG));
    assert_eq!(steps(&outcomes), ["term", "terminated"]);
    assert_eq!(outcomes[1].progress, KillProgress::Terminated { killed: 0, unreaped: Some(1) });
    drop((victim, killer));
    fixture.subtree.remove().unwrap();
}
