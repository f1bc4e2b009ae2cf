//! Terminating pods, and which grace periods are shortened.

use super::{end, enhanced, outcome, sample, shortened, snapshot_of, with_grace};
use crate::decision::Action;
use crate::eviction::{EvaluationEnd, SizedOutcome, SkipReason};
use crate::fixture::{at, engine, hard, memory_of, node, pod, set, snapshot, soft, step, victims};
use crate::in_flight::EvictionEnd;
use crate::input::Event;
use crate::pod::Pod;
use crate::reading::Reading;
use crate::signal::Signal::{MemoryAvailable, PidAvailable};
use crate::snapshot::{NodeStats, PodStatValues, ProcessStats};

/// Returns a sample of a node that is short of memory, with its running processes and their maximum, and with
/// the memory and the processes of its pods.
fn sample_of_processes(seconds: i64, running: i64, max: i64, pods: [(&str, u64, u64); 2]) -> Event {
    let time = Some(at(seconds));
    let processes = ProcessStats { max: Some(max), running: Some(running), time };
    let node = NodeStats { processes: Reading::Known(processes), ..node(50, 900, at(seconds)) };
    let usage = pods.map(|(uid, memory, processes)| {
        let (uid, values) = memory_of(uid, memory);
        (uid, PodStatValues { process_count: Some(processes), ..values })
    });
    Event::Sample(snapshot(node, &usage))
}

#[test]
fn terminating_pod_covers_the_deficit_until_it_has_terminated() {
    let pods = set(vec![with_grace("slow", 600), pod("other", "10")]);
    let usage = [("slow", 300), ("other", 200)];
    let mut engine = engine(enhanced(vec![soft(MemoryAvailable, "100", 1)]), &pods);
    step(&mut engine, 0, sample(0, 50, &usage));
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 50, &usage))), [("slow", 600)]);
    for seconds in 2..500 {
        let decision = step(&mut engine, seconds, sample(seconds, 50, &usage));
        assert_eq!(
            (end(&decision), decision.actions.len()),
            (EvaluationEnd::ReleaseInProgress, 0),
            "{seconds}"
        );
    }
    step(&mut engine, 502, outcome("slow", Ok(())));
    let without = set(vec![pod("other", "10")]);
    step(&mut engine, 502, Event::Pods(without));
    let decision = step(&mut engine, 503, sample(503, 50, &usage));
    assert_eq!(victims(&decision), [("other", 30)], "gone, and still short");
}

#[test]
fn request_of_a_terminating_pod_without_values_does_not_replace_its_release() {
    let slow = Pod { termination_grace_period_seconds: Some(600), ..pod("slow", "250") };
    let pods = set(vec![slow, pod("other", "500")]);
    let mut engine = engine(enhanced(vec![soft(MemoryAvailable, "200", 1)]), &pods);
    let mut sample = |seconds, available, slow| {
        let usage = [("slow", slow), memory_of("other", 60)];
        step(&mut engine, seconds, Event::Sample(snapshot(node(available, 900, at(seconds)), &usage)))
    };
    let (_, used) = memory_of("slow", 100);
    sample(0, 150, used);
    assert_eq!(victims(&sample(1, 150, used)), [("slow", 600)]);
    let decision = sample(2, 50, PodStatValues::default());
    assert_eq!(victims(&decision), [("other", 30)], "150 are lacking, 100 are on their way");
}

#[test]
fn hard_threshold_shortens_the_grace_period_of_a_soft_victim() {
    let thresholds = vec![hard(MemoryAvailable, "100"), soft(MemoryAvailable, "200", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("other", "10")]);
    let usage = [("slow", 300), ("other", 200)];
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 0, sample(0, 150, &usage));
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 150, &usage))), [("slow", 600)]);
    let worse = step(&mut engine, 2, sample(2, 50, &usage));
    assert_eq!((victims(&worse), shortened(&worse)), (vec![], vec![("slow", 1)]));
    assert_eq!(end(&worse), EvaluationEnd::ReleaseInProgress);
    assert!(matches!(worse.actions[0], Action::RecordEvent(_)));
    let again = step(&mut engine, 3, sample(3, 50, &usage));
    assert!(again.actions.is_empty(), "once");
    assert!(again.evaluation().unwrap().in_flight[0].hard);
}

#[test]
fn hard_threshold_evicts_more_if_the_shortened_victim_is_not_enough() {
    let thresholds = vec![hard(MemoryAvailable, "400"), soft(MemoryAvailable, "500", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("b", "10"), pod("c", "10")]);
    let usage = [("slow", 300), ("b", 200), ("c", 190)];
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 0, sample(0, 450, &usage));
    step(&mut engine, 1, sample(1, 450, &usage));
    let worse = step(&mut engine, 2, sample(2, 50, &usage));
    assert_eq!(shortened(&worse), [("slow", 1)]);
    assert_eq!(victims(&worse), [("b", 1)], "350 are lacking, 300 were on their way");
    let evaluation = worse.evaluation().unwrap();
    let deficit = &evaluation.deficits[0];
    let outcomes: Vec<_> = evaluation.sized_pods.iter().map(|sized| sized.outcome).collect();
    assert_eq!(outcomes, [SizedOutcome::GraceShortened, SizedOutcome::Evicted]);
    assert_eq!((deficit.in_flight, deficit.remaining()), (300, -150));
}

#[test]
fn one_slow_eviction_blocks_no_other_signal() {
    let thresholds = vec![hard(PidAvailable, "10"), soft(MemoryAvailable, "100", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("forks", "10")]);
    let sample = |seconds, pids: i64| {
        sample_of_processes(seconds, 100 - pids, 100, [("slow", 300, 1), ("forks", 100, 80)])
    };
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 0, sample(0, 50));
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 50))), [("slow", 600)]);
    let decision = step(&mut engine, 2, sample(2, 5));
    assert_eq!(victims(&decision), [("forks", 1)]);
    // Its grace period is shortened as well: every process counts.
    assert_eq!(shortened(&decision), [("slow", 1)]);
    let covered = step(&mut engine, 3, sample(3, 5));
    assert_eq!(covered.actions, []);
}

#[test]
fn samples_from_before_a_termination_evict_no_other_pod() {
    let pods = set(vec![pod("a", "10"), pod("b", "10")]);
    let usage = [("a", 300), ("b", 200)];
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 50, &usage))), [("a", 1)]);
    step(&mut engine, 5, outcome("a", Ok(())));
    let stale = step(&mut engine, 6, Event::Sample(snapshot_of(node(50, 900, at(4)), &usage)));
    assert_eq!(end(&stale), EvaluationEnd::ReleaseInProgress);
    assert_eq!(victims(&step(&mut engine, 7, sample(7, 50, &usage))), [("b", 1)], "not the one that is gone");
}

#[test]
fn failed_eviction_is_retried_later_after_all_other_pods() {
    let pods = set(vec![pod("stuck", "10"), pod("b", "10")]);
    let usage = [("stuck", 300), ("b", 200)];
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 50, &usage))), [("stuck", 1)]);
    step(&mut engine, 2, outcome("stuck", Err("2 processes outlive SIGKILL")));
    assert_eq!(victims(&step(&mut engine, 3, sample(3, 50, &usage))), [("b", 1)]);
    step(&mut engine, 4, outcome("b", Err("refused")));
    assert_eq!(
        end(&step(&mut engine, 5, sample(5, 50, &usage))),
        EvaluationEnd::NoCandidates,
        "a moment ago"
    );
    let again = step(&mut engine, 30, sample(30, 50, &usage));
    assert_eq!(victims(&again), [("stuck", 1)], "both did not go: by rank");
    let outcomes = again.evaluation().unwrap().sized_pods.iter().map(|sized| sized.outcome);
    let is_skipped = |outcome: &SizedOutcome| {
        matches!(outcome, SizedOutcome::Skipped { why: SkipReason::EvictionFailed, .. })
    };
    assert_eq!(outcomes.filter(is_skipped).count(), 1);
}

#[test]
fn eviction_that_frees_nothing_in_time_expires() {
    let pods = set(vec![with_grace("a", 20), pod("b", "10")]);
    let usage = [("a", 300), ("b", 200)];
    let mut engine = engine(enhanced(vec![soft(MemoryAvailable, "100", 1)]), &pods);
    step(&mut engine, 0, sample(0, 50, &usage));
    step(&mut engine, 1, sample(1, 50, &usage));
    assert_eq!(end(&step(&mut engine, 50, sample(50, 50, &usage))), EvaluationEnd::ReleaseInProgress);
    let decision = step(&mut engine, 51, sample(51, 50, &usage));
    assert_eq!(victims(&decision), [("b", 30)]);
    assert!(matches!(decision.evaluation().unwrap().in_flight[0].ended, Some(EvictionEnd::Expired)));
}

#[test]
fn clock_set_back_does_not_change_the_age_of_an_eviction() {
    let pods = set(vec![with_grace("a", 20), pod("b", "10")]);
    let usage = [("a", 300), ("b", 200)];
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    step(&mut engine, 100_000, sample(100_000, 50, &usage));
    assert_eq!(
        end(&step(&mut engine, 1, sample(1, 50, &usage))),
        EvaluationEnd::NoPressure,
        "met in the future"
    );
    let decision = step(&mut engine, 31, sample(100_032, 50, &usage));
    assert_eq!(decision.evaluation().unwrap().in_flight[0].age(at(31)).to_string(), "30s");
}

#[test]
fn soft_grace_periods_are_shortened_while_evictions_are_paused() {
    let thresholds = vec![hard(MemoryAvailable, "100"), soft(MemoryAvailable, "200", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("other", "10")]);
    let usage = [("slow", 60), ("other", 50)];
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 0, sample(0, 150, &usage));
    step(&mut engine, 1, sample(1, 150, &usage));
    step(&mut engine, 2, Event::EvictionsPausedUntil(at(60)));
    let held = step(&mut engine, 3, sample(3, 10, &usage));
    assert_eq!(
        (end(&held), victims(&held), shortened(&held)),
        (EvaluationEnd::RateLimited, vec![], vec![("slow", 1)])
    );
    assert!(victims(&step(&mut engine, 59, sample(59, 10, &usage))).is_empty());
    assert!(!victims(&step(&mut engine, 60, sample(60, 10, &usage))).is_empty());
}

/// Only the release of the resource that is short counts, not that the pod terminates in any case.
#[test]
fn no_grace_period_is_shortened_for_a_negligible_release() {
    let thresholds = vec![hard(PidAvailable, "500"), soft(MemoryAvailable, "100", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("forks", "10")]);
    let sample = |seconds, running| {
        sample_of_processes(seconds, running, 1000, [("slow", 300, 1), ("forks", 100, 700)])
    };
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 0, sample(0, 100));
    assert_eq!(victims(&step(&mut engine, 1, sample(1, 100))), [("slow", 600)]);
    let decision = step(&mut engine, 2, sample(2, 800));
    assert_eq!((victims(&decision), shortened(&decision)), (vec![("forks", 1)], vec![]));
}
