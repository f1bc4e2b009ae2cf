//! Which pod a kill order selects, and when no pod may be killed without another sample.

use std::sync::Arc;

use crate::disk_layout::Parts;
use crate::engine::Engine;
use crate::eviction::EvaluationEnd;
use crate::fixture::{
    at, engine, enhanced, hard, memory_of, node, pod, policy, set_by, snapshot, soft, step, victims,
};
use crate::input::Event;
use crate::pod::Pod;
use crate::pods::EVICT;
use crate::policy::preferences::{MemoryMeasure, MemoryPsi, Preferences, PsiKind};
use crate::policy::{Policy, Threshold};
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable, PidAvailable};
use crate::snapshot::{ContainerStatValues, NodeStats, PodStatValues, Snapshot};

use crate::engine::kernel_kill::ArmedKillOrder;
use crate::engine::kernel_kill::NotArmedReason;
use crate::policy::eviction_settings::KernelKillMode;

/// The threshold, on the fixture's node with 1,000 bytes.
const THRESHOLD: &str = "100";

fn with_kernel_kill(policy: Policy) -> Policy {
    Policy { kernel_kill: KernelKillMode::HardMemory, ..policy }
}

fn engine_with(policy: Policy, pods: Vec<Pod>) -> Engine {
    let policy = with_kernel_kill(policy);
    let pods = set_by(&policy, pods);
    engine(policy, &pods)
}

fn two_pods() -> Vec<Pod> {
    vec![pod("a", "50"), pod("b", "50")]
}

fn sample(available: u64) -> Arc<Snapshot> {
    snapshot(node(available, 900, at(1)), &[memory_of("a", 300), memory_of("b", 200)])
}

fn kill_order(engine: &Engine, sample: &Snapshot) -> Result<ArmedKillOrder, NotArmedReason> {
    engine.kill_order(at(1), sample, MemoryAvailable, 500)
}

fn not_armed_reason(policy: Policy, pods: Vec<Pod>) -> NotArmedReason {
    kill_order(&engine_with(policy, pods), &sample(300)).unwrap_err()
}

#[test]
fn kill_order_matches_the_decision_when_the_threshold_is_crossed() {
    for policy in [
        policy(vec![hard(MemoryAvailable, THRESHOLD)]),
        enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()),
    ] {
        let mut engine = engine_with(policy, two_pods());
        step(&mut engine, 1, Event::Sample(sample(300)));
        let order = kill_order(&engine, &sample(300)).unwrap();
        assert_eq!(&*order.victim.pod.uid, "a");
        assert_eq!((order.threshold.headroom(), order.threshold.max_working_set()), (200, 900));
        // The engine has not changed: the result is the same again.
        assert_eq!(&*kill_order(&engine, &sample(300)).unwrap().victim.pod.uid, "a");
        // The threshold is crossed in a real sample.
        let crossed = snapshot(node(99, 900, at(2)), &[memory_of("a", 300), memory_of("b", 200)]);
        let decision = step(&mut engine.clone(), 2, Event::Sample(crossed));
        assert_eq!(victims(&decision), victims(&order.decision));
        // The threshold is crossed in the sample of a kill in the kernel.
        let decision = step(&mut engine, 2, Event::Sample(order.met_at(at(2)).unwrap()));
        assert_eq!(victims(&decision), victims(&order.decision));
        assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::Evicted);
    }
}

#[test]
fn kill_order_is_off_by_default() {
    let policy = policy(vec![hard(MemoryAvailable, THRESHOLD)]);
    let pods = set_by(&policy, two_pods());
    assert_eq!(kill_order(&engine(policy, &pods), &sample(300)).unwrap_err(), NotArmedReason::Off);
}

#[test]
fn kill_order_requires_a_hard_memory_threshold() {
    assert_eq!(
        not_armed_reason(policy(vec![soft(MemoryAvailable, THRESHOLD, 30)]), two_pods()),
        NotArmedReason::NoHardThreshold
    );
    assert_eq!(
        not_armed_reason(policy(vec![hard(PidAvailable, "10")]), two_pods()),
        NotArmedReason::NoHardThreshold
    );
    assert_eq!(
        not_armed_reason(policy(vec![hard(MemoryAvailable, "0")]), two_pods()),
        NotArmedReason::NoHardThreshold
    );
    // A soft threshold in addition to a hard one changes nothing, whether or not it is met.
    let both = policy(vec![hard(MemoryAvailable, THRESHOLD), soft(MemoryAvailable, "400", 30)]);
    let mut engine = engine_with(both, two_pods());
    step(&mut engine, 1, Event::Sample(sample(300)));
    let order = kill_order(&engine, &sample(300)).unwrap();
    assert_eq!(order.threshold.value, 100);
    let order = engine.kill_order(at(40), &sample(300), MemoryAvailable, 500).unwrap();
    assert_eq!(order.threshold.value, 100, "the grace period of the soft one is over");
}

#[test]
fn kill_order_uses_the_nearest_of_several_thresholds() {
    let thresholds = vec![hard(MemoryAvailable, "50"), hard(MemoryAvailable, "200")];
    assert_eq!(
        kill_order(&engine_with(policy(thresholds), two_pods()), &sample(300)).unwrap().threshold.value,
        200
    );
}

#[test]
fn kill_order_requires_a_near_threshold_that_is_not_met() {
    let engine = engine_with(policy(vec![hard(MemoryAvailable, THRESHOLD)]), two_pods());
    for (available, expected) in [
        (601, NotArmedReason::Far),
        (100, NotArmedReason::AtThreshold),
        (99, NotArmedReason::ThresholdMet),
        (0, NotArmedReason::ThresholdMet),
    ] {
        assert_eq!(kill_order(&engine, &sample(available)).unwrap_err(), expected, "{available}");
    }
    assert!(kill_order(&engine, &sample(600)).is_ok() && kill_order(&engine, &sample(101)).is_ok());
    let beyond_64_bits = policy(vec![hard(MemoryAvailable, "20E")]);
    assert_eq!(not_armed_reason(beyond_64_bits, two_pods()), NotArmedReason::ThresholdMet);
    let unreadable = NodeStats { memory: Reading::Unknown(UnknownReason::Failed), ..node(300, 900, at(1)) };
    let unknown = kill_order(&engine, &snapshot(unreadable, &[memory_of("a", 300)])).unwrap_err();
    assert_eq!(unknown, NotArmedReason::Unknown);
}

#[test]
fn kill_order_requires_conditions_that_bpf_programs_can_check() {
    let reason_with = |change: fn(&mut Preferences)| {
        not_armed_reason(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], change), two_pods())
    };
    assert_eq!(
        reason_with(|preferences| preferences.memory.measure = MemoryMeasure::MemAvailable),
        NotArmedReason::OtherMeasure
    );
    let pressure = |preferences: &mut Preferences| {
        preferences.memory.psi = Some(MemoryPsi { kind: PsiKind::Some, avg10: Some(10.0), trigger: None });
    };
    assert_eq!(reason_with(pressure), NotArmedReason::MoreConditions);
}

#[test]
fn kill_order_never_selects_a_critical_pod() {
    let critical = |uid| Pod { priority: Some(2_000_000_000), ..pod(uid, "50") };
    let thresholds = || policy(vec![hard(MemoryAvailable, THRESHOLD)]);
    let all = vec![critical("a"), critical("b")];
    assert_eq!(not_armed_reason(thresholds(), all), NotArmedReason::NoCandidate);
    let order =
        kill_order(&engine_with(thresholds(), vec![critical("a"), pod("b", "50")]), &sample(300)).unwrap();
    assert_eq!(&*order.victim.pod.uid, "b", "as the evaluation selects");
}

fn opted_out(uid: &str) -> Pod {
    let mut pod = pod(uid, "50");
    pod.annotations.insert(EVICT, "false".into());
    pod
}

#[test]
fn kill_order_never_selects_a_pod_that_opts_out() {
    let thresholds = || vec![hard(MemoryAvailable, THRESHOLD)];
    let pods = || vec![opted_out("a"), pod("b", "50")];
    assert_eq!(
        not_armed_reason(policy(thresholds()), pods()),
        NotArmedReason::Protected,
        "the kubelet would evict it"
    );
    let order = kill_order(&engine_with(enhanced(thresholds(), |_| ()), pods()), &sample(300)).unwrap();
    assert_eq!(&*order.victim.pod.uid, "b");
    // No other pod is left, and the policy would override the opt-out: not without another sample.
    let overrides = |preferences: &mut Preferences| preferences.hard.override_opt_out = true;
    assert_eq!(
        not_armed_reason(enhanced(thresholds(), overrides), vec![opted_out("a")]),
        NotArmedReason::Protected
    );
}

#[test]
fn kill_order_requires_known_usage_and_distinct_ranks() {
    let engine = engine_with(policy(vec![hard(MemoryAvailable, THRESHOLD)]), two_pods());
    let equal_usage = snapshot(node(300, 900, at(1)), &[memory_of("a", 300), memory_of("b", 300)]);
    assert_eq!(kill_order(&engine, &equal_usage).unwrap_err(), NotArmedReason::EqualRank);
    let one_unknown = snapshot(node(300, 900, at(1)), &[memory_of("b", 300)]);
    assert_eq!(
        kill_order(&engine, &one_unknown).unwrap_err(),
        NotArmedReason::UsageUnknown,
        "`a` has no figures"
    );
}

#[test]
fn no_kill_order_during_an_eviction_or_with_a_pending_policy() {
    let mut engine = engine_with(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()), two_pods());
    let crossed = snapshot(node(90, 900, at(1)), &[memory_of("a", 300), memory_of("b", 200)]);
    assert_eq!(victims(&step(&mut engine, 1, Event::Sample(crossed))).len(), 1);
    let why = engine.kill_order(at(2), &sample(300), MemoryAvailable, 500).unwrap_err();
    assert_eq!(why, NotArmedReason::NoCandidate);
    let proposal =
        |thresholds: Vec<Threshold>| Event::Propose(Box::new(with_kernel_kill(enhanced(thresholds, |_| ()))));
    let mut engine = engine_with(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()), two_pods());
    step(&mut engine, 1, proposal(vec![hard(MemoryAvailable, "900")]));
    assert_eq!(kill_order(&engine, &sample(300)).unwrap_err(), NotArmedReason::ConfigPending);
}

/// Returns a sample of two pods that use a disk of 1,000 bytes, with this amount available.
fn disk_sample(available: u64) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::of_node(node(900, available, at(1)));
    for (uid, used) in [("a", 200), ("b", 300)] {
        let logs = ContainerStatValues { logs_used: Some(used), ..ContainerStatValues::default() };
        snapshot.add_pod(uid, PodStatValues::default()).add_container("main", logs);
    }
    Arc::new(snapshot)
}

fn disk_order(engine: &Engine, sample: &Snapshot) -> Result<ArmedKillOrder, NotArmedReason> {
    engine.kill_order(at(1), sample, NodeFsAvailable, 500)
}

fn disk_engine(mode: KernelKillMode, threshold: Threshold) -> Engine {
    let policy = Policy { kernel_kill: mode, ..policy(vec![threshold]) };
    let pods = set_by(&policy, two_pods());
    engine(policy, &pods)
}

#[test]
fn disk_kill_order_matches_the_decision_without_reclaim() {
    let threshold = || hard(NodeFsAvailable, THRESHOLD);
    for mode in [KernelKillMode::HardDisk, KernelKillMode::HardMemoryAndDisk] {
        let mut engine = disk_engine(mode, threshold());
        step(&mut engine, 1, Event::Sample(disk_sample(300)));
        let order = disk_order(&engine, &disk_sample(300)).unwrap();
        assert_eq!(&*order.victim.pod.uid, "b");
        assert_eq!((order.threshold.signal, order.threshold.headroom()), (NodeFsAvailable, 200));
        let met = step(&mut engine, 2, Event::Sample(order.met_at(at(2)).unwrap()));
        assert!(met.awaits_reclaim());
        let decision = step(&mut engine, 2, Event::Reclaimed(Err(UnknownReason::Absent)));
        assert_eq!(victims(&decision), victims(&order.decision));
    }
}

#[test]
fn disk_kill_order_requires_its_mode_a_near_hard_threshold_and_pod_stats() {
    let enabled = || disk_engine(KernelKillMode::HardDisk, hard(NodeFsAvailable, THRESHOLD));
    let memory = disk_engine(KernelKillMode::HardMemory, hard(NodeFsAvailable, THRESHOLD));
    assert_eq!(disk_order(&memory, &disk_sample(300)).unwrap_err(), NotArmedReason::Off);
    assert_eq!(kill_order(&enabled(), &sample(300)).unwrap_err(), NotArmedReason::Off);
    let soft = disk_engine(KernelKillMode::HardDisk, soft(NodeFsAvailable, THRESHOLD, 30));
    assert_eq!(disk_order(&soft, &disk_sample(300)).unwrap_err(), NotArmedReason::NoHardThreshold);
    for (available, reason) in
        [(601, NotArmedReason::Far), (100, NotArmedReason::AtThreshold), (99, NotArmedReason::ThresholdMet)]
    {
        assert_eq!(disk_order(&enabled(), &disk_sample(available)).unwrap_err(), reason);
    }
    let unmeasured = NodeStats { unmeasured: Parts::ALL, ..node(900, 300, at(1)) };
    let reason = disk_order(&enabled(), &snapshot(unmeasured, &[])).unwrap_err();
    assert_eq!(reason, NotArmedReason::NoCandidate);
}

#[test]
fn not_armed_reasons_have_distinct_names() {
    let names: std::collections::BTreeSet<_> = NotArmedReason::ALL.iter().map(|why| why.name()).collect();
    assert_eq!(names.len(), NotArmedReason::ALL.len());
}
