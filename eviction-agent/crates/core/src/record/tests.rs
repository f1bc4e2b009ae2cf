use crate::decision::Decision;
use crate::engine::Engine;
use crate::fixture::{at, engine, hard, memory_of, node, pod, policy, set, snapshot, soft, step};
use crate::input::Event;
use crate::pod::Pod;
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
