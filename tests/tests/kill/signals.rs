//! SIGTERM, the grace period, SIGKILL.

use std::process::{Command, Stdio};
use std::time::Duration;

use eviction_core::progress::KillProgress;
use eviction_kill::KillTarget;
use rustix::process::Signal;
use tests::process::{self, Process, wait_until};
use tests::stamps::Record;

use crate::fixture::{
    Fixture, LONG, ended_by, hold_ignoring_sigterm, hold_until_sigterm, run, soft, stamps, steps, target,
};

#[test]
fn sigkill_comes_after_the_grace_period_and_not_before() {
    let fixture = Fixture::new("ignores");
    let (pod, container) = fixture.pod(1);
    let (_folder, path) = stamps();
    let arguments = format!("--stamps {} --on-term ignore hold --size 1M", path.display());
    let mut victim = run(&container, &arguments);
    let mut killer = fixture.killer();
    let grace = Duration::from_millis(300);
    let updates = killer.kill(soft(&pod, grace));
    assert_eq!(steps(&updates), ["term", "kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    let [term, kill, terminated] = updates.as_slice() else { panic!("{updates:?}") };
    let sigterm_ns = Record::read(&path).unwrap().term.unwrap();
    assert!(kill.at_ns - sigterm_ns.min(term.at_ns) >= grace.as_nanos() as u64 * 9 / 10, "{updates:?}");
    assert!(term.at_ns <= kill.at_ns && kill.at_ns <= terminated.at_ns);
    fixture.end(killer);
}

#[test]
fn a_process_that_ends_in_time_gets_no_sigkill() {
    for hard in [false, true] {
        let fixture = Fixture::new("in-time");
        let (pod, container) = fixture.pod(1);
        let mut victim = run(&container, "--term-delay 200 hold --size 1M");
        let mut killer = fixture.killer();
        let updates = killer.kill(KillTarget { hard, ..soft(&pod, LONG) });
        assert_eq!(steps(&updates), ["term", "terminated"]);
        assert!(matches!(updates[1].progress, KillProgress::Terminated { killed: 0, .. }));
        assert_eq!(victim.process().wait().unwrap().code(), Some(0));
        fixture.end(killer);
    }
}

/// Starts a shell that cleans up on SIGTERM with the help of its own children. It runs everything inside the group:
/// it waits until it was moved there.
fn shell(fixture: &Fixture, group: &tests::cgroup::Group) -> (Process, std::path::PathBuf) {
    let [moved, done] = ["moved", "done"].map(|name| fixture.run_dir.path().join(name));
    let script = format!(
        "until [ -e {1} ]; do sleep 0.01; done; \
         trap 'for i in 1 2 3; do sleep 0.1; done; echo cleaned >> {0}; exit 7' TERM; \
         echo ready > {0}; while :; do sleep 1000 & wait; done",
        done.display(),
        moved.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    let shell = Process::spawn(&mut command).unwrap();
    group.add(shell.pid()).unwrap();
    std::fs::write(moved, "").unwrap();
    // Waits for the shell's child as well: a child that came after the signal would outlive the shell.
    let sleeps = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline"));
        arguments.is_ok_and(|arguments| arguments == b"sleep\x001000\0")
    };
    wait_until("the shell's child", || group.processes().iter().any(sleeps)).unwrap();
    (shell, done)
}

#[test]
fn sigterm_handlers_may_fork_for_a_soft_threshold() {
    let fixture = Fixture::new("cleanup");
    let (pod, container) = fixture.pod(1);
    let (mut shell, done) = shell(&fixture, &container);
    let mut killer = fixture.killer();
    let updates = killer.kill(soft(&pod, LONG));
    assert_eq!(steps(&updates), ["term", "terminated"]);
    assert_eq!(shell.wait().unwrap().code(), Some(7));
    // The handler ran once: what it forks is not signalled again.
    assert_eq!(std::fs::read_to_string(done).unwrap(), "ready\ncleaned\n");
    fixture.end(killer);
}

#[test]
fn stopped_processes_are_resumed_to_handle_sigterm() {
    let fixture = Fixture::new("stopped");
    let (pod, container) = fixture.pod(1);
    let mut victim = hold_until_sigterm(&container);
    stop(victim.pid());
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(soft(&pod, LONG))), ["term", "terminated"]);
    assert_eq!(victim.process().wait().unwrap().code(), Some(0));
    fixture.end(killer);
}

#[test]
fn stopped_processes_are_killed() {
    let fixture = Fixture::new("stopped-kill");
    let (pod, container) = fixture.pod(1);
    let mut victim = hold_ignoring_sigterm(&container);
    stop(victim.pid());
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(target(&pod))), ["kill", "terminated"]);
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

fn stop(pid: u32) {
    process::signal(pid, Signal::STOP).unwrap();
    wait_until("the process to stop", || process::stat(pid).is_some_and(|(state, _)| state == 'T')).unwrap();
}

#[test]
fn a_hard_threshold_shortens_the_grace_period() {
    let fixture = Fixture::new("hurry");
    let (pod, container) = fixture.pod(1);
    let mut victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(soft(&pod, LONG));
    killer.shorten(1, target(&pod));
    let updates = killer.wait_last();
    assert_eq!(steps(&updates), ["kill", "terminated"]);
    assert!(updates.iter().all(|update| update.decision == 1));
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

#[test]
fn a_container_monitor_gets_no_sigterm() {
    let fixture = Fixture::new("monitor");
    let (pod, container) = fixture.pod(1);
    let monitors = pod.group("crio-conmon-0123.scope").unwrap();
    // The monitor would end on SIGTERM, and end its container before the grace period is over.
    let mut monitor = hold_until_sigterm(&monitors);
    let mut victim = run(&container, "--term-delay 300 hold --size 1M");
    let mut killer = fixture.killer();
    let updates = killer.kill(soft(&pod, Duration::from_secs(2)));
    assert_eq!(steps(&updates), ["term", "kill", "terminated"]);
    assert_eq!(victim.process().wait().unwrap().code(), Some(0));
    assert_eq!(ended_by(&mut monitor), Some(9));
    fixture.end(killer);
}
