use std::sync::Arc;

use super::Engine;
use crate::decision::Decision;
use crate::eviction::EvaluationEnd;
use crate::fixture::{self, at, engine, enhanced, hard, pod, policy, set_by, soft, step, victims};
use crate::in_flight::{ApiPhase, ExecutorUpdate, InFlightEviction};
use crate::input::{ApiReachability, Event};
use crate::policy::Policy;
use crate::policy::eviction_settings::WhenApiServerDown;
use crate::progress::NotEvicted;
use crate::signal::{NodeCondition, Signal};

fn sample(engine: &mut Engine, seconds: i64, available: u64) -> Decision {
    step(engine, seconds, fixture::sample(seconds, available, &[("a", 500), ("b", 300)]))
}

fn started(policy: Policy) -> Engine {
    let pods = set_by(&policy, vec![pod("a", "10"), pod("b", "10")]);
    engine(policy, &Arc::clone(&pods))
}

/// Starts the API request to evict `a`.
fn start_request(engine: &mut Engine, seconds: i64) {
    let Some(it) = engine.in_flight().first().cloned() else { panic!("no pod was chosen") };
    let started = InFlightEviction { api: Some(ApiPhase::Requested), ..it };
    step(engine, seconds, executing(ExecutorUpdate::Started(Box::new(started))));
}

fn executing(update: ExecutorUpdate) -> Event {
    Event::Executing { decision: 1, update }
}

fn has_memory_pressure(decision: &Decision) -> bool {
    decision.conditions.iter().any(|raised| raised.condition == NodeCondition::MemoryPressure)
}

#[test]
fn evictions_stop_during_an_api_outage_and_are_decided_again_after_it() {
    let thresholds = || vec![soft(Signal::MemoryAvailable, "400", 0), hard(Signal::MemoryAvailable, "200")];
    for policy in [policy(thresholds()), enhanced(thresholds(), |_| {})] {
        let mut engine = started(policy);
        step(&mut engine, 1, Event::ApiServer(ApiReachability::Unreachable));
        let decision = sample(&mut engine, 2, 100);
        assert!(victims(&decision).is_empty());
        assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::ApiServerUnavailable);
        assert!(has_memory_pressure(&decision), "what is known is decided all the same");
        step(&mut engine, 12, Event::ApiServer(ApiReachability::Reachable));
        // The shortage has ended without an eviction.
        assert!(victims(&sample(&mut engine, 13, 900)).is_empty());
        assert_eq!(victims(&sample(&mut engine, 14, 100)), [("a", 1)]);
    }
}

#[test]
fn kill_mode_evicts_only_for_hard_thresholds_during_an_api_outage() {
    let mut kill_policy = policy(vec![hard(Signal::MemoryAvailable, "200")]);
    kill_policy.eviction.when_api_server_down = WhenApiServerDown::Kill;
    let mut engine = started(kill_policy.clone());
    step(&mut engine, 1, Event::ApiServer(ApiReachability::Unreachable));
    assert_eq!(victims(&sample(&mut engine, 2, 100)), [("a", 1)]);
    let both = vec![hard(Signal::MemoryAvailable, "200"), soft(Signal::MemoryAvailable, "400", 1)];
    let mut engine = started(Policy { thresholds: both, ..kill_policy.clone() });
    step(&mut engine, 1, Event::ApiServer(ApiReachability::Unreachable));
    assert!(victims(&sample(&mut engine, 2, 300)).is_empty(), "soft");
    assert_eq!(victims(&sample(&mut engine, 9, 100)), [("a", 1)], "hard and soft");
    let mut engine =
        started(Policy { thresholds: vec![soft(Signal::MemoryAvailable, "200", 1)], ..kill_policy });
    step(&mut engine, 1, Event::ApiServer(ApiReachability::Unreachable));
    sample(&mut engine, 2, 100);
    assert_eq!(sample(&mut engine, 9, 100).evaluation().unwrap().end, EvaluationEnd::ApiServerUnavailable);
}

#[test]
fn victim_without_outage_is_found_without_changing_the_engine() {
    let policies = |threshold| {
        let mut freeze_policy = policy(vec![threshold]);
        freeze_policy.eviction.when_api_server_down = WhenApiServerDown::Freeze;
        let mut enhanced = enhanced(freeze_policy.thresholds.clone(), |_| {});
        enhanced.eviction = freeze_policy.eviction;
        [freeze_policy, enhanced]
    };
    let victim_in_outage = |policy: Policy, available| {
        let mut engine = started(policy);
        step(&mut engine, 1, Event::ApiServer(ApiReachability::Unreachable));
        sample(&mut engine, 2, available);
        let decision = sample(&mut engine, 9, available);
        assert!(victims(&decision).is_empty());
        let before = engine.state();
        let snapshot = &decision.evaluation().unwrap().snapshot;
        let victim = engine.victim_without_outage(at(9), snapshot).map(|pod| pod.uid.to_string());
        assert_eq!(engine.state(), before);
        victim
    };
    for policy in policies(hard(Signal::MemoryAvailable, "200")) {
        assert_eq!(victim_in_outage(policy.clone(), 100).as_deref(), Some("a"));
        assert_eq!(victim_in_outage(policy, 900), None, "the threshold is not met");
    }
    for policy in policies(soft(Signal::MemoryAvailable, "200", 1)) {
        assert_eq!(victim_in_outage(policy, 100), None, "soft thresholds wait");
    }
}

#[test]
fn unconfirmed_eviction_is_in_flight_until_its_result_is_known() {
    let policy = enhanced(vec![hard(Signal::MemoryAvailable, "200")], |_| {});
    let evict_without_confirmation = |engine: &mut Engine| {
        assert_eq!(victims(&sample(engine, 1, 100)), [("a", 1)]);
        start_request(engine, 2);
        step(engine, 6, executing(ExecutorUpdate::Api(Some(ApiPhase::Unconfirmed))));
        for second in [20, 60, 3600] {
            let decision = sample(engine, second, 100);
            assert!(victims(&decision).is_empty());
            assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::ReleaseInProgress);
        }
    };
    let mut engine = started(policy.clone());
    evict_without_confirmation(&mut engine);
    // The eviction was carried out: its grace period begins now.
    step(&mut engine, 3601, executing(ExecutorUpdate::Api(Some(ApiPhase::Accepted))));
    assert!(victims(&sample(&mut engine, 3630, 100)).is_empty());
    assert_eq!(victims(&sample(&mut engine, 3640, 100)), [("b", 1)], "and no more than that");
    // The eviction was not carried out.
    let mut engine = started(policy.clone());
    evict_without_confirmation(&mut engine);
    step(&mut engine, 3601, executing(ExecutorUpdate::Api(None)));
    let not_asked = Event::Evicted { uid: "a".into(), result: Err(NotEvicted::NotAsked) };
    step(&mut engine, 3601, not_asked);
    assert_eq!(victims(&sample(&mut engine, 3602, 100)), [("a", 1)]);
    // The pod has terminated.
    let mut engine = started(policy.clone());
    evict_without_confirmation(&mut engine);
    step(&mut engine, 3601, Event::Pods(set_by(&policy, vec![pod("b", "10")])));
    assert_eq!(victims(&sample(&mut engine, 3602, 100)), [("b", 1)]);
}

#[test]
fn restored_unconfirmed_eviction_waits_for_its_pod_for_hours() {
    let policy = enhanced(vec![hard(Signal::MemoryAvailable, "200")], |_| {});
    let mut first = started(policy.clone());
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    start_request(&mut first, 2);
    let mut second = Engine::new(policy.clone());
    step(&mut second, 10, Event::Restore(Box::new(first.state())));
    step(&mut second, 10, Event::DiskLayout(Ok(Default::default())));
    step(&mut second, 11, Event::Pods(set_by(&policy, Vec::new())));
    step(&mut second, 1800, Event::Pods(set_by(&policy, Vec::new())));
    step(&mut second, 3600, Event::Pods(set_by(&policy, vec![pod("a", "10"), pod("b", "10")])));
    let decision = sample(&mut second, 3601, 100);
    assert!(victims(&decision).is_empty());
    assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::ReleaseInProgress);
    step(&mut second, 3602, executing(ExecutorUpdate::Api(Some(ApiPhase::Accepted))));
    assert_eq!(victims(&sample(&mut second, 3650, 100)), [("b", 1)], "from then on it has its time");
}

#[test]
fn unconfirmed_update_of_an_unknown_eviction_is_ignored() {
    let mut engine = started(enhanced(vec![hard(Signal::MemoryAvailable, "200")], |_| {}));
    step(&mut engine, 1, executing(ExecutorUpdate::Api(Some(ApiPhase::Unconfirmed))));
    assert_eq!(victims(&sample(&mut engine, 2, 100)), [("a", 1)]);
    assert_eq!(victims(&sample(&mut engine, 40, 100)), [("b", 1)], "it did not go in time");
}
