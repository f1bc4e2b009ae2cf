//! What a PodDisruptionBudget's no does to the decision.

use proptest::prelude::*;

use super::Engine;
use crate::decision::{Action, Decision};
use crate::eviction::{EvaluationEnd, Eviction};
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, snapshot, soft, step, victims,
};
use crate::input::Event;
use crate::pod::Pod;
use crate::policy::eviction_settings::EvictionSettings;
use crate::policy::{Policy, Threshold};
use crate::progress::{EvictionResult, NotEvicted};
use crate::protection::Refusal;
use crate::signal::Signal::MemoryAvailable;

fn sample(seconds: i64, available: u64, usage: &[(&str, u64)]) -> Event {
    let usage: Vec<_> = usage.iter().map(|&(uid, used)| memory_of(uid, used)).collect();
    Event::Sample(snapshot(node(available, 900, at(seconds)), &usage))
}

fn answer(uid: &str, result: Result<(), NotEvicted>) -> Event {
    Event::Evicted(EvictionResult { uid: uid.into(), result })
}

fn no(uid: &str) -> Event {
    answer(uid, Err(NotEvicted::PdbDenied))
}

/// Of those who go, who does so without being allowed to.
fn forced(decision: &Decision) -> Vec<&str> {
    let pods = &decision.evaluation().unwrap().pods;
    let uid = |eviction: &Eviction| &*pods.get(eviction.pod).unwrap().pod.uid;
    let forced = decision.actions.iter().filter_map(|action| match action {
        Action::Evict(eviction) | Action::ShortenGrace(eviction) if eviction.ignores_budget => {
            Some(*eviction)
        }
        _ => None,
    });
    forced.map(|eviction| uid(&eviction)).collect()
}

fn refused(decision: &Decision) -> Vec<&str> {
    let evaluation = decision.evaluation().unwrap();
    let by_budget = |why| matches!(why, Refusal::DisruptionBudget { .. });
    let refused = evaluation.refused_pods.iter().filter(|refused| by_budget(refused.why));
    refused.map(|refused| &*evaluation.pods.get(refused.pod).unwrap().pod.uid).collect()
}

fn important(uid: &str) -> Pod {
    Pod { priority: Some(1000), ..pod(uid, "10") }
}

fn with(thresholds: Vec<Threshold>, hard_ignores_pdb: bool) -> Policy {
    let hands = EvictionSettings { hard_ignores_pdb, ..EvictionSettings::default() };
    Policy { eviction: hands, ..enhanced(thresholds, |_| ()) }
}

const USAGE: [(&str, u64); 3] = [("a", 300), ("b", 200), ("c", 190)];

/// `a` and `b` are of one class, `c` is worth more. The first sample chooses `a`.
fn chosen(policy: Policy) -> Engine {
    let pods = set(vec![pod("a", "10"), pod("b", "10"), important("c")]);
    let mut engine = engine(policy, &pods);
    step(&mut engine, 0, sample(0, 50, &USAGE));
    let decision = step(&mut engine, 1, sample(1, 50, &USAGE));
    let begun = engine.in_flight.known().any(|it| &*it.pod.uid == "a");
    assert!(begun || victims(&decision)[0].0 == "a");
    engine
}

#[test]
fn a_soft_threshold_takes_whoever_is_next() {
    let mut engine = chosen(with(vec![soft(MemoryAvailable, "100", 1)], true));
    step(&mut engine, 1, no("a"));
    let next = step(&mut engine, 1, sample(1, 49, &USAGE));
    assert!(victims(&next).is_empty(), "the same figures decide nothing twice");
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next), refused(&next)), (vec![("b", 30)], vec![], vec!["a"]));
    step(&mut engine, 2, no("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next)), (vec![("c", 30)], vec![]), "of another class, if need be");
    step(&mut engine, 3, no("c"));
    let next = step(&mut engine, 4, sample(4, 50, &USAGE));
    assert_eq!(next.evaluation().unwrap().end, EvaluationEnd::OnlyProtected);
    assert_eq!(refused(&next).len(), 3);
    let next = step(&mut engine, 12, sample(12, 50, &USAGE));
    assert_eq!(victims(&next), [("a", 30)], "a budget is asked again after ten seconds");
}

#[test]
fn a_hard_threshold_takes_the_next_of_the_class_and_then_does_not_ask() {
    let mut engine = chosen(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, no("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next), refused(&next)), (vec![("b", 1)], vec![], vec!["a"]));
    step(&mut engine, 2, no("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next)), (vec![("a", 1)], vec!["a"]), "before another class pays");
    let later = step(&mut engine, 4, sample(4, 50, &USAGE));
    assert_eq!(later.evaluation().unwrap().end, EvaluationEnd::ReleaseInProgress);
}

#[test]
fn a_hard_threshold_that_is_to_ask_goes_to_the_next_class() {
    let mut engine = chosen(with(vec![hard(MemoryAvailable, "100")], false));
    step(&mut engine, 1, no("a"));
    step(&mut engine, 2, sample(2, 50, &USAGE));
    step(&mut engine, 2, no("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next)), (vec![("c", 1)], vec![]));
    assert_eq!(refused(&next), ["a", "b"]);
}

#[test]
fn in_the_kubelets_profile_a_hard_threshold_asks_once_and_a_soft_one_skips_the_pod() {
    let mut engine = chosen(policy(vec![hard(MemoryAvailable, "100")]));
    step(&mut engine, 1, no("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next)), (vec![("a", 1)], vec!["a"]));
    let mut engine = chosen(policy(vec![soft(MemoryAvailable, "100", 1)]));
    step(&mut engine, 1, no("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), refused(&next)), (vec![("b", 0)], vec!["a"]));
}

#[test]
fn what_nobody_took_is_decided_anew() {
    let mut engine = chosen(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, answer("a", Err(NotEvicted::NotAsked)));
    step(&mut engine, 1, Event::EvictionsPausedUntil(at(3)));
    assert_eq!(
        step(&mut engine, 2, sample(2, 50, &USAGE)).evaluation().unwrap().end,
        EvaluationEnd::RateLimited
    );
    let again = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&again), refused(&again)), (vec![("a", 1)], vec![]));
}

#[test]
fn a_no_is_forgotten_with_the_pod() {
    let mut engine = chosen(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, no("a"));
    step(&mut engine, 1, Event::Pods(set(vec![pod("b", "10")])));
    step(&mut engine, 1, Event::Pods(set(vec![pod("a", "10"), pod("b", "10")])));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), forced(&next)), (vec![("a", 1)], vec![]));
}

proptest! {
    /// Nobody goes against a budget that did not say no, for a soft threshold, or where that is
    /// switched off.
    #[test]
    fn a_budget_is_ignored_only_after_it_was_asked(policy in any_policy(), inputs in inputs()) {
        let ignores = policy.eviction.hard_ignores_pdb;
        let mut engine = Engine::new(policy);
        let mut asked = std::collections::BTreeSet::new();
        for input in inputs {
            if let Event::Evicted(EvictionResult { uid, result: Err(NotEvicted::PdbDenied) }) = &input.event {
                asked.insert(uid.to_string());
            }
            let decision = engine.step(input);
            let Some(evaluation) = decision.evaluation() else { continue };
            for uid in forced(&decision) {
                prop_assert!(ignores && asked.contains(uid));
            }
            for action in &decision.actions {
                if let Action::Evict(eviction) = action && eviction.ignores_budget {
                    prop_assert!(evaluation.threshold_of(eviction.cause).is_none_or(|resolved| resolved.threshold.is_hard()));
                }
            }
        }
    }
}
