mod in_flight;

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::decision::{Action, Decision};
use crate::engine::Engine;
use crate::eviction::{Basis, EvaluationEnd, Eviction, SizedOutcome, SkipReason};
use crate::fixture;
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{
    at, container, engine, engine as engine_of, hard, limits, memory_of, node, pod, policy as kubelet,
    quantity, sample, set, snapshot, snapshot_of, soft, step, victims,
};
use crate::in_flight::ExecutorUpdate;
use crate::input::{Event, Input};
use crate::pod::Pod;
use crate::policy::{Policy, Threshold};
use crate::reading::{Reading, UnknownReason};
use crate::record::{DecisionRecord, RecordSubject};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, PidAvailable};
use crate::snapshot::{NodeStats, PodStatValues, ProcessStats};
use crate::units::{GoDuration, ThresholdValue};

/// Returns a policy with the default rules of the enhanced profile.
fn enhanced(thresholds: Vec<Threshold>) -> Policy {
    fixture::enhanced(thresholds, |_| ())
}

fn outcome(uid: &str, result: Result<(), &str>) -> Event {
    Event::Evicted { uid: uid.into(), result: result.map_err(Into::into) }
}

fn shortened(decision: &Decision) -> Vec<(&str, i64)> {
    let uid = |eviction: &Eviction| &*decision.evaluation().unwrap().pods.get(eviction.pod).unwrap().pod.uid;
    let shortened_grace = |action: &Action| match action {
        Action::ShortenGrace(eviction) => Some((*eviction, eviction.grace_period_seconds)),
        _ => None,
    };
    decision
        .actions
        .iter()
        .filter_map(shortened_grace)
        .map(|(eviction, grace)| (uid(&eviction), grace))
        .collect()
}

fn end(decision: &Decision) -> EvaluationEnd {
    decision.evaluation().unwrap().end
}

/// Returns the threshold `available 100` with a minimum reclaim.
fn hard_with_reclaim(reclaim: &str) -> Threshold {
    let min_reclaim = ThresholdValue::Quantity(quantity(reclaim));
    Threshold { min_reclaim: Some(min_reclaim), ..hard(MemoryAvailable, "100") }
}

/// Returns the memory of a pod, and how much of it is anonymous.
fn anonymous_of(uid: &str, working_set: u64, anonymous: u64) -> (&str, PodStatValues) {
    let (uid, values) = memory_of(uid, working_set);
    (uid, PodStatValues { memory_anonymous: Some(anonymous), ..values })
}

fn with_grace(uid: &str, grace: i64) -> Pod {
    Pod { termination_grace_period_seconds: Some(grace), ..pod(uid, "10") }
}

#[test]
fn hard_memory_threshold_drives_before_soft_and_disk_thresholds() {
    let thresholds = vec![
        soft(MemoryAvailable, "200", 1),
        hard(NodeFsAvailable, "950"),
        soft(NodeFsAvailable, "960", 1),
        hard(MemoryAvailable, "100"),
    ];
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(enhanced(thresholds), &pods);
    step(&mut engine, 1, sample(1, 150, &[("a", 300)]));
    let decision = step(&mut engine, 9, sample(9, 50, &[("a", 300)]));
    assert_eq!(decision.evaluation().unwrap().driving, Some(3));
    assert_eq!(victims(&decision), [("a", 1)]);
}

#[test]
fn soft_evictions_grant_the_pods_grace_period_up_to_the_cap() {
    let granted = |own: Option<i64>, cap: Option<i64>| {
        let mut one = pod("a", "10");
        one.termination_grace_period_seconds = own;
        let policy = fixture::enhanced(vec![soft(MemoryAvailable, "100", 1)], |preferences| {
            preferences.soft.grace_period_cap = cap.map(GoDuration::from_secs);
        });
        let mut engine = engine(policy, &set(vec![one]));
        step(&mut engine, 1, sample(1, 50, &[("a", 300)]));
        victims(&step(&mut engine, 2, sample(2, 50, &[("a", 300)])))[0].1
    };
    assert_eq!(granted(Some(3600), None), 3600);
    assert_eq!(granted(Some(3600), Some(60)), 60);
    assert_eq!(granted(Some(20), Some(60)), 20);
    assert_eq!(granted(None, None), 30, "what the API server gives a pod without one");
    assert_eq!(granted(Some(0), None), 1);
    assert_eq!(granted(Some(-9), Some(0)), 1);
}

#[test]
fn evictions_cover_the_deficit_with_at_most_three_pods() {
    let pods = set(["a", "b", "c", "d", "e"].map(|uid| pod(uid, "10")).to_vec());
    let usage = [("a", 100), ("b", 90), ("c", 80), ("d", 70), ("e", 60)];
    let evicted = |reclaim: &str| {
        let mut engine = engine(enhanced(vec![hard_with_reclaim(reclaim)]), &pods);
        let decision = step(&mut engine, 1, sample(1, 50, &usage));
        let evaluation = decision.evaluation().unwrap();
        let deficit = &evaluation.deficits[0];
        (victims(&decision).len(), deficit.lacking(), deficit.remaining())
    };
    assert_eq!(evicted("50"), (1, 100, 0));
    assert_eq!(evicted("51"), (2, 101, -89));
    assert_eq!(evicted("200"), (3, 250, -20));
    assert_eq!(evicted("500"), (3, 550, 280), "the rest at the next look");
}

#[test]
fn pod_with_a_negligible_release_is_skipped_for_one_of_its_class() {
    let pods = set(vec![pod("cache", "1"), pod("real", "100"), pod("within", "500")]);
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    let usage =
        [anonymous_of("cache", 300, 0), anonymous_of("real", 200, 150), anonymous_of("within", 400, 400)];
    let decision = step(&mut engine, 1, Event::Sample(snapshot(node(0, 900, at(1)), &usage)));
    assert_eq!(victims(&decision), [("real", 1)]);
    let skipped = decision.evaluation().unwrap().sized_pods[1];
    let outcome = SizedOutcome::Skipped { why: SkipReason::FreesTooLittle, remaining: 100 };
    assert_eq!((skipped.deficit, skipped.pod, skipped.outcome), (0, 0, outcome));
    assert_eq!(skipped.release.basis, Basis::Anonymous);

    // No pod of its class is better, so it is considered before those within their request.
    let usage = [anonymous_of("cache", 300, 0), anonymous_of("within", 400, 400)];
    let pods = set(vec![pod("cache", "1"), pod("within", "500")]);
    let mut other = engine_of(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    let decision = step(&mut other, 1, Event::Sample(snapshot(node(0, 900, at(1)), &usage)));
    assert_eq!(victims(&decision), [("cache", 1), ("within", 1)]);
}

/// The result of a selection for another threshold is not counted twice.
#[test]
fn only_critical_is_reported_for_each_threshold() {
    let critical = Pod { priority: Some(2_000_000_000), ..pod("a", "10") };
    let thresholds = vec![hard(MemoryAvailable, "100"), hard(PidAvailable, "10")];
    let mut engine = engine(enhanced(thresholds), &set(vec![critical]));
    let values =
        PodStatValues { memory_working_set: Some(300), process_count: Some(80), ..PodStatValues::default() };
    let processes = ProcessStats { max: Some(100), running: Some(95), time: Some(at(1)) };
    let stats = NodeStats { processes: Reading::Known(processes), ..node(50, 900, at(1)) };
    let decision = step(&mut engine, 1, Event::Sample(snapshot(stats, &[("a", values)])));
    let ends: Vec<_> = decision.evaluation().unwrap().deficits.iter().map(|deficit| deficit.end).collect();
    assert_eq!(ends, [EvaluationEnd::OnlyCritical; 2]);
    let report = DecisionRecord::of(&decision);
    let RecordSubject::Evaluation(evaluation) = report.subject else { panic!("no pass") };
    assert_eq!(evaluation.critical_pods.len(), 1, "named once");
}

#[test]
fn an_unknown_usage_counts_as_the_request() {
    let pods = set(vec![pod("unseen", "80"), pod("b", "10"), pod("c", "10")]);
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    let decision = step(&mut engine, 1, sample(1, 20, &[("b", 3), ("c", 2)]));
    let unseen = decision.evaluation().unwrap().sized_pods.iter().find(|sized| sized.pod == 0);
    assert_eq!(unseen.map(|it| (it.release.amount, it.release.basis)), Some((80, Basis::Request)));
}

#[test]
fn reclaim_is_enough_once_the_driving_threshold_is_resolved() {
    let thresholds = vec![hard(NodeFsAvailable, "100"), soft(MemoryAvailable, "500", 3600)];
    let pods = set(vec![pod("a", "10")]);
    let end_of = |policy: Policy| {
        let mut engine = engine(policy, &pods);
        let first = Event::Sample(snapshot_of(node(400, 50, at(1)), &[("a", 300)]));
        assert!(step(&mut engine, 1, first).awaits_reclaim());
        let second = snapshot_of(node(400, 150, at(1)), &[("a", 300)]);
        end(&step(&mut engine, 1, Event::Reclaimed(Ok(second))))
    };
    assert_eq!(end_of(enhanced(thresholds.clone())), EvaluationEnd::Reclaimed);
    assert_eq!(end_of(kubelet(thresholds)), EvaluationEnd::Evicted);
}

#[test]
fn deficit_after_reclaim_excludes_what_reclaim_has_freed() {
    let disk = |used| PodStatValues { ephemeral_storage_used: Some(used), ..PodStatValues::default() };
    let reclaim = ThresholdValue::Quantity(quantity("100"));
    let threshold = Threshold { min_reclaim: Some(reclaim), ..hard(NodeFsAvailable, "500") };
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(enhanced(vec![threshold]), &pods);
    let usage = [("a", disk(300))];
    let first = step(&mut engine, 1, Event::Sample(snapshot(node(900, 50, at(1)), &usage)));
    assert_eq!(first.evaluation().unwrap().deficits[0].lacking(), 550);
    let second = snapshot(node(900, 590, at(2)), &usage);
    let decision = step(&mut engine, 2, Event::Reclaimed(Ok(second)));
    assert_eq!(decision.evaluation().unwrap().deficits.last().unwrap().lacking(), 10);
    assert_eq!(end(&decision), EvaluationEnd::Evicted);
}

#[test]
fn pod_above_its_limits_is_evicted_once_and_delays_no_threshold() {
    let limited = Pod {
        containers: vec![container("main", limits(&[("ephemeral-storage", "100")]))],
        ..pod("limited", "1")
    };
    let pods = set(vec![limited, pod("b", "10")]);
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    let sample = |seconds| {
        let full = PodStatValues { ephemeral_storage_used: Some(101), ..PodStatValues::default() };
        let usage = [("limited", full), memory_of("b", 300)];
        Event::Sample(snapshot(node(50, 900, at(seconds)), &usage))
    };
    let decision = step(&mut engine, 1, sample(1));
    assert_eq!(victims(&decision), [("limited", 1), ("b", 1)]);
    assert!(step(&mut engine, 2, sample(2)).actions.is_empty());
}

#[test]
fn a_sample_of_pods_is_needed_while_a_deficit_remains() {
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(enhanced(vec![hard(MemoryAvailable, "100")]), &pods);
    assert!(!engine.needs_pods(at(1), &node(100, 900, at(1))));
    assert!(engine.needs_pods(at(1), &node(99, 900, at(1))));
    step(&mut engine, 1, sample(1, 50, &[("a", 300)]));
    assert!(!engine.needs_pods(at(31), &node(50, 900, at(31))));
    assert!(engine.needs_pods(at(32), &node(50, 900, at(32))), "by then it did not terminate in time");
    step(&mut engine, 2, outcome("a", Err("refused")));
    assert!(engine.needs_pods(at(3), &node(50, 900, at(3))));
    // A pod whose grace period a hard threshold would have to shorten may not be among the pods any more.
    let thresholds = vec![soft(MemoryAvailable, "200", 1), hard(MemoryAvailable, "100")];
    let mut engine = engine_of(enhanced(thresholds), &pods);
    step(&mut engine, 1, sample(1, 150, &[("a", 300)]));
    assert_eq!(victims(&step(&mut engine, 3, sample(3, 150, &[("a", 300)]))), [("a", 30)]);
    assert!(!engine.needs_pods(at(4), &node(150, 900, at(4))));
    assert!(engine.needs_pods(at(4), &node(99, 900, at(4))));
    let other = Engine::new(kubelet(vec![]));
    assert!(other.needs_pods(at(1), &node(1, 1, at(1))), "it decides by itself what it looks at");
}

#[test]
fn kubelet_profile_evicts_regardless_of_earlier_evictions() {
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(kubelet(vec![hard(MemoryAvailable, "100")]), &pods);
    for seconds in 1..4 {
        let decision = step(&mut engine, seconds, sample(seconds, 50, &[("a", 300)]));
        assert_eq!(victims(&decision), [("a", 1)]);
        let evaluation = decision.evaluation().unwrap();
        assert!(evaluation.in_flight.is_empty() && evaluation.deficits.is_empty());
    }
}

#[test]
fn pods_removed_during_reclaim_are_not_selected() {
    let pods = set(vec![pod("a", "10"), pod("b", "10")]);
    let mut engine = engine(enhanced(vec![hard(NodeFsAvailable, "100")]), &pods);
    let first = Event::Sample(snapshot_of(node(900, 50, at(1)), &[("a", 1), ("b", 1)]));
    assert!(step(&mut engine, 1, first).awaits_reclaim());
    step(&mut engine, 1, Event::Pods(set(vec![pod("b", "10")])));
    let decision = step(&mut engine, 1, Event::Reclaimed(Err(UnknownReason::Failed)));
    assert_eq!(victims(&decision), [("b", 1)]);
}

/// The pods that may be terminating, derived from the events and the actions.
#[derive(Default)]
struct TerminatingPods {
    chosen: BTreeSet<Box<str>>,
    /// Pods for which an executor reports progress, whichever engine selected them.
    executing: BTreeSet<Box<str>>,
}

impl TerminatingPods {
    fn update(&mut self, event: &Event) {
        match event {
            Event::Pods(pods) => self.chosen.retain(|uid| pods.index_of(uid).is_some()),
            Event::Evicted { uid, .. } => drop(self.chosen.remove(uid)),
            Event::Executing { update: ExecutorUpdate::Started(started), .. } => {
                self.executing.insert(started.pod.uid.clone());
            }
            _ => {}
        }
    }
}

fn sized(policy: Policy) -> Option<(Policy, u32)> {
    let most = policy.rules.preferences.as_ref()?.max_evictions_per_sync;
    Some((policy, most))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The time does not advance, so no eviction expires.
    #[test]
    fn terminating_pods_are_not_evicted_again(policy in any_policy(), inputs in inputs()) {
        let Some((policy, _)) = sized(policy) else { return Ok(()) };
        let mut engine = Engine::new(policy);
        let mut terminating = TerminatingPods::default();
        for Input { event, .. } in inputs {
            terminating.update(&event);
            let decision = step(&mut engine, 0, event);
            for action in &decision.actions {
                let uid = |eviction: &Eviction| {
                    decision.evaluation().unwrap().pods.get(eviction.pod).unwrap().pod.uid.clone()
                };
                match action {
                    Action::Evict(eviction) => prop_assert!(terminating.chosen.insert(uid(eviction))),
                    Action::ShortenGrace(eviction) => {
                        let uid = uid(eviction);
                        let is_chosen = terminating.chosen.contains(&uid);
                        prop_assert!(is_chosen || terminating.executing.contains(&uid));
                    }
                    Action::RecordEvent(_) | Action::Reclaim(_) => {}
                }
            }
        }
    }

    /// Without the last victim a deficit would remain, and there are no more victims than allowed.
    #[test]
    fn no_more_pods_are_evicted_than_needed(policy in any_policy(), inputs in inputs()) {
        let Some((policy, most)) = sized(policy) else { return Ok(()) };
        let mut engine = Engine::new(policy);
        for input in inputs {
            let decision = engine.step(input);
            let Some(evaluation) = decision.evaluation() else { continue };
            for (index, deficit) in evaluation.deficits.iter().enumerate() {
                let sized = evaluation.sized_pods.iter().filter(|sized| sized.deficit == index);
                let victims: Vec<_> =
                    sized.filter(|sized| sized.outcome == SizedOutcome::Evicted).collect();
                prop_assert!(victims.len() <= most as usize);
                if let Some(last) = victims.last() {
                    prop_assert!(deficit.remaining().saturating_add(last.release.amount) > 0);
                }
                prop_assert!(deficit.in_flight >= 0 && deficit.chosen >= 0);
            }
        }
    }

    /// This holds however often the node is sampled, while no pod terminates and the pressure does not rise.
    #[test]
    fn later_samples_of_the_same_deficit_evict_no_more_pods(
        usages in prop::collection::vec(1..400u64, 1..12),
        available in 0..100u64,
        more in 1..30i64,
    ) {
        let uids: Vec<_> = (0..usages.len()).map(|n| n.to_string()).collect();
        let pods = set(uids.iter().map(|uid| pod(uid, "1")).collect());
        let usage: Vec<_> = uids.iter().map(String::as_str).zip(usages.iter().copied()).collect();
        let policy = fixture::enhanced(vec![hard(MemoryAvailable, "100")], |preferences| {
            preferences.max_evictions_per_sync = 100;
        });
        let mut engine = engine(policy, &pods);
        let first = step(&mut engine, 0, sample(0, available, &usage));
        let evaluation = first.evaluation().unwrap();
        let covered = evaluation.deficits[0].remaining() <= 0;
        prop_assert_eq!(covered, usages.iter().sum::<u64>() >= 100 - available);
        let again = step(&mut engine, more, sample(more, available, &usage));
        prop_assert!(victims(&again).is_empty(), "{:?}", again.actions);
    }
}

/// The record shows the sum of the expected releases.
#[test]
fn record_contains_every_part_of_the_deficit() {
    let thresholds = vec![hard_with_reclaim("200"), soft(MemoryAvailable, "400", 1)];
    let pods = set(vec![with_grace("slow", 600), pod("b", "10"), pod("cache", "1"), pod("c", "10")]);
    let policy = enhanced(thresholds);
    let mut engine = engine(policy.clone(), &pods);
    let usage = [("slow", 110, 100), ("b", 100, 90), ("cache", 95, 0), ("c", 60, 55)]
        .map(|(uid, working_set, anonymous)| anonymous_of(uid, working_set, anonymous));
    let sample = |seconds, available| Event::Sample(snapshot(node(available, 900, at(seconds)), &usage));
    step(&mut engine, 0, sample(0, 350));
    step(&mut engine, 1, sample(1, 350));
    let decision = step(&mut engine, 2, sample(2, 60));
    let report = DecisionRecord::of(&decision);
    insta::assert_json_snapshot!(report);
}
