use std::sync::Arc;

use proptest::prelude::*;

use super::Engine;
use crate::eviction::EvaluationEnd;
use crate::fixture::{self, at, engine, enhanced, hard, pod, policy, set_by, soft, step, victims};
use crate::input::Event;
use crate::oom::OomKill;
use crate::pods::PodSet;
use crate::policy::preferences::Preferences;
use crate::policy::preferences::{EvictionLimit, RateLimitScope};
use crate::policy::{Policy, Rules, Threshold};
use crate::progress::NotEvicted;
use crate::signal::{NodeCondition, Signal};
use crate::state::EngineState;
use crate::units::GoDuration;

fn enhanced_policy(thresholds: Vec<Threshold>) -> Policy {
    enhanced(thresholds, |_| {})
}

fn sample(engine: &mut Engine, seconds: i64, available: u64) -> crate::decision::Decision {
    step(engine, seconds, fixture::sample(seconds, available, &[("a", 500), ("b", 300)]))
}

fn pods(policy: &Policy) -> Arc<PodSet> {
    set_by(policy, vec![pod("a", "10"), pod("b", "10")])
}

/// Returns the next engine at a time, with the state of the former one.
fn restored_engine(policy: &Policy, seconds: i64, state: EngineState, known: &Arc<PodSet>) -> Engine {
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, seconds, Event::Restore(Box::new(state)));
    step(&mut engine, seconds, Event::Pods(Arc::clone(known)));
    step(&mut engine, seconds, Event::DiskLayout(Ok(Default::default())));
    engine
}

#[test]
fn restored_in_flight_eviction_prevents_another_eviction() {
    let policy = enhanced_policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    let state = first.state();
    assert_eq!(state.in_flight.len(), 1);
    let mut second = restored_engine(&policy, 3, state.clone(), &known);
    let decision = sample(&mut second, 4, 100);
    assert!(victims(&decision).is_empty());
    assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::ReleaseInProgress);
    // The grace period continues from the decision.
    assert_eq!(victims(&sample(&mut second, 33, 100)), [("b", 1)]);
    // Without a state the same pod would be selected again.
    assert_eq!(
        victims(&sample(&mut restored_engine(&policy, 3, EngineState::default(), &known), 4, 100)),
        [("a", 1)]
    );
}

#[test]
fn in_flight_eviction_is_restored_for_a_pod_that_arrives_late() {
    let policy = enhanced_policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    sample(&mut first, 1, 100);
    let mut second = restored_engine(&policy, 2, first.state(), &set_by(&policy, Vec::new()));
    assert_eq!(second.state().in_flight, first.state().in_flight, "whoever comes next knows it too");
    step(&mut second, 5, Event::Pods(known));
    assert!(victims(&sample(&mut second, 6, 100)).is_empty());
    let uid: Box<str> = "a".into();
    step(&mut second, 7, Event::Evicted { uid, result: Err(NotEvicted::NotAsked) });
    assert_eq!(
        victims(&sample(&mut second, 8, 100)),
        [("a", 1)],
        "no request was sent, so the pod is chosen again"
    );
}

#[test]
fn pod_without_object_stays_in_flight_until_its_cgroup_is_removed() {
    let policy = enhanced_policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    let others = set_by(&policy, vec![pod("b", "10")]);
    let remove_objects = |engine: &mut Engine, second: i64, uids: &[&str]| {
        let uids = uids.iter().map(|uid| (*uid).into()).collect();
        step(engine, second, Event::Terminating(uids));
        step(engine, second, Event::Pods(Arc::clone(&others)));
    };
    remove_objects(&mut first, 2, &["a"]);
    assert!(victims(&sample(&mut first, 3, 100)).is_empty(), "its memory will come");
    // The next agent decides like this one.
    let mut second = Engine::new(policy.clone());
    step(&mut second, 4, Event::Restore(Box::new(first.state())));
    step(&mut second, 4, Event::DiskLayout(Ok(Default::default())));
    remove_objects(&mut second, 4, &["a"]);
    let decision = sample(&mut second, 5, 100);
    assert_eq!(
        (victims(&decision).len(), decision.evaluation().unwrap().end),
        (0, EvaluationEnd::ReleaseInProgress)
    );
    assert_eq!(second.state().in_flight, first.state().in_flight);
    remove_objects(&mut second, 6, &[]);
    assert_eq!(victims(&sample(&mut second, 7, 100)), [("b", 1)], "gone, and still short");
    // But the wait ends at some time.
    assert_eq!(victims(&sample(&mut first, 40, 100)), [("b", 1)]);
}

#[test]
fn pod_with_a_restored_failed_eviction_is_evicted_last() {
    let policy = enhanced_policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    let failed = Event::Evicted { uid: "a".into(), result: Err("busy".into()) };
    step(&mut first, 2, failed);
    let mut second = restored_engine(&policy, 3, first.state(), &known);
    assert_eq!(second.state().in_flight, first.state().in_flight);
    assert_eq!(victims(&sample(&mut second, 20, 100)), [("b", 1)], "after all others");
}

#[test]
fn pause_of_evictions_is_restored_and_limited() {
    let policy = enhanced_policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    let not_asked = Event::Evicted { uid: "a".into(), result: Err(NotEvicted::NotAsked) };
    step(&mut first, 1, not_asked);
    step(&mut first, 1, Event::EvictionsPausedUntil(at(41)));
    let mut second = restored_engine(&policy, 5, first.state(), &known);
    let decision = sample(&mut second, 40, 100);
    assert_eq!(
        (victims(&decision).len(), decision.evaluation().unwrap().end),
        (0, EvaluationEnd::RateLimited)
    );
    assert_eq!(victims(&sample(&mut second, 41, 100)), [("a", 1)], "it is still its turn");
    // A pause in a persisted state is limited.
    let forever = EngineState { paused_until: Some(at(1_000_000)), ..EngineState::default() };
    let mut second = restored_engine(&policy, 5, forever, &known);
    assert!(victims(&sample(&mut second, 64, 100)).is_empty());
    assert_eq!(victims(&sample(&mut second, 65, 100)), [("a", 1)]);
}

#[test]
fn rate_limits_and_cool_downs_are_restored() {
    let policy = enhanced(vec![hard(Signal::MemoryAvailable, "200")], |preferences| {
        let (scope, max_evictions, window) = (RateLimitScope::Namespace, 1, GoDuration::from_secs(600));
        preferences.rate_limits = vec![EvictionLimit { scope, max_evictions, window }];
        preferences.cool_down_after_oom_kill = GoDuration::from_secs(60);
    });
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    assert_eq!(victims(&sample(&mut first, 1, 100)), [("a", 1)]);
    step(&mut first, 2, Event::Evicted { uid: "a".into(), result: Ok(()) });
    let others = set_by(&policy, vec![pod("b", "10")]);
    let mut second = restored_engine(&policy, 3, first.state(), &others);
    assert_eq!(second.state().counted, first.state().counted);
    assert!(victims(&sample(&mut second, 600, 100)).is_empty(), "one in ten minutes");
    let mut second = restored_engine(&policy, 3, first.state(), &others);
    assert_eq!(victims(&sample(&mut second, 601, 100)), [("b", 1)]);
    let mut without = restored_engine(&policy, 3, EngineState::default(), &others);
    assert_eq!(victims(&sample(&mut without, 4, 100)), [("b", 1)], "that is what it is kept for");

    let mut first = engine(policy.clone(), &others);
    let kill = OomKill { pod_uid: Some("b".into()), ..OomKill::default() };
    step(&mut first, 10, Event::OomKill(Box::new(kill)));
    let mut second = restored_engine(&policy, 12, first.state(), &others);
    assert!(victims(&sample(&mut second, 69, 100)).is_empty(), "the kernel killed in it");
    assert_eq!(victims(&sample(&mut second, 70, 100)), [("b", 1)]);
}

#[test]
fn restored_grace_period_counts_from_the_first_observation() {
    let policy = policy(vec![soft(Signal::MemoryAvailable, "200", 60)]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    for second in [0, 10, 20] {
        assert!(victims(&sample(&mut first, second, 100)).is_empty());
    }
    let mut second = restored_engine(&policy, 45, first.state(), &known);
    assert!(victims(&sample(&mut second, 59, 100)).is_empty());
    assert_eq!(victims(&sample(&mut second, 60, 100)).len(), 1);
    // It is not known whether the threshold was met all the time.
    let mut late = restored_engine(&policy, 51, first.state(), &known);
    assert!(victims(&sample(&mut late, 61, 100)).is_empty());
    // The threshold was resolved in between, so its grace period starts again.
    let mut resolved = restored_engine(&policy, 25, first.state(), &known);
    sample(&mut resolved, 26, 900);
    assert!(victims(&sample(&mut resolved, 61, 100)).is_empty());
    // With another value it is another threshold.
    let other = Policy { thresholds: vec![soft(Signal::MemoryAvailable, "300", 60)], ..policy };
    assert!(victims(&sample(&mut restored_engine(&other, 25, first.state(), &known), 61, 100)).is_empty());
}

#[test]
fn minimum_reclaim_applies_after_a_restart() {
    let mut threshold = hard(Signal::MemoryAvailable, "200");
    threshold.min_reclaim = Some(crate::fixture::hard(Signal::MemoryAvailable, "100").value);
    let policy = policy(vec![threshold]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    sample(&mut first, 0, 100);
    let mut second = restored_engine(&policy, 2, first.state(), &known);
    assert!(sample(&mut second, 3, 250).evaluation().unwrap().met[0].by_min_reclaim);
}

#[test]
fn condition_holds_for_its_transition_period_across_a_restart() {
    let policy = policy(vec![hard(Signal::MemoryAvailable, "200")]);
    let known = pods(&policy);
    let mut first = engine(policy.clone(), &known);
    sample(&mut first, 0, 100);
    sample(&mut first, 10, 900);
    let holds = |engine: &mut Engine, second: i64| {
        let decision = sample(engine, second, 900);
        decision.conditions.iter().any(|raised| raised.condition == NodeCondition::MemoryPressure)
    };
    let mut second = restored_engine(&policy, 100, first.state(), &known);
    assert_eq!(second.conditions().len(), 1, "at once");
    assert!(holds(&mut second, 299));
    assert!(!holds(&mut second, 300));
    assert!(restored_engine(&policy, 301, first.state(), &known).conditions().is_empty());
    // A condition that the last sample raised may have been raised until the end.
    let mut first = engine(policy.clone(), &known);
    sample(&mut first, 0, 100);
    let mut second = restored_engine(&policy, 60, first.state(), &known);
    assert!(holds(&mut second, 304));
    assert!(!holds(&mut second, 305));
    let mut second = restored_engine(&policy, 2, first.state(), &known);
    assert!(holds(&mut second, 301) && !holds(&mut second, 302));
}

proptest! {
/// Whenever an engine is replaced by another one, the conditions hold no shorter, and longer by no more than
/// the time that was not persisted, and no pod is evicted that the first engine would not have evicted.
 #[test]
fn restored_engine_decides_like_the_original(
samples in proptest::collection::vec((1i64..4, prop_oneof![Just(100u64), Just(250), Just(900)]), 1..10),
replaced in 0usize..10,
) {
let thresholds =
vec![hard(Signal::MemoryAvailable, "200"), soft(Signal::MemoryAvailable, "400", 6)];
let rules = Rules::enhanced(&Preferences { max_evictions_per_sync: 1, ..Preferences::default() });
let policy = Policy { rules, ..policy(thresholds) };
let known = pods(&policy);
let (mut one, mut other) = (engine(policy.clone(), &known), engine(policy.clone(), &known));
let mut now = 0;
for (index, (pause, available)) in samples.into_iter().enumerate() {
now += pause;
if index == replaced {
other = restored_engine(&policy, now - 1, other.state(), &known);
}
let (decided, expected) = (sample(&mut other, now, available), sample(&mut one, now, available));
let names = |decision: &crate::decision::Decision| {
victims(decision).iter().map(|(uid, grace)| ((*uid).to_owned(), *grace)).collect::<Vec<_>>()
};
prop_assert_eq!(names(&decided), names(&expected), "at {}", now);
for raised in &expected.conditions {
prop_assert!(decided.conditions.iter().any(|it| it.condition == raised.condition && it.at >= raised.at));
}
}
}
}
