//! A pod that goes on growing after SIGTERM does not get the whole grace period.

use std::time::Duration;

use eviction_core::progress::{KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use eviction_kill::KillTarget;
use rustix::process::Signal;
use tests::cgroup::Group;
use tests::process::{self, is_alive, wait_until};
use tests::workload::Workload;

use crate::fixture::{Acting, Fixture, LONG, binary, ended_by, run, soft, steps, stubborn, target};

const MIB: u64 = 1 << 20;

/// As far as a pod may grow here.
const LIMIT: u64 = 16 * MIB;

/// A hard memory eviction with a grace period.
fn bounded(pod: &Group, grace: Duration) -> KillTarget {
    KillTarget { grace, kill_on_growth: Some(LIMIT), ..target(pod) }
}

/// A process that ignores SIGTERM and grows when it is let go.
fn waiting(group: &Group, growth: &str) -> Workload {
    let arguments = ["--on-term", "ignore", "grow"].into_iter().chain(growth.split(' '));
    Workload::start(binary(), group, arguments).unwrap()
}

/// Begins, and waits until SIGTERM was sent.
fn terminate(killer: &mut Acting, target: KillTarget) -> KillUpdate {
    assert_eq!(killer.begin(target), Ok(()));
    let term = killer.next();
    assert!(matches!(term.progress, KillProgress::TermSent(_)), "{term:?}");
    term
}

/// By how much the pod had grown when SIGKILL was sent before the end of the grace period.
fn grown(kill: &KillUpdate) -> Option<u64> {
    match &kill.progress {
        KillProgress::KillSent { grown, .. } => *grown,
        other => panic!("{other:?}"),
    }
}

/// It was killed at the end of the grace period, and not before.
fn assert_granted(outcomes: &[KillUpdate], term: &KillUpdate, grace: Duration) {
    assert_eq!(steps(outcomes), ["kill", "terminated"]);
    assert_eq!(grown(&outcomes[0]), None);
    assert!(outcomes[0].at_ns - term.at_ns >= grace.as_nanos() as u64 * 9 / 10, "{outcomes:?}");
}

#[test]
fn a_pod_that_grows_is_killed_before_the_grace_period_ends() {
    for growth in ["--size 128M", "--kind huge --size 128M", "--kind tmpfs --size 128M"] {
        let fixture = Fixture::new("grows");
        let (pod, container) = fixture.pod(1);
        let (_, other_container) = fixture.pod(2);
        let other = stubborn(&other_container);
        let mut quiet = stubborn(&container);
        let mut hog = waiting(&container, growth);
        let mut killer = fixture.killer();
        terminate(&mut killer, bounded(&pod, LONG));
        hog.go().unwrap();
        let outcomes = killer.wait_last();
        assert_eq!(steps(&outcomes), ["kill", "terminated"]);
        assert!(grown(&outcomes[0]).is_some_and(|bytes| bytes > LIMIT), "{outcomes:?}");
        assert_eq!((ended_by(&mut hog), ended_by(&mut quiet)), (Some(9), Some(9)));
        assert!(is_alive(other.pid()));
        drop((other, killer));
        fixture.subtree.remove().unwrap();
    }
}

#[test]
fn a_pod_that_grows_little_has_the_whole_grace_period() {
    let fixture = Fixture::new("grows-little");
    let (pod, container) = fixture.pod(1);
    let mut hog = waiting(&container, "--size 8M");
    let mut killer = fixture.killer();
    let grace = Duration::from_secs(1);
    let before = pod.memory().unwrap();
    let term = terminate(&mut killer, bounded(&pod, grace));
    hog.go().unwrap();
    wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > before + 7 * MIB)).unwrap();
    assert_granted(&killer.wait_last(), &term, grace);
    assert_eq!(ended_by(&mut hog), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn without_a_bound_and_for_other_thresholds_growth_counts_for_nothing() {
    let grace = Duration::from_secs(1);
    let variants: [fn(KillTarget) -> KillTarget; 3] = [
        |target| KillTarget { kill_on_growth: None, ..target },
        |target| KillTarget { hard: false, ..target },
        |target| KillTarget { resource: Resource::Pids, ..target },
    ];
    for (label, vary) in ["unbounded", "soft", "pids"].into_iter().zip(variants) {
        let fixture = Fixture::new(&format!("growth-{label}"));
        let (pod, container) = fixture.pod(1);
        let mut hog = waiting(&container, "--size 64M");
        let mut killer = fixture.killer();
        let term = terminate(&mut killer, vary(bounded(&pod, grace)));
        hog.go().unwrap();
        wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > 60 * MIB)).unwrap();
        assert_granted(&killer.wait_last(), &term, grace);
        assert_eq!(ended_by(&mut hog), Some(9));
        drop(killer);
        fixture.subtree.remove().unwrap();
    }
}

#[test]
fn page_cache_is_no_growth() {
    for is_new_cgroup in [false, true] {
        let fixture = Fixture::new("growth-cache");
        let (pod, container) = fixture.pod(1);
        let mut quiet = stubborn(&container);
        let mut killer = fixture.killer();
        let grace = Duration::from_secs(2);
        // On a disk, wherever the folder for temporary files is.
        let folder = binary().parent().unwrap().display();
        let growth = format!("--kind page-cache --size 96M --dir {folder}");
        let (term, mut writer);
        if is_new_cgroup {
            term = terminate(&mut killer, bounded(&pod, grace));
            writer = waiting(&pod.group("late").unwrap(), &growth);
        } else {
            writer = waiting(&container, &growth);
            term = terminate(&mut killer, bounded(&pod, grace));
        }
        writer.go().unwrap();
        wait_until("its page cache", || pod.memory().is_ok_and(|bytes| bytes > 80 * MIB)).unwrap();
        assert_granted(&killer.wait_last(), &term, grace);
        assert_eq!((ended_by(&mut writer), ended_by(&mut quiet)), (Some(9), Some(9)));
        drop(killer);
        fixture.subtree.remove().unwrap();
    }
}

#[test]
fn the_growth_of_all_containers_counts_together() {
    let fixture = Fixture::new("growth-sum");
    let (pod, first) = fixture.pod(1);
    let second = pod.group("second").unwrap();
    let mut hogs = vec![waiting(&first, "--size 12M"), stubborn(&second)];
    let mut killer = fixture.killer();
    terminate(&mut killer, bounded(&pod, LONG));
    // Each by itself stays below; one has a cgroup that was not there.
    hogs[0].go().unwrap();
    wait_until("the first one's growth", || first.memory().is_ok_and(|bytes| bytes > 11 * MIB)).unwrap();
    assert!(is_alive(hogs[1].pid()));
    let late = pod.group("late").unwrap();
    hogs.push(run(&late, "--on-term ignore hold --size 12M"));
    let outcomes = killer.wait_last();
    assert!(grown(&outcomes[0]).is_some_and(|bytes| bytes > LIMIT), "{outcomes:?}");
    for hog in &mut hogs {
        assert_eq!(ended_by(hog), Some(9));
    }
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn what_counts_is_the_memory_at_sigterm() {
    let fixture = Fixture::new("growth-again");
    let (pod, container) = fixture.pod(1);
    // Ends on SIGTERM, and gives back as much as may be taken again.
    let mut large = run(&container, "hold --size 96M");
    wait_until("its memory", || pod.memory().is_ok_and(|bytes| bytes > 95 * MIB)).unwrap();
    let mut again = waiting(&container, "--size 88M");
    let mut killer = fixture.killer();
    let grace = Duration::from_millis(1500);
    let term = terminate(&mut killer, bounded(&pod, grace));
    assert_eq!(large.process().wait().unwrap().code(), Some(0));
    wait_until("its memory to come back", || pod.memory().is_ok_and(|bytes| bytes < 8 * MIB)).unwrap();
    again.go().unwrap();
    wait_until("growth", || pod.memory().is_ok_and(|bytes| bytes > 85 * MIB)).unwrap();
    assert_granted(&killer.wait_last(), &term, grace);
    assert_eq!(ended_by(&mut again), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_stopped_process_that_goes_on_with_sigterm_and_grows_is_killed() {
    let fixture = Fixture::new("growth-stopped");
    let (pod, container) = fixture.pod(1);
    let mut hog = waiting(&container, "--size 256M --rate 64M");
    hog.go().unwrap();
    wait_until("some growth", || pod.memory().is_ok_and(|bytes| bytes > 4 * MIB)).unwrap();
    process::signal(hog.pid(), Signal::STOP).unwrap();
    let mut killer = fixture.killer();
    terminate(&mut killer, bounded(&pod, LONG));
    let outcomes = killer.wait_last();
    assert!(grown(&outcomes[0]).is_some_and(|bytes| bytes > LIMIT), "{outcomes:?}");
    assert_eq!(ended_by(&mut hog), Some(9));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_soft_victim_is_watched_once_a_hard_threshold_is_met() {
    let fixture = Fixture::new("growth-hurry");
    let (pod, container) = fixture.pod(1);
    let mut hog = waiting(&container, "--size 128M --stop-at 64M");
    let mut killer = fixture.killer();
    terminate(&mut killer, KillTarget { kill_on_growth: Some(LIMIT), ..soft(&pod, LONG) });
    hog.go().unwrap();
    wait_until("its growth", || pod.memory().is_ok_and(|bytes| bytes > 60 * MIB)).unwrap();
    // What it has grown by then is not held against it.
    killer.shorten(1, bounded(&pod, LONG));
    let mut more = run(&container, "--on-term ignore hold --size 32M");
    let outcomes = killer.wait_last();
    assert!(grown(&outcomes[0]).is_some_and(|bytes| LIMIT < bytes && bytes < 50 * MIB), "{outcomes:?}");
    assert_eq!((ended_by(&mut hog), ended_by(&mut more)), (Some(9), Some(9)));
    drop(killer);
    fixture.subtree.remove().unwrap();
}

#[test]
fn a_cgroup_that_goes_away_while_it_is_watched_is_gone() {
    let fixture = Fixture::new("growth-vanishes");
    let (pod, container) = fixture.pod(1);
    let victim = stubborn(&container);
    let mut killer = fixture.killer();
    terminate(&mut killer, bounded(&pod, LONG));
    pod.destroy().unwrap();
    assert_eq!(steps(&killer.wait_last()), ["terminated"]);
    drop((victim, killer));
    fixture.subtree.remove().unwrap();
}
