use proptest::prelude::*;

use crate::decision::Decision;
use crate::engine::Engine;
use crate::fixture::{at, engine, hard, node, policy, set, snapshot, soft, step};
use crate::input::Event;
use crate::node as api;
use crate::node_conditions::{
    self, ConditionStatus, InitialCondition, Pressure, PressureCause, Pressures, PublishedCondition,
};
use crate::signal::NodeCondition::{self, MemoryPressure};
use crate::signal::Signal::MemoryAvailable;
use crate::time::later;
use crate::units::GoDuration;

const PERIOD: GoDuration = GoDuration::from_secs(300);

fn memory_engine() -> Engine {
    let thresholds = vec![soft(MemoryAvailable, "200", 30), hard(MemoryAvailable, "100")];
    engine(policy(thresholds), &set(Vec::new()))
}

fn sample(engine: &mut Engine, seconds: i64, available: u64) -> Decision {
    step(engine, seconds, Event::Sample(snapshot(node(available, 900, at(seconds)), &[])))
}

fn memory(pressures: &mut Pressures, decision: &Decision) -> Pressure {
    pressures.update(decision, PERIOD)[MemoryPressure as usize]
}

#[test]
fn pressure_is_hard_for_the_transition_period_of_the_worst_threshold() {
    let (mut engine, mut pressures) = (memory_engine(), Pressures::default());
    let mut observe = |seconds, available| {
        let decision = sample(&mut engine, seconds, available);
        memory(&mut pressures, &decision)
    };
    let no_pressure = observe(0, 500);
    assert_eq!(no_pressure, Pressure::default());
    // An unfinished grace period does not matter for a condition.
    let soft = observe(10, 150);
    let expected = Pressure {
        status: ConditionStatus::True,
        since: Some(at(10)),
        hard: false,
        cause: Some(PressureCause::Met { threshold: 0 }),
    };
    assert_eq!(soft, expected);
    let hard = observe(20, 50);
    assert_eq!(hard, Pressure { hard: true, cause: Some(PressureCause::Met { threshold: 1 }), ..expected });
    // It stays hard for its own transition period, whatever is met in between.
    assert_eq!(observe(100, 150), Pressure { hard: true, ..expected });
    assert!(observe(319, 150).hard);
    assert!(!observe(320, 150).hard);
    let over = Some(PressureCause::Transition { since: at(320) });
    assert_eq!(observe(330, 500), Pressure { cause: over, ..expected });
    assert_eq!(observe(619, 500), Pressure { cause: over, ..expected });
    let cleared = observe(620, 500);
    assert_eq!(cleared, Pressure { since: Some(at(620)), ..Pressure::default() });
}

fn published_condition(kind: &str, status: &str, text: (&str, &str), heartbeat: i64) -> api::Condition {
    api::Condition {
        kind: kind.into(),
        status: status.into(),
        reason: text.0.into(),
        message: text.1.into(),
        last_heartbeat_time: Some(at(heartbeat)),
        last_transition_time: Some(at(0)),
    }
}

fn node_with(condition: api::Condition, effect: Option<&str>) -> api::Node {
    let taint = |effect: &str| api::Taint {
        key: node_conditions::taint_key(MemoryPressure).into(),
        value: "".into(),
        effect: effect.into(),
    };
    let taints = effect.map(taint).into_iter().collect();
    api::Node { conditions: vec![condition], taints, ..api::Node::default() }
}

const KIND: &str = "EvictionAgentMemoryPressure";

fn initial(node: &api::Node, now: i64) -> Vec<InitialCondition> {
    InitialCondition::all(node, at(now), |shown| shown)
}

#[test]
fn condition_from_before_the_start_holds_for_the_rest_of_its_period() {
    let text = (
        "InPressureTransitionPeriod",
        "eviction thresholds were met until 2026-01-05T08:01:40Z; a hard one among them; the condition holds for 5m0s longer",
    );
    let node = node_with(published_condition(KIND, "True", text, 200), Some("NoSchedule"));
    let seed = initial(&node, 250);
    let (mut engine, mut pressures) = (memory_engine(), Pressures::default());
    // The first sample may precede the Node object.
    let decision = sample(&mut engine, 249, 500);
    assert_eq!(memory(&mut pressures, &decision).status, ConditionStatus::False);
    engine.seed_conditions(seed.iter().filter_map(InitialCondition::raised));
    seed.iter().for_each(|it| pressures.restore(it.condition, it.published));
    let mut observe = |seconds| {
        let decision = sample(&mut engine, seconds, 500);
        memory(&mut pressures, &decision)
    };
    let held = Pressure {
        status: ConditionStatus::True,
        since: None,
        hard: true,
        cause: Some(PressureCause::Transition { since: at(100) }),
    };
    assert_eq!(observe(250), held, "and it is no change");
    assert_eq!(observe(399), held);
    assert_eq!(observe(400), Pressure { since: Some(at(400)), ..Pressure::default() });
}

#[test]
fn published_condition_counts_as_met_until_the_next_heartbeat() {
    let text = ("HardEvictionThresholdMet", "memory.available is below 100 (hard threshold)");
    let raised = |condition, now| initial(&node_with(condition, None), now)[0].raised_at;
    assert_eq!(raised(published_condition(KIND, "True", text, 200), 250), Some(at(250)));
    assert_eq!(raised(published_condition(KIND, "True", text, 200), 9_000), Some(at(500)));
    assert_eq!(raised(published_condition(KIND, "False", text, 200), 250), None);
    // A text that is not the agent's, a time in the future, no times at all.
    let foreign = ("InPressureTransitionPeriod", "eviction thresholds were met until noon; ");
    assert_eq!(raised(published_condition(KIND, "True", foreign, 200), 9_000), Some(at(500)));
    assert_eq!(raised(published_condition(KIND, "True", text, 99_000), 250), Some(at(250)));
    let timeless = api::Condition {
        last_heartbeat_time: None,
        last_transition_time: None,
        ..published_condition(KIND, "True", text, 0)
    };
    assert_eq!(raised(timeless, 250), Some(at(250)));
    let kubelets = node_with(published_condition("MemoryPressure", "True", text, 200), Some("NoSchedule"));
    assert_eq!(initial(&kubelets, 250), []);
}

fn restore(pressures: &mut Pressures, published: &[PublishedCondition; 3]) {
    NodeCondition::ALL.iter().zip(published).for_each(|(condition, it)| pressures.restore(*condition, *it));
}

#[test]
fn next_agent_continues_from_the_published_conditions() {
    let (mut engine, mut pressures) = (memory_engine(), Pressures::default());
    assert_eq!(pressures.published(), None);
    memory(&mut pressures, &sample(&mut engine, 10, 500));
    memory(&mut pressures, &sample(&mut engine, 20, 50));
    let published = pressures.published().unwrap();
    let expected =
        PublishedCondition { status: ConditionStatus::True, since: Some(at(20)), hard_at: Some(at(20)) };
    assert_eq!(published[MemoryPressure as usize], expected);
    // The condition has not been written to the node yet: neither the time of the change nor the hard threshold is lost.
    let mut next = Pressures::default();
    restore(&mut next, &published);
    let mut engine = memory_engine();
    let pressure = memory(&mut next, &sample(&mut engine, 30, 150));
    assert_eq!((pressure.since, pressure.hard), (Some(at(20)), true));
    let mut next = Pressures::default();
    restore(&mut next, &published);
    let mut engine = memory_engine();
    assert_eq!(memory(&mut next, &sample(&mut engine, 30, 500)).since, Some(at(30)), "it has changed since");
}

#[test]
fn only_node_conditions_newer_than_the_state_are_used() {
    let text = ("HardEvictionThresholdMet", "memory.available is below 100 (hard threshold)");
    let seed = initial(&node_with(published_condition(KIND, "True", text, 200), None), 250);
    assert_eq!(seed[0].condition, MemoryPressure);
    assert!(seed[0].is_newer_than(at(199)) && !seed[0].is_newer_than(at(200)));
}

#[test]
fn times_of_node_conditions_are_converted_after_they_are_limited_to_now() {
    let text = ("HardEvictionThresholdMet", "memory.available is below 100 (hard threshold)");
    let node = node_with(published_condition(KIND, "True", text, 200), None);
    let seed = InitialCondition::all(&node, at(250), |shown| later(shown, GoDuration::from_secs(1_000)));
    assert_eq!((seed[0].raised_at, seed[0].published_at), (Some(at(1_250)), Some(at(1_200))));
}

proptest! {
    /// This holds for any samples in any order.
    #[test]
    fn pressure_is_hard_only_while_the_condition_holds_and_while_a_hard_threshold_is_met(
        samples in prop::collection::vec((0..400_i64, 0..300_u64), 1..40),
    ) {
        let (mut engine, mut pressures) = (memory_engine(), Pressures::default());
        let mut now = 0;
        for (pause, available) in samples {
            now += pause;
            let decision = sample(&mut engine, now, available);
            let pressure = memory(&mut pressures, &decision);
            prop_assert!(!pressure.hard || pressure.status == ConditionStatus::True);
            if available < 100 {
                prop_assert!(pressure.hard);
                prop_assert_eq!(pressure.cause, Some(PressureCause::Met { threshold: 1 }));
            } else if available < 200 {
                prop_assert_eq!(pressure.status, ConditionStatus::True);
            }
        }
    }
}
