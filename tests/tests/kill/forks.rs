//! Processes that fork while they are being killed.

use std::time::Duration;

use eviction_core::progress::KillProgress;
use eviction_core::signal::Resource;
use eviction_kill::CgroupDirs;
use eviction_kill::KillTarget;
use tests::process::{is_alive, wait_until};

use crate::fixture::{Fixture, LONG, hold_ignoring_sigterm, hold_until_sigterm, run, soft, steps, target};

const BOMB: &str = "--on-term ignore forks --max 100000 --rate 100000 --bomb";

/// Kills a bomb that has filled its limit and forks again whenever a process ends. Returns the steps of the kill.
fn kill_bomb(label: &str, kill: impl FnOnce(KillTarget) -> KillTarget) -> Vec<&'static str> {
    let fixture = Fixture::new(label);
    let (pod, container) = fixture.pod(1);
    let (_, other) = fixture.pod(10);
    pod.limit_pids(100).unwrap();
    let bystander = hold_ignoring_sigterm(&other);
    let bomb = run(&container, BOMB);
    wait_until("the bomb to fill its limit", || pod.pids().unwrap() == 100).unwrap();
    let mut killer = fixture.killer();
    let updates = killer.kill(kill(target(&pod)));
    assert_eq!(pod.processes(), [0_u32; 0]);
    assert_eq!(pod.pids_limit().unwrap(), "100");
    assert!(is_alive(bystander.pid()));
    fixture.end((bomb, killer));
    steps(&updates)
}

#[test]
fn a_fork_bomb_is_killed() {
    let pids = |target| KillTarget { resource: Resource::Pids, ..target };
    assert_eq!(kill_bomb("bomb-hard", pids), ["kill", "terminated"]);
    let grace = Duration::from_millis(50);
    let graceful = |target| KillTarget { grace, ..pids(target) };
    assert_eq!(kill_bomb("bomb-grace", graceful), ["term", "kill", "terminated"]);
    let soft = |target| KillTarget { hard: false, ..graceful(target) };
    assert_eq!(kill_bomb("bomb-soft", soft), ["term", "kill", "terminated"]);
    let memory = |target| KillTarget { hard: false, grace, ..target };
    assert_eq!(kill_bomb("bomb-memory", memory), ["term", "kill", "terminated"]);
}

#[test]
fn a_fork_bomb_is_killed_without_the_pids_controller() {
    // As if the pids controller were off or its files not writable: the freezer stops the bomb while all its
    // processes are signalled.
    let without_pids = |target: KillTarget| {
        let groups = target.groups.into_iter().map(|dirs| CgroupDirs { pids: None, ..dirs });
        KillTarget { groups: groups.collect(), ..target }
    };
    assert_eq!(kill_bomb("bomb-no-pids", without_pids), ["kill", "terminated"]);
}

#[test]
fn a_hard_kill_blocks_forks_until_the_killer_stops() {
    let fixture = Fixture::new("stops");
    let (pod, container) = fixture.pod(1);
    let _victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    assert_eq!(pod.pids_limit().unwrap(), "max");
    killer.begin(KillTarget { grace: LONG, ..target(&pod) }).unwrap();
    // The limit is set when `begin` returns, not some time later.
    assert_eq!(pod.pids_limit().unwrap(), "0");
    assert!(matches!(killer.next().progress, KillProgress::TermSent(_)));
    // A killer that stops removes its limit from the pod.
    assert_eq!(killer.stop(), [KillProgress::Abandoned]);
    assert_eq!(pod.pids_limit().unwrap(), "max");
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_pids_limit_set_during_a_kill_is_kept() {
    let fixture = Fixture::new("limit");
    let (pod, container) = fixture.pod(1);
    let _victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin(KillTarget { grace: Duration::from_millis(500), ..target(&pod) }).unwrap();
    pod.limit_pids(77).unwrap();
    assert_eq!(steps(&killer.wait_last()), ["term", "kill", "terminated"]);
    assert_eq!(pod.pids_limit().unwrap(), "77");
    fixture.end(killer);
}

#[test]
fn a_new_killer_restores_the_pids_limit_left_by_a_killed_agent() {
    let fixture = Fixture::new("recovers");
    let (pod, container) = fixture.pod(1);
    let _victim = hold_ignoring_sigterm(&container);
    pod.limit_pids(50).unwrap();
    let mut killer = fixture.killer();
    killer.begin(KillTarget { grace: LONG, ..target(&pod) }).unwrap();
    // The undo log now has what an agent leaves that is killed at this moment.
    let logs: Vec<_> = std::fs::read_dir(fixture.run_dir.path()).unwrap().flatten().collect();
    let [log] = logs.as_slice() else { panic!("{logs:?}") };
    let log_contents = std::fs::read(log.path()).unwrap();
    drop(killer);
    pod.limit_pids(0).unwrap();
    std::fs::write(log.path(), &log_contents).unwrap();
    let killer = fixture.killer();
    assert_eq!(pod.pids_limit().unwrap(), "50");
    drop(killer);
    // A limit that was set since then is not changed.
    pod.limit_pids(60).unwrap();
    std::fs::write(log.path(), &log_contents).unwrap();
    drop(fixture.killer());
    assert_eq!(pod.pids_limit().unwrap(), "60");
    fixture.subtree.remove().unwrap();
}

#[test]
fn unreaped_processes_are_counted() {
    let fixture = Fixture::new("zombie");
    let (pod, container) = fixture.pod(1);
    // Its parent, this test, does not wait for it yet.
    let victim = hold_until_sigterm(&container);
    let mut killer = fixture.killer();
    let updates = killer.kill(soft(&pod, LONG));
    assert_eq!(steps(&updates), ["term", "terminated"]);
    assert_eq!(updates[1].progress, KillProgress::Terminated { killed: 0, unreaped: Some(1) });
    fixture.end((victim, killer));
}
