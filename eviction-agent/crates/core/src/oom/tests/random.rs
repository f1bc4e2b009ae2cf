//! The counts add up for any records.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::decision::{Decision, DecisionKind};
use crate::engine::Engine;
use crate::fixture::arbitrary::{container_ended, inputs, oom_kill};
use crate::fixture::{at, pod, policy, set};
use crate::input::{Event, Input};
use crate::oom::{EndHandling, OomUpdate};
use crate::time::Timestamp;

fn records() -> BoxedStrategy<Vec<Input>> {
    let record = prop_oneof![
    4 => oom_kill().prop_map(|kill| Event::OomKill(Box::new(kill))),
    4 => container_ended().prop_map(|end| Event::ContainerEnded(Box::new(end))),
    1 => Just(Event::Pods(set(vec![pod("a", "1"), pod("b", "1")]))),
    1 => Just(Event::Evicted { uid: "a".into(), result: Err("left".into()) }),
    ];
    let close = (0..60i64).prop_map(at);
    prop::collection::vec((close, record).prop_map(|(at, event)| Input { at, event }), 0..60).boxed()
}

/// Runs the inputs until the end of time, and checks what holds for any sequence.
fn run(inputs: Vec<Input>) -> Result<(), TestCaseError> {
    let mut engine = Engine::new(policy(Vec::new()));
    let (mut kills, mut ends, mut recorded) = (BTreeMap::new(), 0, 0);
    let end = Input { at: Timestamp::MAX, event: Event::Pods(set(Vec::new())) };
    for input in inputs.into_iter().chain([end]) {
        let decision = engine.step(input);
        match &decision.kind {
            DecisionKind::Oom(OomUpdate::Kill(kill)) => {
                if let Some(uid) = kill.pod_uid.clone().filter(|uid| !uid.is_empty() && !kill.repeated) {
                    let in_pod = kills.entry(uid).or_insert(0);
                    *in_pod += 1;
                    prop_assert!(kill.kills_in_pod <= *in_pod, "fewer where the pod was forgotten");
                }
            }
            DecisionKind::Oom(OomUpdate::End { handling, .. }) => {
                recorded += u64::from(*handling == EndHandling::Noted)
            }
            _ => {}
        }
        for ended in &decision.ended {
            let mut causes: Vec<_> = ended.contributing.iter().chain([&ended.cause]).collect();
            causes.sort_unstable();
            causes.dedup();
            prop_assert_eq!(causes.len(), ended.contributing.len() + 1, "no cause twice");
            ends += 1;
        }
    }
    prop_assert!(ends <= recorded, "an end has at least one record");
    prop_assert_eq!(engine.oom().due(), None, "every end has its cause");
    Ok(())
}

/// Returns all inputs twice.
fn twice(inputs: &[Input]) -> Vec<Input> {
    inputs.iter().chain(inputs).cloned().collect()
}

proptest! {
#[test]
fn counts_add_up_for_random_oom_records(inputs in records()) {
run(inputs)?;
}

#[test]
fn counts_add_up_for_random_inputs(inputs in inputs()) {
run(inputs)?;
}

#[test]
fn kills_reported_twice_count_once(inputs in records()) {
let dated = |input: &Input| match &input.event {
Event::OomKill(kill) => kill.pid != 0 && kill.at.is_some_and(|at| at <= input.at),
_ => false,
};
let kills: Vec<Input> = inputs.into_iter().filter(dated).collect();
let total = |inputs: Vec<Input>| {
let mut engine = Engine::new(policy(Vec::new()));
let decisions = inputs.into_iter().map(|input| engine.step(input));
let counts = |decision: &Decision| {
matches!(&decision.kind, DecisionKind::Oom(OomUpdate::Kill(kill)) if !kill.repeated)
};
decisions.filter(counts).count()
};
prop_assert_eq!(total(twice(&kills)), total(kills));
}
}
