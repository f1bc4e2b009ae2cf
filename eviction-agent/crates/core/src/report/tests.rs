use crate::decision::Decision;
use crate::engine::Engine;
use crate::fixture::{at, engine, hard, memory_of, node, pod, policy, set, snapshot, soft, tell};
use crate::input::Event;
use crate::pod::Pod;
use crate::policy::{Policy, Threshold};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::units::ThresholdValue;

use super::Report;

fn under_pressure() -> (Engine, Policy, Decision) {
    let critical = Pod { priority: Some(2_000_000_000), ..pod("critical", "0") };
    let pods = set(vec![pod("greedy", "10"), pod("modest", "300"), critical, pod("unseen", "1Mi")]);
    let policy = policy(vec![
        Threshold { min_reclaim: Some(ThresholdValue::Percentage(0.05)), ..hard(MemoryAvailable, "10%") },
        soft(NodeFsAvailable, "950", 60),
    ]);
    let mut engine = engine(policy.clone(), &pods);
    let usage = [memory_of("greedy", 200), memory_of("modest", 250), memory_of("critical", 90)];
    let look = snapshot(node(50, 900, at(1)), &usage);
    let decision = tell(&mut engine, 3, Event::Sample(look));
    (engine, policy, decision)
}

#[test]
fn an_eviction_is_explained_to_the_last_candidate() {
    let (_, policy, decision) = under_pressure();
    insta::assert_json_snapshot!(Report::of(&decision, &policy));
}

#[test]
fn a_condition_tells_that_it_outlives_its_cause() {
    let (mut engine, policy, _) = under_pressure();
    let calm = snapshot(node(900, 999, at(63)), &[]);
    let decision = tell(&mut engine, 63, Event::Sample(calm));
    let report = Report::of(&decision, &policy);
    assert_eq!(report.conditions.len(), 2);
    assert!(report.conditions.iter().all(|condition| condition.outlives_its_cause));
    assert_eq!(report.conditions[0].holds_for.to_string(), "4m0s");
}
