use crate::decision::{Decision, ProposalState};
use crate::engine::Engine;
use crate::fixture::{self, at, engine, enhanced, hard, pod, policy, set, snapshot, soft, step, victims};
use crate::input::Event;
use crate::pod::{Owner, Pod, PodName};
use crate::policy::preferences::ApplyChanges;
use crate::policy::{Policy, Threshold};
use crate::record::DecisionRecord;
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::time::Timestamp;

fn with_apply_changes(apply_changes: ApplyChanges, thresholds: Vec<Threshold>) -> Policy {
    enhanced(thresholds, |preferences| preferences.apply_changes = apply_changes)
}

fn after_transition_period(thresholds: Vec<Threshold>) -> Policy {
    with_apply_changes(ApplyChanges::AfterTransitionPeriod, thresholds)
}

fn started(policy: Policy) -> Engine {
    let owner = || Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() };
    let owned = |pod| Pod { owner: Some(owner()), ..pod };
    engine(policy, &set(vec![owned(pod("greedy", "10")), owned(pod("modest", "900"))]))
}

const USAGE: [(&str, u64); 2] = [("greedy", 300), ("modest", 200)];

fn sample(engine: &mut Engine, seconds: i64, available: u64) -> Decision {
    step(engine, seconds, fixture::sample(seconds, available, &USAGE))
}

fn propose(engine: &mut Engine, seconds: i64, policy: Policy) -> Decision {
    step(engine, seconds, Event::Propose(Box::new(policy)))
}

/// Returns since when a policy is pending, until when, and the pods that it would evict.
fn pending(decision: &Decision) -> Option<(Timestamp, Option<Timestamp>, &[PodName])> {
    match decision.proposal.as_ref()? {
        ProposalState::Pending { since, until, would_evict, .. } => Some((*since, *until, would_evict)),
        ProposalState::Unchanged | ProposalState::Applied => None,
    }
}

fn is_applied(decision: &Decision) -> bool {
    matches!(decision.proposal, Some(ProposalState::Applied))
}

#[test]
fn change_that_evicts_no_pod_takes_effect_with_the_next_sample() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    sample(&mut engine, 0, 500);
    let changed = after_transition_period(vec![hard(MemoryAvailable, "200")]);
    assert!(
        pending(&propose(&mut engine, 1, changed.clone())).is_some_and(|(.., evicted)| evicted.is_empty())
    );
    let decision = sample(&mut engine, 2, 500);
    assert!(is_applied(&decision) && victims(&decision).is_empty());
    assert_eq!(engine.policy(), &changed);
    assert_eq!(victims(&sample(&mut engine, 3, 199)), [("greedy", 1)]);
}

#[test]
fn a_change_that_would_evict_waits_for_the_transition_period() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    for (seconds, seen) in [(1, 1), (100, 100), (101, 100), (299, 299)] {
        let decision = step(&mut engine, seconds, fixture::sample(seen, 500, &USAGE));
        assert!(victims(&decision).is_empty() && decision.conditions.is_empty());
        let (since, until, would_evict) = pending(&decision).unwrap();
        assert_eq!((since, until), (at(0), Some(at(300))));
        assert_eq!(would_evict.iter().map(|pod| &*pod.uid).collect::<Vec<_>>(), ["greedy"]);
        let report = serde_json::to_value(DecisionRecord::of(&decision)).unwrap();
        let name = &report["proposal"]["pending"]["would_evict"][0]["name"];
        assert_eq!(name, "pod-greedy");
    }
    assert!(
        engine.proposed().is_some() && !engine.is_proposal_due(at(299)) && engine.is_proposal_due(at(300))
    );
    let decision = sample(&mut engine, 300, 500);
    assert!(is_applied(&decision));
    assert_eq!(victims(&decision), [("greedy", 1)]);
    assert!(engine.proposed().is_none() && !engine.is_proposal_due(at(301)));
}

#[test]
fn proposing_the_pending_change_again_does_not_prolong_its_wait() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    let changed = after_transition_period(vec![hard(MemoryAvailable, "600")]);
    propose(&mut engine, 0, changed.clone());
    let again = propose(&mut engine, 200, changed);
    assert_eq!(pending(&again).unwrap().1, Some(at(300)));
    let other = propose(&mut engine, 250, after_transition_period(vec![hard(MemoryAvailable, "700")]));
    assert_eq!(pending(&other).unwrap().1, Some(at(550)));
}

#[test]
fn pending_change_takes_effect_once_it_evicts_no_additional_pod() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    assert!(pending(&sample(&mut engine, 1, 500)).is_some());
    assert!(is_applied(&sample(&mut engine, 2, 700)));
    let mut pressed = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    propose(&mut pressed, 0, after_transition_period(vec![hard(MemoryAvailable, "300")]));
    let decision = sample(&mut pressed, 1, 50);
    assert!(is_applied(&decision), "the same pod goes by either");
    assert_eq!(victims(&decision), [("greedy", 1)]);
}

#[test]
fn pending_change_waits_until_unknown_signals_are_unavailable() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    sample(&mut engine, 0, 500);
    propose(&mut engine, 0, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    for (seconds, effect) in [(1, false), (2, false), (3, true)] {
        let decision = step(&mut engine, seconds, Event::Sample(snapshot(Default::default(), &[])));
        assert_eq!(is_applied(&decision), effect, "blind from the third look on");
    }
}

#[test]
fn manual_change_waits_until_it_is_applied() {
    let mut engine = started(with_apply_changes(ApplyChanges::Manually, vec![hard(MemoryAvailable, "100")]));
    // The proposal's own setting does not decide when the proposal takes effect.
    propose(
        &mut engine,
        0,
        with_apply_changes(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "600")]),
    );
    let decision = sample(&mut engine, 100_000, 500);
    assert_eq!(pending(&decision).unwrap().1, None);
    assert!(!engine.is_proposal_due(at(100_000)));
    assert!(is_applied(&step(&mut engine, 100_001, Event::ApplyProposed)));
    assert_eq!(victims(&sample(&mut engine, 100_002, 500)), [("greedy", 1)]);
    assert!(step(&mut engine, 100_003, Event::ApplyProposed).proposal.is_none(), "nothing waits");
}

#[test]
fn immediate_change_takes_effect_at_once() {
    let mut engine =
        started(with_apply_changes(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "100")]));
    let changed = with_apply_changes(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "600")]);
    assert!(is_applied(&propose(&mut engine, 0, changed)));
    assert_eq!(victims(&sample(&mut engine, 1, 500)), [("greedy", 1)]);
}

#[test]
fn proposing_the_policy_in_force_cancels_a_pending_change() {
    let before = after_transition_period(vec![hard(MemoryAvailable, "100")]);
    let mut engine = started(before.clone());
    propose(&mut engine, 0, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    let back = propose(&mut engine, 200, before.clone());
    assert!(matches!(back.proposal, Some(ProposalState::Unchanged)));
    assert!(sample(&mut engine, 400, 500).proposal.is_none());
    assert_eq!(engine.policy(), &before);
}

#[test]
fn unchanged_threshold_stays_met_since_the_same_time_after_a_change() {
    let waiting = soft(MemoryAvailable, "600", 30);
    let mut engine = started(after_transition_period(vec![waiting.clone()]));
    sample(&mut engine, 0, 500);
    propose(
        &mut engine,
        10,
        after_transition_period(vec![hard(NodeFsAvailable, "1"), waiting, soft(MemoryAvailable, "700", 30)]),
    );
    let decision = sample(&mut engine, 20, 500);
    assert!(is_applied(&decision));
    let met = &decision.evaluation().unwrap().met;
    assert_eq!(
        met.iter().map(|met| (met.threshold, met.first_seen)).collect::<Vec<_>>(),
        [(1, at(0)), (2, at(20))]
    );
    assert!(!victims(&sample(&mut engine, 30, 500)).is_empty(), "30 s after it was first met");
}

#[test]
fn pending_change_is_not_applied_early_when_the_clock_goes_back() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 1000, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    for seconds in [10, 0, 1001, 1299] {
        assert!(victims(&sample(&mut engine, seconds, 500)).is_empty(), "at {seconds}");
    }
}

#[test]
fn pending_policy_does_not_start_node_level_reclaim() {
    let mut engine = started(after_transition_period(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, after_transition_period(vec![hard(NodeFsAvailable, "950")]));
    let decision = sample(&mut engine, 1, 500);
    assert!(pending(&decision).is_some() && !decision.awaits_reclaim());
}

#[test]
fn kubelet_profile_leaves_apply_changes_to_the_proposed_policy() {
    let mut engine = started(policy(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, after_transition_period(vec![hard(MemoryAvailable, "600")]));
    assert!(pending(&sample(&mut engine, 1, 500)).is_some());
    let mut engine = started(policy(vec![hard(MemoryAvailable, "100")]));
    assert!(is_applied(&propose(&mut engine, 0, policy(vec![hard(MemoryAvailable, "600")]))));
}
