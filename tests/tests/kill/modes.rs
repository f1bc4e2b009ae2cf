//! Which killers may be on a node at the same time, and what a dry run does.

use std::ffi::OsStr;

use eviction_core::progress::KillProgress;
use eviction_kill::LockError;
use tests::process::is_alive;
use tests::workload::Workload;

use crate::fixture::{Fixture, dirs_of, hold_ignoring_sigterm, process_cgroup, steps, target};

#[test]
fn a_dry_run_lists_processes_and_signals_none() {
    let fixture = Fixture::new("dry");
    let (pod, container) = fixture.pod(1);
    let nested = container.group("nested").unwrap();
    let victims = [hold_ignoring_sigterm(&process_cgroup(&container)), hold_ignoring_sigterm(&nested)];
    let mut killer = fixture.dry_killer();
    let updates = killer.kill(target(&pod));
    let mut pids: Vec<_> = victims.iter().map(Workload::pid).collect();
    pids.sort_unstable();
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].progress, KillProgress::WouldSignal { pids, unreachable: 0 });
    assert_eq!(pod.pids_limit().unwrap(), "max");
    assert!(victims.iter().all(|victim| is_alive(victim.pid())));
    fixture.end(killer);
}

#[test]
fn a_second_killer_is_refused_with_an_error_that_names_the_first() {
    let fixture = Fixture::new("second");
    let root = dirs_of(fixture.subtree.root());
    // Another program that has locked the node's root stands for the first agent.
    let elsewhere = fixture.subtree.group("elsewhere").unwrap();
    let arguments = [OsStr::new("lock"), OsStr::new("--dir"), root.memory.as_os_str()];
    let mut first = Workload::run(&elsewhere, arguments).unwrap();
    first.wait_event("locked").unwrap();

    let error = fixture.lock().unwrap_err();
    assert!(matches!(error, LockError::Held { .. }), "{error:?}");
    let message = error.to_string();
    assert!(
        message.contains(&format!("another agent has it, pid {} (workload), started 2", first.pid())),
        "{message}"
    );
    assert!(error.help().unwrap().contains("--action"), "{:?}", error.help());

    // The dry-run killer works beside it, and so does a killer on another node.
    let (pod, container) = fixture.pod(1);
    let victim = hold_ignoring_sigterm(&container);
    let mut dry = fixture.dry_killer();
    assert_eq!(steps(&dry.kill(target(&pod))), ["would signal"]);
    let other = Fixture::new("another");
    drop(other.killer());
    // The lock ends with the process that holds it.
    drop(first);
    let killer = fixture.killer();
    assert!(fixture.lock().is_err());
    drop(killer);
    drop(fixture.killer());
    fixture.end((victim, dry));
    other.subtree.remove().unwrap();
}
