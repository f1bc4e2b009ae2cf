use proptest::prelude::*;

use super::{
    ConditionStatus, Due, Pressure, PressureCause, TaintChange, TaintEffect, conditions, effects, taint_key,
    taints, transition_since,
};
use crate::fixture::{at, hard, soft};
use crate::node::{Condition, Node, Taint};
use crate::policy::Threshold;
use crate::policy::eviction_settings::NodeStatusSettings;
use crate::signal::NodeCondition::{self, MemoryPressure};
use crate::signal::Signal::MemoryAvailable;
use crate::threshold::Thresholds;
use crate::units::GoDuration;
use std::sync::Arc;

fn thresholds() -> Arc<[Threshold]> {
    let all = [soft(MemoryAvailable, "200Mi", 30), hard(MemoryAvailable, "10%")];
    Arc::clone(Thresholds::new(&all).all())
}

fn with_memory_pressure(pressure: Pressure) -> [Pressure; NodeCondition::COUNT] {
    let mut all = [Pressure::default(); NodeCondition::COUNT];
    all[MemoryPressure as usize] = pressure;
    all
}

const PERIOD: GoDuration = GoDuration::from_secs(300);

const HARD: Pressure = Pressure {
    status: ConditionStatus::True,
    since: None,
    hard: true,
    cause: Some(PressureCause::Met { threshold: 1 }),
};

#[test]
fn conditions_are_due_when_they_change_or_need_a_heartbeat() {
    let thresholds = thresholds();
    let no_pressure = with_memory_pressure(Pressure::default());
    let first = conditions(&Node::default(), &no_pressure, &thresholds, PERIOD, at(0));
    assert_eq!((first.due, first.heartbeat), (Due::Status, at(0)));
    assert!(first.all.iter().all(|it| &*it.status == "False" && it.last_transition_time == Some(at(0))));
    let mut node = Node { conditions: first.all.to_vec(), ..Node::default() };
    // The kubelet's conditions stay where they are and are ignored.
    node.conditions.insert(0, Condition { kind: "MemoryPressure".into(), ..Condition::default() });

    let same = conditions(&node, &no_pressure, &thresholds, PERIOD, at(299));
    assert_eq!((same.due, same.heartbeat), (Due::Not, at(300)));
    assert_eq!(conditions(&node, &no_pressure, &thresholds, PERIOD, at(300)).due, Due::Heartbeat);
    // The clock was set back.
    assert_eq!(conditions(&node, &no_pressure, &thresholds, PERIOD, at(-10)).due, Due::Heartbeat);

    let hard = with_memory_pressure(Pressure { since: Some(at(17)), ..HARD });
    let raised = conditions(&node, &hard, &thresholds, PERIOD, at(20));
    let memory = &raised.all[MemoryPressure as usize];
    assert_eq!(raised.due, Due::Status);
    assert_eq!((&*memory.status, &*memory.reason), ("True", "HardEvictionThresholdMet"));
    assert_eq!(&*memory.message, "memory.available is below 10% (hard threshold)");
    assert_eq!((memory.last_transition_time, memory.last_heartbeat_time), (Some(at(17)), Some(at(20))));
    // The other conditions keep their transition times.
    assert_eq!(raised.all[0].last_transition_time, Some(at(0)));

    node.conditions = raised.all.to_vec();
    let soft = with_memory_pressure(Pressure {
        hard: false,
        cause: Some(PressureCause::Met { threshold: 0 }),
        ..HARD
    });
    let lighter = conditions(&node, &soft, &thresholds, PERIOD, at(400));
    let memory = &lighter.all[MemoryPressure as usize];
    assert_eq!(lighter.due, Due::Detail);
    assert_eq!(&*memory.message, "memory.available is below 200Mi (soft threshold, grace period 30s)");
    assert_eq!(memory.last_transition_time, Some(at(17)), "it held all the time");
}

#[test]
fn transition_time_is_kept_unless_a_later_change_was_not_written() {
    let thresholds = thresholds();
    let published = Condition {
        kind: "EvictionAgentMemoryPressure".into(),
        status: "True".into(),
        last_heartbeat_time: Some(at(90)),
        last_transition_time: Some(at(40)),
        ..Condition::default()
    };
    let node = Node { conditions: vec![published], ..Node::default() };
    let transition = |since| {
        let pressures = with_memory_pressure(Pressure { since, ..HARD });
        let conditions = conditions(&node, &pressures, &thresholds, PERIOD, at(1_000));
        conditions.all[MemoryPressure as usize].last_transition_time
    };
    assert_eq!(transition(None), Some(at(40)));
    assert_eq!(transition(Some(at(30))), Some(at(40)));
    assert_eq!(transition(Some(at(700))), Some(at(700)), "it was False meanwhile, and no update was sent");
    assert_eq!(transition(Some(at(5_000))), Some(at(1_000)), "no time of the future");
}

#[test]
fn transition_start_is_parsed_from_the_condition_message() {
    let thresholds = thresholds();
    let over = Pressure { cause: Some(PressureCause::Transition { since: at(100) }), ..HARD };
    let pressures = with_memory_pressure(over);
    let all = conditions(&Node::default(), &pressures, &thresholds, PERIOD, at(120)).all;
    let memory = &all[MemoryPressure as usize];
    assert_eq!(
        &*memory.message,
        "eviction thresholds were met until 2026-01-05T08:01:40Z; a hard one among them; the condition holds for 5m0s longer"
    );
    assert_eq!(transition_since(&memory.reason, &memory.message), Some(at(100)));
    assert_eq!(transition_since("SoftEvictionThresholdMet", &memory.message), None);
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: effect.into() }
}

fn node(taints: Vec<Taint>) -> Node {
    Node { taints, ..Node::default() }
}

/// Returns the list after these changes, applied one after the other.
fn changed(node: &Node, changes: &[TaintChange]) -> Vec<Taint> {
    let mut taints = node.taints.clone();
    for change in changes {
        match *change {
            TaintChange::Remove { index, .. } => drop(taints.remove(index)),
            TaintChange::Add { key, effect } => taints.push(taint(key, "", effect.name())),
        }
    }
    taints
}

#[test]
fn taint_effect_follows_the_pressure_and_the_settings() {
    let settings = |prefer_no_schedule, no_schedule| NodeStatusSettings {
        prefer_no_schedule,
        no_schedule,
        ..NodeStatusSettings::NONE
    };
    let soft = Pressure { hard: false, ..HARD };
    let of = |pressure: &Pressure, settings| super::wanted(pressure, settings).map(TaintEffect::name);
    for (switches, when_soft, when_hard) in [
        (settings(true, true), Some("PreferNoSchedule"), Some("NoSchedule")),
        (settings(true, false), Some("PreferNoSchedule"), Some("PreferNoSchedule")),
        (settings(false, true), None, Some("NoSchedule")),
        (settings(false, false), None, None),
    ] {
        assert_eq!((of(&soft, switches), of(&HARD, switches)), (when_soft, when_hard), "{switches:?}");
    }
    assert_eq!(of(&Pressure::default(), NodeStatusSettings::default()), None);
}

#[test]
fn only_taints_that_the_agent_writes_count_as_its_own() {
    let key = taint_key(MemoryPressure);
    let others = vec![
        taint(key, "mine", "PreferNoSchedule"),
        taint(key, "", "NoExecute"),
        taint("node.kubernetes.io/memory-pressure", "", "NoSchedule"),
    ];
    let node = node(others);
    assert_eq!(effects(&node, MemoryPressure).count(), 0);
    assert_eq!(taints(&node, &[None; 3]), []);
    let mut wanted = [None; 3];
    wanted[MemoryPressure as usize] = Some(TaintEffect::NoSchedule);
    assert_eq!(taints(&node, &wanted), [TaintChange::Add { key, effect: TaintEffect::NoSchedule }]);
    // The API server accepts only one taint of each key and effect.
    wanted[MemoryPressure as usize] = Some(TaintEffect::PreferNoSchedule);
    assert_eq!(taints(&node, &wanted), []);
}

fn any_taint() -> impl Strategy<Value = Taint> {
    let keys = NodeCondition::ALL.map(taint_key).into_iter().chain(["a", "b"]).collect::<Vec<_>>();
    let effects = vec!["PreferNoSchedule", "NoSchedule", "NoExecute", ""];
    (prop::sample::select(keys), prop::sample::select(vec!["", "x"]), prop::sample::select(effects))
        .prop_map(|(key, value, effect)| taint(key, value, effect))
}

proptest! {
    /// This holds for any list: afterwards the agent's taints are as wanted, once each, and all others are
    /// unchanged and in the same order.
    #[test]
    fn taint_changes_produce_the_wanted_taints(
        list in prop::collection::vec(any_taint(), 0..110),
        wanted in prop::array::uniform3(prop::option::of(prop::sample::select(vec![TaintEffect::PreferNoSchedule, TaintEffect::NoSchedule]))),
    ) {
        let before = node(list);
        let after = node(changed(&before, &taints(&before, &wanted)));
        let is_own = |taint: &&Taint| {
            let alone = node(vec![(*taint).clone()]);
            NodeCondition::ALL.into_iter().any(|condition| effects(&alone, condition).count() > 0)
        };
        for condition in NodeCondition::ALL {
            let found: Vec<TaintEffect> = effects(&after, condition).collect();
            let is_set_by_other_writer = |effect: &TaintEffect| before.taints.iter().any(|it| {
                &*it.key == taint_key(condition) && &*it.value == "x" && *it.effect == *effect.name()
            });
            let expected = wanted[condition as usize].filter(|effect| !is_set_by_other_writer(effect));
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
        let others = |node: &Node| node.taints.iter().filter(|it| !is_own(it)).cloned().collect::<Vec<_>>();
        prop_assert_eq!(others(&before), others(&after));
        prop_assert_eq!(taints(&after, &wanted), vec![]);
    }
}
