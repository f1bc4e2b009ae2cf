//! Memory is freed without waiting for the end of the process that held it.

use eviction_core::progress::{KillProgress, UnkillableReason};
use eviction_kill::MreleaseResult;
use tests::mounts::Hierarchy;
use tests::node::MIB;
use tests::process::{HANG, is_alive, wait_until};

use crate::fixture::{Fixture, assert_killed, ended_by, run, steps, target};

/// A process that is frozen from above cannot end, but a process that is being killed needs no memory any more.
#[test]
fn the_memory_of_a_killed_frozen_process_is_released() {
    let fixture = Fixture::new("reaped");
    if fixture.subtree.root().dir(Hierarchy::Freezer).is_none() {
        tests::skip!("what is frozen by cgroup v2 ends all the same");
    }
    if !has_process_mrelease() {
        tests::skip!("this kernel has no process_mrelease: whoever is frozen keeps its memory");
    }
    let (pod, container) = fixture.pod(1);
    let mut victim = run(&container, "hold --size 64M");
    wait_until("its memory", || pod.memory().is_ok_and(|bytes| bytes > 60 * MIB)).unwrap();
    let (class, mut killer) = fixture.frozen_class_and_killer();
    let updates = killer.kill(target(&pod));
    assert_eq!(steps(&updates), ["kill", "processes_remaining"]);
    assert!(matches!(
        &updates[1].progress,
        KillProgress::ProcessesRemaining { processes, .. } if processes.values().all(|why| *why == UnkillableReason::Frozen)
    ));
    assert_eq!(killer.mrelease_results.recv_timeout(HANG), Ok(MreleaseResult::Released));
    wait_until("the memory to come back", || pod.memory().is_ok_and(|bytes| bytes < 8 * MIB)).unwrap();
    assert!(is_alive(victim.pid()));
    class.freeze(false).unwrap();
    assert_eq!(ended_by(&mut victim), Some(9));
    fixture.end(killer);
}

/// Returns whether the kernel has process_mrelease, which came with 5.15. Calls it with an invalid descriptor.
fn has_process_mrelease() -> bool {
    // SAFETY: the call takes two numbers, and touches no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_process_mrelease, -1, 0) };
    assert_eq!(result, -1);
    std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

#[test]
fn process_mrelease_is_called_once_for_each_killed_process() {
    let fixture = Fixture::new("reaped-once");
    let (pod, container) = fixture.pod(1);
    let mut victims: Vec<_> = (0..5).map(|_| run(&container, "hold --size 4M")).collect();
    let mut killer = fixture.killer();
    assert_eq!(steps(&killer.kill(target(&pod))), ["kill", "terminated"]);
    assert_killed(&mut victims);
    let mrelease_results: Vec<_> =
        victims.iter().map(|_| killer.mrelease_results.recv_timeout(HANG).unwrap()).collect();
    let is_refused = |result: &MreleaseResult| *result == MreleaseResult::Refused;
    match has_process_mrelease() {
        true => assert!(!mrelease_results.iter().any(is_refused), "{mrelease_results:?}"),
        false => assert!(mrelease_results.iter().all(is_refused), "{mrelease_results:?}"),
    }
    // The thread ends with the killer, once it has handled every process.
    let crate::fixture::TestKiller { executor, mrelease_results, .. } = killer;
    drop(executor);
    assert!(mrelease_results.recv_timeout(HANG).is_err());
    fixture.subtree.remove().unwrap();
}
