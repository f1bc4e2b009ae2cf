use crate::decision::{Decision, PendingPolicy, ProposalState};
use crate::engine::Engine;
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set, snapshot, soft, step, victims,
};
use crate::input::Event;
use crate::pod::{Owner, Pod};
use crate::policy::preferences::ApplyChanges;
use crate::policy::{Policy, Threshold};
use crate::record::DecisionRecord;
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};

fn accepting(accept: ApplyChanges, thresholds: Vec<Threshold>) -> Policy {
    enhanced(thresholds, |preferences| preferences.apply_changes = accept)
}

fn cautious(thresholds: Vec<Threshold>) -> Policy {
    accepting(ApplyChanges::AfterTransitionPeriod, thresholds)
}

fn started(policy: Policy) -> Engine {
    let owner = || Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() };
    let owned = |pod| Pod { owner: Some(owner()), ..pod };
    engine(policy, &set(vec![owned(pod("greedy", "10")), owned(pod("modest", "900"))]))
}

fn sample(engine: &mut Engine, seconds: i64, available: u64) -> Decision {
    let usage = [memory_of("greedy", 300), memory_of("modest", 200)];
    step(engine, seconds, Event::Sample(snapshot(node(available, 900, at(seconds)), &usage)))
}

fn propose(engine: &mut Engine, seconds: i64, policy: Policy) -> Decision {
    step(engine, seconds, Event::Propose(Box::new(policy)))
}

fn waits(decision: &Decision) -> Option<&PendingPolicy> {
    match decision.proposal.as_ref()? {
        ProposalState::Pending(waiting) => Some(waiting),
        ProposalState::Unchanged | ProposalState::Applied => None,
    }
}

fn took_effect(decision: &Decision) -> bool {
    matches!(decision.proposal, Some(ProposalState::Applied))
}

#[test]
fn a_change_that_evicts_nobody_takes_effect_with_the_next_sample() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    sample(&mut engine, 0, 500);
    let changed = cautious(vec![hard(MemoryAvailable, "200")]);
    assert!(waits(&propose(&mut engine, 1, changed.clone())).is_some_and(|it| it.trial.is_none()));
    let decision = sample(&mut engine, 2, 500);
    assert!(took_effect(&decision) && victims(&decision).is_empty());
    assert_eq!(engine.policy(), &changed);
    assert_eq!(victims(&sample(&mut engine, 3, 199)), [("greedy", 1)]);
}

#[test]
fn a_change_that_would_evict_waits_for_the_transition_period() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, cautious(vec![hard(MemoryAvailable, "600")]));
    for (seconds, seen) in [(1, 1), (100, 100), (101, 100), (299, 299)] {
        let usage = [memory_of("greedy", 300), memory_of("modest", 200)];
        let sample = snapshot(node(500, 900, at(seen)), &usage);
        let decision = step(&mut engine, seconds, Event::Sample(sample));
        assert!(victims(&decision).is_empty() && decision.conditions.is_empty());
        let waiting = waits(&decision).unwrap();
        assert_eq!((waiting.since, waiting.until), (at(0), Some(at(300))));
        assert_eq!(victims(waiting.trial.as_deref().unwrap()), [("greedy", 1)]);
        let report = serde_json::to_value(DecisionRecord::of(&decision)).unwrap();
        let name = &report["proposal"]["waits"]["would_evict"][0]["name"];
        assert_eq!(name, "pod-greedy");
    }
    assert!(
        engine.proposed().is_some() && !engine.is_proposal_due(at(299)) && engine.is_proposal_due(at(300))
    );
    let decision = sample(&mut engine, 300, 500);
    assert!(took_effect(&decision));
    assert_eq!(victims(&decision), [("greedy", 1)]);
    assert!(engine.proposed().is_none() && !engine.is_proposal_due(at(301)));
}

#[test]
fn it_takes_effect_as_soon_as_it_would_evict_nobody_more() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, cautious(vec![hard(MemoryAvailable, "600")]));
    assert!(waits(&sample(&mut engine, 1, 500)).is_some());
    assert!(took_effect(&sample(&mut engine, 2, 700)));
    let mut pressed = started(cautious(vec![hard(MemoryAvailable, "100")]));
    propose(&mut pressed, 0, cautious(vec![hard(MemoryAvailable, "300")]));
    let decision = sample(&mut pressed, 1, 50);
    assert!(took_effect(&decision), "the same pod goes by either");
    assert_eq!(victims(&decision), [("greedy", 1)]);
}

#[test]
fn what_nobody_sees_at_present_proves_nothing() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    sample(&mut engine, 0, 500);
    propose(&mut engine, 0, cautious(vec![hard(MemoryAvailable, "600")]));
    for (seconds, effect) in [(1, false), (2, false), (3, true)] {
        let decision = step(&mut engine, seconds, Event::Sample(snapshot(Default::default(), &[])));
        assert_eq!(took_effect(&decision), effect, "blind from the third look on");
    }
}

#[test]
fn a_change_to_be_applied_manually_waits_until_it_is() {
    let mut engine = started(accepting(ApplyChanges::Manually, vec![hard(MemoryAvailable, "100")]));
    // A proposal that would let itself in does not decide about that.
    propose(&mut engine, 0, accepting(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "600")]));
    let decision = sample(&mut engine, 100_000, 500);
    assert_eq!(waits(&decision).unwrap().until, None);
    assert!(!engine.is_proposal_due(at(100_000)));
    assert!(took_effect(&step(&mut engine, 100_001, Event::ApplyProposed)));
    assert_eq!(victims(&sample(&mut engine, 100_002, 500)), [("greedy", 1)]);
    assert!(step(&mut engine, 100_003, Event::ApplyProposed).proposal.is_none(), "nothing waits");
}

#[test]
fn at_once_means_at_once() {
    let mut engine = started(accepting(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "100")]));
    let changed = accepting(ApplyChanges::Immediately, vec![hard(MemoryAvailable, "600")]);
    assert!(took_effect(&propose(&mut engine, 0, changed)));
    assert_eq!(victims(&sample(&mut engine, 1, 500)), [("greedy", 1)]);
}

#[test]
fn a_last_word_replaces_the_one_before() {
    let before = cautious(vec![hard(MemoryAvailable, "100")]);
    let mut engine = started(before.clone());
    propose(&mut engine, 0, cautious(vec![hard(MemoryAvailable, "600")]));
    let back = propose(&mut engine, 200, before.clone());
    assert!(matches!(back.proposal, Some(ProposalState::Unchanged)));
    assert!(sample(&mut engine, 400, 500).proposal.is_none());
    assert_eq!(engine.policy(), &before);
}

#[test]
fn what_stays_the_same_has_been_met_as_long() {
    let waiting = soft(MemoryAvailable, "600", 30);
    let mut engine = started(cautious(vec![waiting.clone()]));
    sample(&mut engine, 0, 500);
    propose(
        &mut engine,
        10,
        cautious(vec![hard(NodeFsAvailable, "1"), waiting, soft(MemoryAvailable, "700", 30)]),
    );
    let decision = sample(&mut engine, 20, 500);
    assert!(took_effect(&decision));
    let met = &decision.evaluation().unwrap().met;
    assert_eq!(
        met.iter().map(|met| (met.threshold, met.first_seen)).collect::<Vec<_>>(),
        [(1, at(0)), (2, at(20))]
    );
    assert!(!victims(&sample(&mut engine, 30, 500)).is_empty(), "30 s after it was first met");
}

#[test]
fn a_clock_that_goes_back_lets_nothing_in() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 1000, cautious(vec![hard(MemoryAvailable, "600")]));
    for seconds in [10, 0, 1001, 1299] {
        assert!(victims(&sample(&mut engine, seconds, 500)).is_empty(), "at {seconds}");
    }
}

#[test]
fn garbage_that_only_the_changed_policy_collects_is_left_until_it_is_in_force() {
    let mut engine = started(cautious(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, cautious(vec![hard(NodeFsAvailable, "950")]));
    let decision = sample(&mut engine, 1, 500);
    assert!(waits(&decision).is_some() && !decision.awaits_reclaim());
}

#[test]
fn from_the_kubelets_profile_the_new_one_says_how_careful_to_be() {
    let mut engine = started(policy(vec![hard(MemoryAvailable, "100")]));
    propose(&mut engine, 0, cautious(vec![hard(MemoryAvailable, "600")]));
    assert!(waits(&sample(&mut engine, 1, 500)).is_some());
    let mut engine = started(policy(vec![hard(MemoryAvailable, "100")]));
    assert!(took_effect(&propose(&mut engine, 0, policy(vec![hard(MemoryAvailable, "600")]))));
}
