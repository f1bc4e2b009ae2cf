use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::{ApiPhase, ExecutorUpdate, InFlightEviction};
use crate::engine::Engine;
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{at, engine, hard, pod, policy, set, step};
use crate::input::{ApiReachability, Event, Input};
use crate::pod::PodName;
use crate::pods::PodSet;
use crate::policy::{Policy, Rules};
use crate::signal::Signal;
use crate::state::EngineState;

fn pods() -> Arc<PodSet> {
    set(vec![pod("a", "10"), pod("b", "10")])
}

/// Returns an engine with the kubelet's rules.
fn kubelet_engine() -> Engine {
    engine(policy(vec![hard(Signal::MemoryAvailable, "200")]), &pods())
}

fn started(uid: &str, seconds: i64, api: Option<ApiPhase>) -> InFlightEviction {
    let pod = Arc::new(PodName { namespace: "default".into(), name: uid.into(), uid: uid.into() });
    let signal = Signal::MemoryAvailable.name();
    let killing = api.is_none();
    InFlightEviction { api, killing, ..InFlightEviction::new(pod, signal, true, at(seconds), 1) }
}

fn start(engine: &mut Engine, decision: u64, seconds: i64, started: InFlightEviction) {
    update(engine, decision, seconds, ExecutorUpdate::Started(Box::new(started)));
}

fn update(engine: &mut Engine, decision: u64, seconds: i64, update: ExecutorUpdate) {
    step(engine, seconds, Event::Executing { decision, update });
}

fn terminate(engine: &mut Engine, decision: u64, seconds: i64, uid: &str) {
    update(engine, decision, seconds, ExecutorUpdate::KillEnded { gone: true });
    step(engine, seconds, Event::Evicted { uid: uid.into(), result: Ok(()) });
}

#[test]
fn kubelet_profile_waits_until_all_victims_have_terminated() {
    let mut engine = kubelet_engine();
    assert!(!engine.is_waiting(at(0)));
    start(&mut engine, 1, 10, started("a", 10, None));
    start(&mut engine, 2, 12, started("b", 12, None));
    assert_eq!(engine.waits_for_victims_until(at(12)), Some(at(42)));
    terminate(&mut engine, 1, 13, "a");
    assert!(engine.is_waiting(at(13)));
    terminate(&mut engine, 2, 14, "b");
    assert!(!engine.is_waiting(at(14)));
    assert_eq!(engine.waits_for_victims_until(at(14)), None);
}

#[test]
fn kubelet_profile_waits_no_longer_than_the_pod_cleanup_timeout() {
    let mut engine = kubelet_engine();
    start(&mut engine, 1, 5, started("a", 5, None));
    assert!(engine.is_waiting(at(34)) && !engine.is_waiting(at(35)));
    // It also waits for an eviction that no executor carries out any more and that did not end: a dry run.
    update(&mut engine, 1, 6, ExecutorUpdate::KillEnded { gone: false });
    assert!(engine.is_waiting(at(34)) && !engine.is_waiting(at(35)));
    step(&mut engine, 36, Event::EvictionsPausedUntil(at(36)));
    assert!(engine.in_flight().is_empty(), "and then it is forgotten");
    // An eviction that an executor carries out goes on.
    start(&mut engine, 2, 40, started("a", 40, None));
    step(&mut engine, 100, Event::EvictionsPausedUntil(at(100)));
    assert_eq!((engine.in_flight().len(), engine.is_waiting(at(100))), (1, false));
    // After its grace period is shortened, the full wait begins again.
    let shortened = ExecutorUpdate::Shortened { grace_period_seconds: 1, killing: true };
    update(&mut engine, 2, 101, shortened);
    assert_eq!(engine.waits_for_victims_until(at(101)), Some(at(131)));
}

#[test]
fn kubelet_profile_pauses_no_longer_than_the_pod_cleanup_timeout() {
    let mut engine = kubelet_engine();
    start(&mut engine, 1, 5, started("a", 5, Some(ApiPhase::Requested)));
    update(&mut engine, 1, 6, ExecutorUpdate::Api(None));
    assert!(!engine.is_waiting(at(6)), "what the API server refused is over");
    step(&mut engine, 6, Event::EvictionsPausedUntil(at(16)));
    assert!(engine.is_waiting(at(15)) && !engine.is_waiting(at(16)));
    step(&mut engine, 20, Event::EvictionsPausedUntil(at(1_000)));
    assert!(engine.is_waiting(at(49)) && !engine.is_waiting(at(50)));
}

#[test]
fn kubelet_profile_waits_for_the_result_of_an_unconfirmed_request() {
    let mut engine = kubelet_engine();
    start(&mut engine, 1, 5, started("a", 5, Some(ApiPhase::Requested)));
    update(&mut engine, 1, 10, ExecutorUpdate::Api(Some(ApiPhase::Unconfirmed)));
    assert!(engine.is_waiting(at(3_600)));
    assert_eq!(engine.waits_for_victims_until(at(3_600)), None, "time alone does not end it");
    step(&mut engine, 3_600, Event::ApiServer(ApiReachability::Unreachable));
    assert!(!engine.is_waiting(at(3_600)), "others may be killed meanwhile");
    step(&mut engine, 3_601, Event::ApiServer(ApiReachability::Reachable));
    assert!(engine.is_waiting(at(3_601)));
    update(&mut engine, 1, 3_602, ExecutorUpdate::Api(Some(ApiPhase::Accepted)));
    assert!(!engine.is_waiting(at(3_602)));
}

#[test]
fn enhanced_profile_never_waits_for_victims() {
    let mut engine = engine(crate::fixture::enhanced(vec![], |_| {}), &pods());
    start(&mut engine, 1, 5, started("a", 5, None));
    step(&mut engine, 5, Event::EvictionsPausedUntil(at(60)));
    assert!(!engine.is_waiting(at(6)));
}

#[test]
fn two_executors_for_the_same_pod_are_tracked_separately() {
    let mut engine = kubelet_engine();
    // The API request is sent, the server cannot be reached, and the same pod is killed by another decision.
    start(&mut engine, 1, 5, started("a", 5, Some(ApiPhase::Requested)));
    start(&mut engine, 2, 40, started("a", 40, None));
    let decisions =
        |engine: &Engine| engine.in_flight().iter().map(|it| it.decision.unwrap_or(0)).collect::<Vec<_>>();
    assert_eq!(decisions(&engine), [1, 2]);
    // The answer of the API server to the first eviction does not end the second one.
    update(&mut engine, 1, 41, ExecutorUpdate::Api(None));
    let result = Err(crate::progress::NotEvicted::NotAsked);
    step(&mut engine, 41, Event::Evicted { uid: "a".into(), result });
    assert_eq!(decisions(&engine), [2]);
    assert!(engine.in_flight()[0].is_terminating());
}

#[test]
fn next_agent_resumes_in_flight_evictions() {
    let mut first = kubelet_engine();
    start(&mut first, 1, 5, started("a", 5, Some(ApiPhase::Requested)));
    start(&mut first, 2, 6, started("c", 6, None));
    let text = serde_json::to_string(&first.state()).unwrap_or_default();
    let state: EngineState = serde_json::from_str(&text).unwrap_or_default();
    assert_eq!(state, first.state());
    let mut second = Engine::new(first.policy().clone());
    step(&mut second, 10, Event::Restore(Box::new(state)));
    assert!(second.in_flight().iter().all(|it| it.restored && it.is_executing()));
    assert!(!second.is_waiting(at(10)), "no pod can be chosen before the pods are known");
    step(&mut second, 11, Event::Pods(set(Vec::new())));
    assert_eq!(second.in_flight().len(), 2, "no pods are known yet");
    step(&mut second, 12, Event::Pods(pods()));
    let [InFlightEviction { decision, api, restored, .. }] = second.in_flight() else {
        panic!("only one has a pod: {:?}", second.in_flight())
    };
    assert_eq!((*decision, *api, *restored), (Some(1), Some(ApiPhase::Unconfirmed), false));
    assert_eq!(second.waits_for_victims_until(at(12)), Some(at(35)), "since it was decided");
}

#[test]
fn in_flight_evictions_are_read_without_optional_fields() {
    let minimal = json!({
        "uid": "a", "namespace": "default", "name": "a", "signal": "memory.available", "hard": true,
        "decidedAt": "2026-01-05T08:00:00Z", "since": "2026-01-05T08:00:00Z", "gracePeriodSeconds": 1,
        "expected": vec![json!({"release": 5, "basis": "anonymous"}); Signal::COUNT],
    });
    let read: InFlightEviction = serde_json::from_value(minimal.clone()).unwrap();
    assert_eq!((&*read.pod.uid, read.is_terminating(), read.is_executing()), ("a", true, false));
    assert_eq!(read.signal(), Some(Signal::MemoryAvailable));
    let mut other = minimal;
    other["signal"] = json!("magic");
    assert!(serde_json::from_value::<InFlightEviction>(other).is_err());
}

proptest! {
    /// Replays and scenarios have no executors.
    #[test]
    fn executor_updates_change_no_decision_of_the_kubelet_profile(any in any_policy(), inputs in inputs()) {
        let policy = Policy { rules: Rules::kubelet(), ..any };
        let (mut one, mut other) = (Engine::new(policy.clone()), Engine::new(policy));
        for Input { at, event } in inputs {
            let without = match &event {
                Event::Executing { .. } => Event::EvictionsPausedUntil(at),
                event => event.clone(),
            };
            let (with, without) = (one.step(Input { at, event }), other.step(Input { at, event: without }));
            prop_assert_eq!(with.actions, without.actions);
            prop_assert_eq!(with.conditions, without.conditions);
        }
    }
}
