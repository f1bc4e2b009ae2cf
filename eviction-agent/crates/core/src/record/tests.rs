use std::sync::Arc;

use crate::decision::Decision;
use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, set_by, snapshot, soft, step, victims,
};
use crate::in_flight::InFlightEviction;
use crate::input::Event;
use crate::pod::{Owner, Pod, PodName};
use crate::policy::Threshold;
use crate::signal::Signal::{self, MemoryAvailable, NodeFsAvailable};
use crate::units::ThresholdValue;

use super::{CandidateOutcome, DecisionRecord, PodSample};

fn under_pressure() -> (Engine, Decision) {
    let critical = Pod { priority: Some(2_000_000_000), ..pod("critical", "0") };
    let pods = set(vec![pod("greedy", "10"), pod("modest", "300"), critical, pod("unseen", "1Mi")]);
    let policy = policy(vec![
        Threshold { min_reclaim: Some(ThresholdValue::Percentage(0.05)), ..hard(MemoryAvailable, "10%") },
        soft(NodeFsAvailable, "950", 60),
    ]);
    let mut engine = engine(policy, &pods);
    let usage = [memory_of("greedy", 200), memory_of("modest", 250), memory_of("critical", 90)];
    let sample = snapshot(node(50, 900, at(1)), &usage);
    let decision = step(&mut engine, 3, Event::Sample(sample));
    (engine, decision)
}

#[test]
fn record_of_an_eviction_contains_every_candidate() {
    let (_, decision) = under_pressure();
    insta::assert_json_snapshot!(DecisionRecord::of(&decision));
}

#[test]
fn a_condition_shows_that_it_outlives_its_cause() {
    let (mut engine, _) = under_pressure();
    let no_pressure = snapshot(node(900, 999, at(63)), &[]);
    let decision = step(&mut engine, 63, Event::Sample(no_pressure));
    let record = DecisionRecord::of(&decision);
    assert_eq!(record.conditions.len(), 2);
    assert!(record.conditions.iter().all(|condition| condition.outlives_its_cause));
    assert_eq!(record.conditions[0].holds_for.to_string(), "4m0s");
}

#[test]
fn only_a_pod_with_a_protection_has_one_in_its_record() {
    let annotations = [("eviction-agent.io/priority-hint", "7"), ("eviction-agent.io/evict", "maybe")];
    let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let owner = Owner { kind: "ReplicaSet".into(), name: "rs".into(), uid: "rs".into() };
    let owned = Pod { owner: Some(owner), ..pod("owned", "10") };
    let hinted = Pod { annotations, ..pod("hinted", "10") };
    let policy = enhanced(vec![hard(MemoryAvailable, "10%")], |_| {});
    let pods = set_by(&policy, vec![owned, hinted]);
    let mut engine = engine(policy, &pods);
    let sample = snapshot(node(50, 900, at(1)), &[memory_of("owned", 200), memory_of("hinted", 100)]);
    let record = serde_json::to_string(&DecisionRecord::of(&step(&mut engine, 3, Event::Sample(sample))));
    let record = record.unwrap();
    let protections: Vec<_> = record.match_indices("\"protection\"").map(|(at, _)| &record[at..]).collect();
    let expected = r#""protection":{"order":"normal","without_controller":true,"hint":7,"ignored_annotations":[{"annotation":"eviction-agent.io/evict","value":"maybe","error":"not_true_or_false"}]},"#;
    assert!(matches!(&protections[..], [one] if one.starts_with(expected)), "{record}");
}

const MI: u64 = 1 << 20;

fn sample(pods: Vec<Pod>, usage: &[(&str, u64)]) -> PodSample {
    let usage: Vec<_> = usage.iter().map(|(uid, used)| memory_of(uid, *used)).collect();
    let pods = set(pods);
    let snapshot = snapshot(node(50 * MI, 1 << 40, at(0)), &usage).indexed(&pods);
    let (layout, in_flight) = (DiskLayout::default(), Vec::new());
    PodSample { at: at(0), pods, snapshot, layout, in_flight, sized: false }
}

fn three_and_a_critical_one() -> PodSample {
    let critical = Pod { priority: Some(2_000_000_000), ..pod("system", "1Mi") };
    let pods = vec![pod("a", "10Mi"), pod("b", "10Mi"), critical, pod("c", "900Mi")];
    sample(pods, &[("a", 30 * MI), ("b", 50 * MI), ("system", 500 * MI), ("c", 600 * MI)])
}

#[test]
fn the_first_pod_is_the_one_that_an_evaluation_evicts() {
    let sample = three_and_a_critical_one();
    let ranking = sample.ranking(Signal::MemoryAvailable);
    let order: Vec<_> = ranking.iter().map(|it| &*it.pod.uid).collect();
    assert_eq!(order, ["b", "a", "system", "c"]);
    let ranks: Vec<_> = ranking.iter().map(|it| it.rank).collect();
    assert_eq!(ranks, [Some(1), Some(2), None, Some(3)]);
    let mut engine = Engine::new(policy(vec![hard(Signal::MemoryAvailable, "100Mi")]));
    step(&mut engine, 0, Event::DiskLayout(Ok(DiskLayout::default())));
    step(&mut engine, 0, Event::Pods(Arc::clone(&sample.pods)));
    let decision = step(&mut engine, 1, Event::Sample(Arc::clone(&sample.snapshot)));
    assert_eq!(victims(&decision)[0].0, "b");
}

#[test]
fn margins_are_the_changes_that_would_change_the_order() {
    let ranking = three_and_a_critical_one().ranking(Signal::MemoryAvailable);
    let margin = |index: usize| ranking[index].margin.unwrap();
    let twenty = i64::try_from(20 * MI).unwrap();
    // Of equal pods, the one with the lower uid is evicted first.
    assert_eq!(margin(0).usage, Some(-twenty));
    assert_eq!(margin(1).usage, Some(twenty));
    assert_eq!(ranking[2].margin, None, "a critical pod is never evicted");
}

#[test]
fn terminating_pod_is_not_the_next_victim() {
    let mut sample = three_and_a_critical_one();
    let pod = Arc::new(PodName::of(&pod("b", "10Mi")));
    let signal = Signal::MemoryAvailable.name();
    sample.in_flight = vec![InFlightEviction::new(pod, signal, true, at(0), 30)];
    let ranking = sample.ranking(Signal::MemoryAvailable);
    assert_eq!(ranking[0].result, CandidateOutcome::Terminating);
    assert_eq!(ranking[1].result, CandidateOutcome::Evicted);
}

#[test]
fn ranking_without_pods_is_empty() {
    assert!(sample(Vec::new(), &[]).ranking(Signal::PidAvailable).is_empty());
}
