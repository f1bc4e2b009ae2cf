//! Whatever records come, the figures add up.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::decision::DecisionKind;
use crate::engine::Engine;
use crate::fixture::arbitrary::{container_ended, inputs, oom_kill};
use crate::fixture::{at, pod, policy, set};
use crate::input::{Event, Input};
use crate::oom::{EndHandling, OomUpdate, TerminationCause};
use crate::progress::EvictionResult;
use crate::time::Timestamp;

fn records() -> BoxedStrategy<Vec<Input>> {
    let record = prop_oneof![
    4 => oom_kill().prop_map(|kill| Event::OomKill(Box::new(kill))),
    4 => container_ended().prop_map(|end| Event::ContainerEnded(Box::new(end))),
    1 => Just(Event::Pods(set(vec![pod("a", "1"), pod("b", "1")]))),
    1 => Just(Event::Evicted(EvictionResult { uid: "a".into(), result: Err("left".into()) })),
    ];
    let close = (0..60i64).prop_map(at);
    prop::collection::vec((close, record).prop_map(|(at, event)| Input { at, event }), 0..60).boxed()
}

/// Runs it to the end of time; checks what holds of any sequence.
fn run(inputs: Vec<Input>) -> Result<(), TestCaseError> {
    let mut engine = Engine::new(policy(Vec::new()));
    let (mut kills, mut ends) = (0, BTreeMap::new());
    let mut counted = 0;
    let end = Input { at: Timestamp::MAX, event: Event::Pods(set(Vec::new())) };
    for input in inputs.into_iter().chain([end]) {
        let decision = engine.step(input);
        match &decision.kind {
            DecisionKind::Oom(OomUpdate::Kill(kill)) => kills += u64::from(!kill.repeated),
            DecisionKind::Oom(OomUpdate::End(end)) => {
                counted += u64::from(end.handling == EndHandling::Noted)
            }
            _ => {}
        }
        for ended in &decision.ended {
            prop_assert!(!ended.causes.is_empty());
            let mut causes: Vec<TerminationCause> = ended.causes.iter().map(|cause| cause.cause).collect();
            causes.sort_unstable();
            causes.dedup();
            prop_assert_eq!(causes.len(), ended.causes.len(), "no cause twice");
            *ends.entry(ended.cause()).or_insert(0) += 1;
        }
    }
    let tracker = engine.oom();
    prop_assert_eq!(tracker.kills().total(), kills);
    for cause in TerminationCause::ALL {
        prop_assert_eq!(tracker.ends().of(cause), ends.get(&cause).copied().unwrap_or(0));
    }
    prop_assert!(tracker.ends().total() <= counted, "an end has at least one record");
    prop_assert_eq!(tracker.pods().map(|(_, pod)| pod.open_ends()).sum::<usize>(), 0);
    let of_pods: u64 = tracker.pods().map(|(_, pod)| pod.ends().total()).sum();
    prop_assert!(of_pods <= tracker.ends().total());
    for (_, pod) in tracker.pods() {
        let of_containers: u64 = pod.containers().values().map(|it| it.ends.total()).sum();
        prop_assert_eq!(of_containers, pod.ends().total());
    }
    Ok(())
}

/// Everything twice.
fn twice(inputs: &[Input]) -> Vec<Input> {
    inputs.iter().chain(inputs).cloned().collect()
}

proptest! {
#[test]
fn the_figures_add_up(inputs in records()) {
run(inputs)?;
}

#[test]
fn the_figures_add_up_among_everything_else(inputs in inputs()) {
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
inputs.into_iter().for_each(|input| { engine.step(input); });
engine.oom().kills().clone()
};
prop_assert_eq!(total(twice(&kills)), total(kills));
}
}
