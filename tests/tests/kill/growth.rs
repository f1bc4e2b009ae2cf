//! A pod that goes on growing after SIGTERM does not get the whole grace period.

use std::time::Duration;

use eviction_core::progress::{KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kill::KillTarget;
use rustix::process::Signal;
use tests::cgroup::Group;
use tests::node::MIB;
use tests::process::{self, is_alive, wait_until};
use tests::workload::Workload;

use crate::fixture::{
    Fixture, LONG, assert_killed, ended_by, hold_ignoring_sigterm, run, soft, steps, target,
};

/// The growth that a pod may have here.
const LIMIT: u64 = 16 * MIB;

/// Returns a target of a hard memory eviction with a grace period.
fn bounded(pod: &Group, grace: Duration) -> KillTarget {
    KillTarget { grace, kill_on_growth: Some(LIMIT), ..target(pod) }
}

/// Starts a process that ignores SIGTERM, and grows when the test lets it.
fn start_growth_workload(group: &Group, growth: &str) -> Workload {
    let arguments = ["--on-term", "ignore", "grow"].into_iter().chain(growth.split(' '));
    Workload::start(group, arguments).unwrap()
}

/// Returns how much the pod had grown, if SIGKILL was sent before the end of the grace period.
fn growth_at_kill(kill: &KillUpdate) -> Option<u64> {
    match &kill.progress {
        KillProgress::KillSent { grown, .. } => *grown,
        other => panic!("{other:?}"),
    }
}

/// Asserts that the pod was killed at the end of the grace period, and not before.
fn assert_full_grace_period(updates: &[KillUpdate], term: &KillUpdate, grace: Duration) {
    assert_eq!(steps(updates), ["kill", "terminated"]);
    assert_eq!(growth_at_kill(&updates[0]), None);
    assert!(updates[0].at_ns - term.at_ns >= grace.as_nanos() as u64 * 9 / 10, "{updates:?}");
}

#[test]
fn a_pod_that_grows_is_killed_before_the_grace_period_ends() {
    for growth in ["--size 128M", "--kind huge --size 128M", "--kind tmpfs --size 128M"] {
        let fixture = Fixture::new("grows");
        let (pod, container) = fixture.pod(1);
        let (_, other_container) = fixture.pod(2);
        let other = hold_ignoring_sigterm(&other_container);
        let mut quiet = hold_ignoring_sigterm(&container);
        let mut hog = start_growth_workload(&container, growth);
        let mut killer = fixture.killer();
        killer.begin_with_sigterm(bounded(&pod, LONG));
        hog.go().unwrap();
        let updates = killer.wait_last();
        assert_eq!(steps(&updates), ["kill", "terminated"]);
        assert!(growth_at_kill(&updates[0]).is_some_and(|bytes| bytes > LIMIT), "{updates:?}");
        assert_eq!((ended_by(&mut hog), ended_by(&mut quiet)), (Some(9), Some(9)));
        assert!(is_alive(other.pid()));
        fixture.end((other, killer));
    }
}

#[test]
fn a_pod_that_grows_little_has_the_whole_grace_period() {
    let fixture = Fixture::new("grows-little");
    let (pod, container) = fixture.pod(1);
    let mut hog = start_growth_workload(&container, "--size 8M");
    let mut killer = fixture.killer();
    let grace = Duration::from_secs(1);
    let before = pod.memory().unwrap();
    let term = killer.begin_with_sigterm(bounded(&pod, grace));
    hog.go().unwrap();
    wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > before + 7 * MIB)).unwrap();
    assert_full_grace_period(&killer.wait_last(), &term, grace);
    assert_eq!(ended_by(&mut hog), Some(9));
    fixture.end(killer);
}

#[test]
fn growth_is_ignored_without_a_bound_and_for_other_thresholds() {
    let grace = Duration::from_secs(1);
    let variants: [fn(KillTarget) -> KillTarget; 3] = [
        |target| KillTarget { kill_on_growth: None, ..target },
        |target| KillTarget { hard: false, ..target },
        |target| KillTarget { resource: Resource::Pids, ..target },
    ];
    for (label, vary) in ["unbounded", "soft", "pids"].into_iter().zip(variants) {
        let fixture = Fixture::new(&format!("growth-{label}"));
        let (pod, container) = fixture.pod(1);
        let mut hog = start_growth_workload(&container, "--size 64M");
        let mut killer = fixture.killer();
        let term = killer.begin_with_sigterm(vary(bounded(&pod, grace)));
        hog.go().unwrap();
        wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > 60 * MIB)).unwrap();
        assert_full_grace_period(&killer.wait_last(), &term, grace);
        assert_eq!(ended_by(&mut hog), Some(9));
        fixture.end(killer);
    }
}

#[test]
fn page_cache_does_not_count_as_growth() {
    for is_new_cgroup in [false, true] {
        let fixture = Fixture::new("growth-cache");
        let (pod, container) = fixture.pod(1);
        let mut quiet = hold_ignoring_sigterm(&container);
        let mut killer = fixture.killer();
        let grace = Duration::from_secs(2);
        // On a disk, wherever the folder for temporary files is.
        let folder = tests::folder::on_disk().unwrap();
        let growth = format!("--kind page-cache --size 96M --dir {}", folder.display());
        let (term, mut writer);
        if is_new_cgroup {
            term = killer.begin_with_sigterm(bounded(&pod, grace));
            writer = start_growth_workload(&pod.group("late").unwrap(), &growth);
        } else {
            writer = start_growth_workload(&container, &growth);
            term = killer.begin_with_sigterm(bounded(&pod, grace));
        }
        writer.go().unwrap();
        wait_until("its page cache", || pod.memory().is_ok_and(|bytes| bytes > 80 * MIB)).unwrap();
        assert_full_grace_period(&killer.wait_last(), &term, grace);
        assert_eq!((ended_by(&mut writer), ended_by(&mut quiet)), (Some(9), Some(9)));
        fixture.end(killer);
    }
}

#[test]
fn the_growth_of_all_containers_counts_together() {
    let fixture = Fixture::new("growth-sum");
    let (pod, first) = fixture.pod(1);
    let second = pod.group("second").unwrap();
    let mut hogs = vec![start_growth_workload(&first, "--size 12M"), hold_ignoring_sigterm(&second)];
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(bounded(&pod, LONG));
    // Each container alone stays below the limit; one has a cgroup that did not exist at first.
    hogs[0].go().unwrap();
    wait_until("the first one's growth", || first.memory().is_ok_and(|bytes| bytes > 11 * MIB)).unwrap();
    assert!(is_alive(hogs[1].pid()));
    let late = pod.group("late").unwrap();
    hogs.push(run(&late, "--on-term ignore hold --size 12M"));
    let updates = killer.wait_last();
    assert!(growth_at_kill(&updates[0]).is_some_and(|bytes| bytes > LIMIT), "{updates:?}");
    assert_killed(&mut hogs);
    fixture.end(killer);
}

#[test]
fn growth_counts_from_the_memory_at_sigterm() {
    let fixture = Fixture::new("growth-again");
    let (pod, container) = fixture.pod(1);
    // This process ends on SIGTERM, and frees as much as the other one may take again.
    let mut large = run(&container, "hold --size 96M");
    wait_until("its memory", || pod.memory().is_ok_and(|bytes| bytes > 95 * MIB)).unwrap();
    let mut regrowing = start_growth_workload(&container, "--size 88M");
    let mut killer = fixture.killer();
    let grace = Duration::from_millis(1500);
    let term = killer.begin_with_sigterm(bounded(&pod, grace));
    assert_eq!(large.process().wait().unwrap().code(), Some(0));
    wait_until("its memory to come back", || pod.memory().is_ok_and(|bytes| bytes < 8 * MIB)).unwrap();
    regrowing.go().unwrap();
    wait_until("growth", || pod.memory().is_ok_and(|bytes| bytes > 85 * MIB)).unwrap();
    assert_full_grace_period(&killer.wait_last(), &term, grace);
    assert_eq!(ended_by(&mut regrowing), Some(9));
    fixture.end(killer);
}

#[test]
fn a_stopped_process_that_resumes_at_sigterm_and_grows_is_killed() {
    let fixture = Fixture::new("growth-stopped");
    let (pod, container) = fixture.pod(1);
    let mut hog = start_growth_workload(&container, "--size 256M --rate 64M");
    hog.go().unwrap();
    wait_until("some growth", || pod.memory().is_ok_and(|bytes| bytes > 4 * MIB)).unwrap();
    process::signal(hog.pid(), Signal::STOP).unwrap();
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(bounded(&pod, LONG));
    let updates = killer.wait_last();
    assert!(growth_at_kill(&updates[0]).is_some_and(|bytes| bytes > LIMIT), "{updates:?}");
    assert_eq!(ended_by(&mut hog), Some(9));
    fixture.end(killer);
}

#[test]
fn growth_of_a_soft_victim_counts_once_a_hard_threshold_is_met() {
    let fixture = Fixture::new("growth-hurry");
    let (pod, container) = fixture.pod(1);
    let mut hog = start_growth_workload(&container, "--size 128M --stop-at 64M");
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(KillTarget { kill_on_growth: Some(LIMIT), ..soft(&pod, LONG) });
    hog.go().unwrap();
    wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > 60 * MIB)).unwrap();
    // The growth until then does not count.
    killer.shorten(1, bounded(&pod, LONG));
    let mut more = run(&container, "--on-term ignore hold --size 32M");
    let updates = killer.wait_last();
    assert!(
        growth_at_kill(&updates[0]).is_some_and(|bytes| LIMIT < bytes && bytes < 50 * MIB),
        "{updates:?}"
    );
    assert_eq!((ended_by(&mut hog), ended_by(&mut more)), (Some(9), Some(9)));
    fixture.end(killer);
}

#[test]
fn a_pod_removed_while_its_growth_is_watched_counts_as_terminated() {
    let fixture = Fixture::new("growth-vanishes");
    let (pod, container) = fixture.pod(1);
    let victim = hold_ignoring_sigterm(&container);
    let mut killer = fixture.killer();
    killer.begin_with_sigterm(bounded(&pod, LONG));
    pod.destroy().unwrap();
    assert_eq!(steps(&killer.wait_last()), ["terminated"]);
    fixture.end((victim, killer));
}
