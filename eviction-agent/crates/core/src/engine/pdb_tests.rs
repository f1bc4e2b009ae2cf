//! How the refusal of a PodDisruptionBudget affects the decision.

use proptest::prelude::*;

use super::Engine;
use crate::decision::{Action, Decision};
use crate::eviction::EvaluationEnd;
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{at, engine, enhanced, hard, pod, policy, sample, set, soft, step, victims};
use crate::input::Event;
use crate::pod::Pod;
use crate::policy::eviction_settings::EvictionSettings;
use crate::policy::{Policy, Threshold};
use crate::progress::NotEvicted;
use crate::protection::Refusal;
use crate::signal::Signal::MemoryAvailable;

fn eviction_result(uid: &str, result: Result<(), NotEvicted>) -> Event {
    Event::Evicted { uid: uid.into(), result }
}

fn pdb_denied(uid: &str) -> Event {
    eviction_result(uid, Err(NotEvicted::PdbDenied))
}

/// Returns the evicted pods whose eviction ignores their PodDisruptionBudget.
fn ignoring_pdb(decision: &Decision) -> Vec<&str> {
    let pods = &decision.evaluation().unwrap().pods;
    let ignoring_pdb = decision.evictions().filter(|eviction| eviction.ignores_budget);
    ignoring_pdb.map(|eviction| &*pods.get(eviction.pod).unwrap().pod.uid).collect()
}

fn refused_by_pdb(decision: &Decision) -> Vec<&str> {
    let evaluation = decision.evaluation().unwrap();
    let by_budget = |why| matches!(why, Refusal::DisruptionBudget { .. });
    let refused_by_pdb = evaluation.refused_pods.iter().filter(|refused| by_budget(refused.why));
    refused_by_pdb.map(|refused| &*evaluation.pods.get(refused.pod).unwrap().pod.uid).collect()
}

fn important(uid: &str) -> Pod {
    Pod { priority: Some(1000), ..pod(uid, "10") }
}

fn with(thresholds: Vec<Threshold>, hard_ignores_pdb: bool) -> Policy {
    let settings = EvictionSettings { hard_ignores_pdb, ..EvictionSettings::default() };
    Policy { eviction: settings, ..enhanced(thresholds, |_| ()) }
}

const USAGE: [(&str, u64); 3] = [("a", 300), ("b", 200), ("c", 190)];

/// Returns an engine in which `a` and `b` are of one class, and `c` has a higher priority. The first sample
/// selects `a`.
fn engine_with_victim(policy: Policy) -> Engine {
    let pods = set(vec![pod("a", "10"), pod("b", "10"), important("c")]);
    let mut engine = engine(policy, &pods);
    step(&mut engine, 0, sample(0, 50, &USAGE));
    let decision = step(&mut engine, 1, sample(1, 50, &USAGE));
    let begun = engine.in_flight.known().any(|it| &*it.pod.uid == "a");
    assert!(begun || victims(&decision)[0].0 == "a");
    engine
}

#[test]
fn soft_threshold_evicts_the_next_candidate_after_a_pdb_refusal() {
    let mut engine = engine_with_victim(with(vec![soft(MemoryAvailable, "100", 1)], true));
    step(&mut engine, 1, pdb_denied("a"));
    let next = step(&mut engine, 1, sample(1, 49, &USAGE));
    assert!(victims(&next).is_empty(), "the same figures decide nothing twice");
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!(
        (victims(&next), ignoring_pdb(&next), refused_by_pdb(&next)),
        (vec![("b", 30)], vec![], vec!["a"])
    );
    step(&mut engine, 2, pdb_denied("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!(
        (victims(&next), ignoring_pdb(&next)),
        (vec![("c", 30)], vec![]),
        "of another class, if need be"
    );
    step(&mut engine, 3, pdb_denied("c"));
    let next = step(&mut engine, 4, sample(4, 50, &USAGE));
    assert_eq!(next.evaluation().unwrap().end, EvaluationEnd::OnlyProtected);
    assert_eq!(refused_by_pdb(&next).len(), 3);
    let next = step(&mut engine, 12, sample(12, 50, &USAGE));
    assert_eq!(victims(&next), [("a", 30)], "a budget is asked again after ten seconds");
}

#[test]
fn hard_threshold_ignores_the_pdb_once_the_whole_class_is_refused() {
    let mut engine = engine_with_victim(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, pdb_denied("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!(
        (victims(&next), ignoring_pdb(&next), refused_by_pdb(&next)),
        (vec![("b", 1)], vec![], vec!["a"])
    );
    step(&mut engine, 2, pdb_denied("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!(
        (victims(&next), ignoring_pdb(&next)),
        (vec![("a", 1)], vec!["a"]),
        "before another class pays"
    );
    let later = step(&mut engine, 4, sample(4, 50, &USAGE));
    assert_eq!(later.evaluation().unwrap().end, EvaluationEnd::ReleaseInProgress);
}

#[test]
fn hard_threshold_that_respects_pdbs_evicts_from_the_next_class() {
    let mut engine = engine_with_victim(with(vec![hard(MemoryAvailable, "100")], false));
    step(&mut engine, 1, pdb_denied("a"));
    step(&mut engine, 2, sample(2, 50, &USAGE));
    step(&mut engine, 2, pdb_denied("b"));
    let next = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&next), ignoring_pdb(&next)), (vec![("c", 1)], vec![]));
    assert_eq!(refused_by_pdb(&next), ["a", "b"]);
}

#[test]
fn kubelet_profile_ignores_a_pdb_refusal_only_for_hard_thresholds() {
    let mut engine = engine_with_victim(policy(vec![hard(MemoryAvailable, "100")]));
    step(&mut engine, 1, pdb_denied("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), ignoring_pdb(&next)), (vec![("a", 1)], vec!["a"]));
    let mut engine = engine_with_victim(policy(vec![soft(MemoryAvailable, "100", 1)]));
    step(&mut engine, 1, pdb_denied("a"));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), refused_by_pdb(&next)), (vec![("b", 0)], vec!["a"]));
}

#[test]
fn eviction_that_was_not_requested_is_decided_again() {
    let mut engine = engine_with_victim(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, eviction_result("a", Err(NotEvicted::NotAsked)));
    step(&mut engine, 1, Event::EvictionsPausedUntil(at(3)));
    assert_eq!(
        step(&mut engine, 2, sample(2, 50, &USAGE)).evaluation().unwrap().end,
        EvaluationEnd::RateLimited
    );
    let again = step(&mut engine, 3, sample(3, 50, &USAGE));
    assert_eq!((victims(&again), refused_by_pdb(&again)), (vec![("a", 1)], vec![]));
}

#[test]
fn pdb_refusal_is_dropped_when_the_pod_is_removed() {
    let mut engine = engine_with_victim(with(vec![hard(MemoryAvailable, "100")], true));
    step(&mut engine, 1, pdb_denied("a"));
    step(&mut engine, 1, Event::Pods(set(vec![pod("b", "10")])));
    step(&mut engine, 1, Event::Pods(set(vec![pod("a", "10"), pod("b", "10")])));
    let next = step(&mut engine, 2, sample(2, 50, &USAGE));
    assert_eq!((victims(&next), ignoring_pdb(&next)), (vec![("a", 1)], vec![]));
}

proptest! {
    /// An eviction ignores a budget only if the budget has refused the pod before, the threshold is not soft,
    /// and ignoring budgets is enabled.
    #[test]
    fn pdb_is_ignored_only_after_it_refused_the_pod(policy in any_policy(), inputs in inputs()) {
        let ignores = policy.eviction.hard_ignores_pdb;
        let mut engine = Engine::new(policy);
        let mut denied = std::collections::BTreeSet::new();
        for input in inputs {
            if let Event::Evicted { uid, result: Err(NotEvicted::PdbDenied) } = &input.event {
                denied.insert(uid.to_string());
            }
            let decision = engine.step(input);
            let Some(evaluation) = decision.evaluation() else { continue };
            for uid in ignoring_pdb(&decision) {
                prop_assert!(ignores && denied.contains(uid));
            }
            for action in &decision.actions {
                if let Action::Evict(eviction) = action && eviction.ignores_budget {
                    prop_assert!(evaluation.threshold_of(eviction.cause).is_none_or(|threshold| threshold.is_hard()));
                }
            }
        }
    }
}
