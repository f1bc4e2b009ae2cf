//! Whom the pipeline would let go, and when nobody may without another sample.

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
use crate::snapshot::{ContainerStatValues, NodeStats, PodStatValues, Snapshot, SnapshotBuilder};

use crate::engine::kernel_kill::ArmedKillOrder;
use crate::engine::kernel_kill::NotArmedReason;
use crate::policy::eviction_settings::KernelKillMode;

/// Of the 1,000 bytes that the fixture's node has.
const THRESHOLD: &str = "100";

fn on(policy: Policy) -> Policy {
    Policy { kernel_kill: KernelKillMode::HardMemory, ..policy }
}

fn with(policy: Policy, pods: Vec<Pod>) -> Engine {
    let policy = on(policy);
    let pods = set_by(&policy, pods);
    engine(policy, &pods)
}

fn two() -> Vec<Pod> {
    vec![pod("a", "50"), pod("b", "50")]
}

fn sample(available: u64) -> Arc<Snapshot> {
    snapshot(node(available, 900, at(1)), &[memory_of("a", 300), memory_of("b", 200)])
}

fn kill_order(engine: &Engine, sample: &Snapshot) -> Result<ArmedKillOrder, NotArmedReason> {
    engine.kill_order(at(1), sample, MemoryAvailable, 500)
}

fn refused(policy: Policy, pods: Vec<Pod>) -> NotArmedReason {
    kill_order(&with(policy, pods), &sample(300)).unwrap_err()
}

#[test]
fn the_kill_order_is_the_decision_that_a_crossing_brings() {
    for policy in [
        policy(vec![hard(MemoryAvailable, THRESHOLD)]),
        enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()),
    ] {
        let mut engine = with(policy, two());
        step(&mut engine, 1, Event::Sample(sample(300)));
        let order = kill_order(&engine, &sample(300)).unwrap();
        assert_eq!(&*order.victim.pod.uid, "a");
        assert_eq!((order.headroom(), order.max_working_set()), (200, 900));
        // Nothing has happened: the same again.
        assert_eq!(&*kill_order(&engine, &sample(300)).unwrap().victim.pod.uid, "a");
        // A real crossing.
        let crossed = snapshot(node(99, 900, at(2)), &[memory_of("a", 300), memory_of("b", 200)]);
        let decision = step(&mut engine.clone(), 2, Event::Sample(crossed));
        assert_eq!(victims(&decision), victims(&order.decision));
        // And that of the BPF programs.
        let decision = step(&mut engine, 2, Event::Sample(order.met_at(at(2)).unwrap()));
        assert_eq!(victims(&decision), victims(&order.decision));
        assert_eq!(decision.evaluation().unwrap().end, EvaluationEnd::Evicted);
    }
}

#[test]
fn off_unless_asked_for() {
    let policy = policy(vec![hard(MemoryAvailable, THRESHOLD)]);
    let pods = set_by(&policy, two());
    assert_eq!(kill_order(&engine(policy, &pods), &sample(300)).unwrap_err(), NotArmedReason::Off);
}

#[test]
fn never_for_a_soft_threshold() {
    assert_eq!(
        refused(policy(vec![soft(MemoryAvailable, THRESHOLD, 30)]), two()),
        NotArmedReason::NoHardThreshold
    );
    assert_eq!(refused(policy(vec![hard(PidAvailable, "10")]), two()), NotArmedReason::NoHardThreshold);
    assert_eq!(refused(policy(vec![hard(MemoryAvailable, "0")]), two()), NotArmedReason::NoHardThreshold);
    // A soft one in addition to a hard one changes nothing, met or not.
    let both = policy(vec![hard(MemoryAvailable, THRESHOLD), soft(MemoryAvailable, "400", 30)]);
    let mut engine = with(both, two());
    step(&mut engine, 1, Event::Sample(sample(300)));
    let order = kill_order(&engine, &sample(300)).unwrap();
    assert_eq!(order.threshold, 100);
}

#[test]
fn the_nearest_of_several_thresholds_is_guarded() {
    let thresholds = vec![hard(MemoryAvailable, "50"), hard(MemoryAvailable, "200")];
    assert_eq!(kill_order(&with(policy(thresholds), two()), &sample(300)).unwrap().threshold, 200);
}

#[test]
fn only_near_a_threshold_and_before_it() {
    let engine = with(policy(vec![hard(MemoryAvailable, THRESHOLD)]), two());
    for (available, expected) in [
        (601, NotArmedReason::Far),
        (100, NotArmedReason::AtThreshold),
        (99, NotArmedReason::ThresholdMet),
        (0, NotArmedReason::ThresholdMet),
    ] {
        assert_eq!(kill_order(&engine, &sample(available)).unwrap_err(), expected, "{available}");
    }
    assert!(kill_order(&engine, &sample(600)).is_ok() && kill_order(&engine, &sample(101)).is_ok());
    let blind = NodeStats { memory: Reading::Unknown(UnknownReason::Failed), ..node(300, 900, at(1)) };
    let unknown = kill_order(&engine, &snapshot(blind, &[memory_of("a", 300)])).unwrap_err();
    assert_eq!(unknown, NotArmedReason::Unknown(UnknownReason::Failed));
}

#[test]
fn not_where_the_bpf_programs_cannot_see_that_the_threshold_is_crossed() {
    let refused_by = |change: fn(&mut Preferences)| {
        refused(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], change), two())
    };
    assert_eq!(
        refused_by(|preferences| preferences.memory.measure = MemoryMeasure::MemAvailable),
        NotArmedReason::OtherMeasure
    );
    let pressure = |preferences: &mut Preferences| {
        preferences.memory.psi = Some(MemoryPsi { kind: PsiKind::Some, avg10: Some(10.0), trigger: None });
    };
    assert_eq!(refused_by(pressure), NotArmedReason::MoreConditions);
}

#[test]
fn never_a_critical_pod() {
    let critical = |uid| Pod { priority: Some(2_000_000_000), ..pod(uid, "50") };
    let thresholds = || policy(vec![hard(MemoryAvailable, THRESHOLD)]);
    let all = vec![critical("a"), critical("b")];
    assert_eq!(refused(thresholds(), all), NotArmedReason::NoCandidate(EvaluationEnd::OnlyCritical));
    let order = kill_order(&with(thresholds(), vec![critical("a"), pod("b", "50")]), &sample(300)).unwrap();
    assert_eq!(&*order.victim.pod.uid, "b", "as the evaluation selects");
}

fn opted_out(uid: &str) -> Pod {
    let mut pod = pod(uid, "50");
    pod.annotations.insert(EVICT, "false".into());
    pod
}

#[test]
fn never_a_pod_that_opts_out_in_either_profile() {
    let thresholds = || vec![hard(MemoryAvailable, THRESHOLD)];
    let pods = || vec![opted_out("a"), pod("b", "50")];
    assert_eq!(
        refused(policy(thresholds()), pods()),
        NotArmedReason::Protected,
        "the kubelet would evict it"
    );
    let order = kill_order(&with(enhanced(thresholds(), |_| ()), pods()), &sample(300)).unwrap();
    assert_eq!(&*order.victim.pod.uid, "b");
    // Nobody else is left, and the policy would override: not without another sample.
    let overrides = |preferences: &mut Preferences| preferences.hard.override_opt_out = true;
    assert_eq!(refused(enhanced(thresholds(), overrides), vec![opted_out("a")]), NotArmedReason::Protected);
}

#[test]
fn not_where_chance_decides() {
    let engine = with(policy(vec![hard(MemoryAvailable, THRESHOLD)]), two());
    let alike = snapshot(node(300, 900, at(1)), &[memory_of("a", 300), memory_of("b", 300)]);
    assert_eq!(kill_order(&engine, &alike).unwrap_err(), NotArmedReason::EqualRank);
    let one_unknown = snapshot(node(300, 900, at(1)), &[memory_of("b", 300)]);
    assert_eq!(
        kill_order(&engine, &one_unknown).unwrap_err(),
        NotArmedReason::UsageUnknown,
        "`a` has no figures"
    );
}

#[test]
fn not_while_somebody_is_on_the_way_or_something_else_drives() {
    let mut engine = with(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()), two());
    let crossed = snapshot(node(90, 900, at(1)), &[memory_of("a", 300), memory_of("b", 200)]);
    assert_eq!(victims(&step(&mut engine, 1, Event::Sample(crossed))).len(), 1);
    let why = engine.kill_order(at(2), &sample(300), MemoryAvailable, 500).unwrap_err();
    assert_eq!(why, NotArmedReason::NoCandidate(EvaluationEnd::ReleaseInProgress));
    let waits = |thresholds: Vec<Threshold>| Event::Propose(Box::new(on(enhanced(thresholds, |_| ()))));
    let mut engine = with(enhanced(vec![hard(MemoryAvailable, THRESHOLD)], |_| ()), two());
    step(&mut engine, 1, waits(vec![hard(MemoryAvailable, "900")]));
    assert_eq!(kill_order(&engine, &sample(300)).unwrap_err(), NotArmedReason::ConfigPending);
}

/// Two pods that use a disk of 1,000 bytes, of which so much is available.
fn disk_sample(available: u64) -> Arc<Snapshot> {
    let mut builder = SnapshotBuilder::new();
    builder.node(node(900, available, at(1)));
    for (uid, used) in [("a", 200), ("b", 300)] {
        let logs = ContainerStatValues { logs_used: Some(used), ..ContainerStatValues::default() };
        builder.pod(uid, PodStatValues::default()).container("main", logs);
    }
    Arc::new(builder.finish())
}

fn disk_order(engine: &Engine, sample: &Snapshot) -> Result<ArmedKillOrder, NotArmedReason> {
    engine.kill_order(at(1), sample, NodeFsAvailable, 500)
}

fn for_writers(mode: KernelKillMode, threshold: Threshold) -> Engine {
    let policy = Policy { kernel_kill: mode, ..policy(vec![threshold]) };
    let pods = set_by(&policy, two());
    engine(policy, &pods)
}

#[test]
fn the_kill_order_for_writers_is_the_decision_that_a_crossing_brings_without_reclaim() {
    let threshold = || hard(NodeFsAvailable, THRESHOLD);
    for mode in [KernelKillMode::HardDisk, KernelKillMode::HardMemoryAndDisk] {
        let mut engine = for_writers(mode, threshold());
        step(&mut engine, 1, Event::Sample(disk_sample(300)));
        let order = disk_order(&engine, &disk_sample(300)).unwrap();
        assert_eq!((&*order.victim.pod.uid, order.signal, order.headroom()), ("b", NodeFsAvailable, 200));
        let met = step(&mut engine, 2, Event::Sample(order.met_at(at(2)).unwrap()));
        assert!(met.awaits_reclaim());
        let decision = step(&mut engine, 2, Event::Reclaimed(Err(UnknownReason::Absent)));
        assert_eq!(victims(&decision), victims(&order.decision));
    }
}

#[test]
fn no_kill_order_for_writers_unless_asked_for_and_near_a_hard_threshold_and_with_pods_that_are_measured() {
    let writers = || for_writers(KernelKillMode::HardDisk, hard(NodeFsAvailable, THRESHOLD));
    let memory = for_writers(KernelKillMode::HardMemory, hard(NodeFsAvailable, THRESHOLD));
    assert_eq!(disk_order(&memory, &disk_sample(300)).unwrap_err(), NotArmedReason::Off);
    assert_eq!(kill_order(&writers(), &sample(300)).unwrap_err(), NotArmedReason::Off);
    let soft = for_writers(KernelKillMode::HardDisk, soft(NodeFsAvailable, THRESHOLD, 30));
    assert_eq!(disk_order(&soft, &disk_sample(300)).unwrap_err(), NotArmedReason::NoHardThreshold);
    for (available, reason) in
        [(601, NotArmedReason::Far), (100, NotArmedReason::AtThreshold), (99, NotArmedReason::ThresholdMet)]
    {
        assert_eq!(disk_order(&writers(), &disk_sample(available)).unwrap_err(), reason);
    }
    let unmeasured = NodeStats { unmeasured: Parts::ALL, ..node(900, 300, at(1)) };
    let reason = disk_order(&writers(), &snapshot(unmeasured, &[])).unwrap_err();
    assert_eq!(reason, NotArmedReason::NoCandidate(EvaluationEnd::CannotRank));
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let all = [
        NotArmedReason::Off,
        NotArmedReason::NoHardThreshold,
        NotArmedReason::OtherMeasure,
        NotArmedReason::MoreConditions,
        NotArmedReason::Unknown(UnknownReason::Stale),
        NotArmedReason::ThresholdMet,
        NotArmedReason::AtThreshold,
        NotArmedReason::Far,
        NotArmedReason::ConfigPending,
        NotArmedReason::NoCandidate(EvaluationEnd::NoPods),
        NotArmedReason::OtherSignal,
        NotArmedReason::EvictionInFlight,
        NotArmedReason::Critical,
        NotArmedReason::Protected,
        NotArmedReason::UsageUnknown,
        NotArmedReason::EqualRank,
    ];
    let names: std::collections::BTreeSet<_> = all.iter().map(|why| why.name()).collect();
    assert_eq!(names.len(), all.len());
}
