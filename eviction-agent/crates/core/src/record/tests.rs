use crate::decision::Decision;
use crate::engine::Engine;
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, set_by, snapshot, soft, step,
};
use crate::input::Event;
use crate::pod::{Owner, Pod};
use crate::policy::Threshold;
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::units::ThresholdValue;

use super::DecisionRecord;

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
