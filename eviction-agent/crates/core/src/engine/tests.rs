use std::sync::Arc;

use proptest::prelude::*;

use super::Engine;
use crate::decision::{Action, DecisionKind, NotEvaluated};
use crate::disk_layout::{DiskLayout, Reclaim};
use crate::eviction::EvaluationEnd;
use crate::fixture::arbitrary::{inputs, policy as any_policy};
use crate::fixture::{
    at, container, engine, hard, limits, memory_of, node, pod, policy, quantity, set, snapshot, soft, step,
    victims,
};
use crate::input::{Event, Input};
use crate::pod::{EmptyDir, Pod, Volume};
use crate::policy::{Gates, Policy};
use crate::reading::UnknownReason;
use crate::record::DecisionRecord;
use crate::signal::Signal::{ContainerFsAvailable, MemoryAvailable, NodeFsAvailable};
use crate::snapshot::{ContainerStatValues, FsUsage, PodStatValues, Snapshot};

#[test]
fn pod_above_its_request_is_evicted_before_a_larger_one_within_it() {
    let pods = set(vec![pod("big", "500"), pod("greedy", "10")]);
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let usage = [memory_of("big", 400), memory_of("greedy", 200)];
    let decision = step(&mut engine, 1, Event::Sample(snapshot(node(99, 900, at(1)), &usage)));
    assert_eq!(victims(&decision), [("greedy", 1)]);
    let no_pressure = step(&mut engine, 2, Event::Sample(snapshot(node(100, 900, at(2)), &usage)));
    assert_eq!(no_pressure.evaluation().unwrap().end, EvaluationEnd::NoPressure);
    assert_eq!(no_pressure.conditions.len(), 1, "for the transition period");
}

#[test]
fn soft_threshold_waits_and_grants_the_smaller_grace_period() {
    let mut slow_pod = pod("a", "10");
    slow_pod.termination_grace_period_seconds = Some(60);
    let pods = set(vec![slow_pod]);
    let thresholds = vec![soft(MemoryAvailable, "100", 30)];
    let mut engine = engine(Policy { max_pod_grace_period_seconds: 20, ..policy(thresholds) }, &pods);
    for (seconds, expected) in [(0, vec![]), (29, vec![]), (30, vec![("a", 20)])] {
        let sample = snapshot(node(50, 900, at(seconds)), &[memory_of("a", 200)]);
        let decision = step(&mut engine, seconds, Event::Sample(sample));
        assert_eq!(victims(&decision), expected, "after {seconds} s");
    }
}

#[test]
fn hard_threshold_is_handled_before_a_soft_one_whose_grace_period_is_over() {
    let pods = set(vec![pod("a", "10")]);
    let thresholds = vec![hard(MemoryAvailable, "100"), soft(MemoryAvailable, "400", 30)];
    let mut engine = engine(Policy { max_pod_grace_period_seconds: 20, ..policy(thresholds) }, &pods);
    for (seconds, available, expected) in
        [(0, 300, vec![]), (30, 50, vec![("a", 1)]), (40, 300, vec![("a", 20)])]
    {
        let sample = snapshot(node(available, 900, at(seconds)), &[memory_of("a", 200)]);
        let decision = step(&mut engine, seconds, Event::Sample(sample));
        assert_eq!(victims(&decision), expected, "after {seconds} s");
    }
}

#[test]
fn an_evaluation_waits_for_the_second_sample_and_decides_by_it() {
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(policy(vec![hard(NodeFsAvailable, "10%")]), &pods);
    let full = |seconds| snapshot(node(900, 99, at(seconds)), &[memory_of("a", 1)]);

    let first = step(&mut engine, 1, Event::Sample(full(1)));
    let collect = [Reclaim::Containers, Reclaim::Images].map(Action::Reclaim);
    assert_eq!(first.actions[1..], collect);
    let emptier = snapshot(node(900, 100, at(1)), &[]);
    let second = step(&mut engine, 1, Event::Reclaimed(Ok(emptier)));
    assert_eq!(second.evaluation().unwrap().end, EvaluationEnd::Reclaimed);
    assert!(second.actions.is_empty());

    step(&mut engine, 2, Event::Sample(full(2)));
    let failed_sample = step(&mut engine, 2, Event::Reclaimed(Err(UnknownReason::Failed)));
    assert_eq!(victims(&failed_sample), [("a", 1)]);

    let unexpected = step(&mut engine, 3, Event::Reclaimed(Ok(full(3))));
    assert!(matches!(unexpected.kind, DecisionKind::NotEvaluated(NotEvaluated::NotAwaitingReclaim)));
}

#[test]
fn new_sample_ends_an_evaluation_that_awaits_reclaim() {
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(policy(vec![hard(NodeFsAvailable, "10%")]), &pods);
    for seconds in 1..3 {
        let sample = snapshot(node(900, 99, at(seconds)), &[]);
        assert!(step(&mut engine, seconds, Event::Sample(sample)).awaits_reclaim());
    }
    let no_pressure = step(&mut engine, 3, Event::Sample(snapshot(node(900, 900, at(3)), &[])));
    assert!(no_pressure.actions.is_empty());
    let late = step(&mut engine, 4, Event::Reclaimed(Err(UnknownReason::Failed)));
    assert!(matches!(late.kind, DecisionKind::NotEvaluated(NotEvaluated::NotAwaitingReclaim)));
}

#[test]
fn derived_thresholds_count_from_the_second_evaluation_on() {
    let pods = set(vec![pod("a", "10")]);
    let mut engine = engine(policy(vec![soft(NodeFsAvailable, "10%", 3600)]), &pods);
    let sample = |seconds| Event::Sample(snapshot(node(900, 50, at(seconds)), &[]));
    let met = |engine: &mut Engine, seconds| {
        let decision = step(engine, seconds, sample(seconds));
        let evaluation = decision.evaluation().unwrap();
        let signal = |met: &crate::threshold::Met| evaluation.threshold(met.threshold).unwrap().signal;
        evaluation.met.iter().map(signal).collect::<Vec<_>>()
    };
    assert_eq!(met(&mut engine, 1), [NodeFsAvailable]);
    assert_eq!(met(&mut engine, 2), [NodeFsAvailable, ContainerFsAvailable]);
}

#[test]
fn failed_first_sample_counts_as_the_first_evaluation() {
    let pods = set(vec![]);
    let mut engine = engine(policy(vec![hard(NodeFsAvailable, "10%")]), &pods);
    let failed = step(&mut engine, 1, Event::SampleFailed(UnknownReason::Failed));
    assert!(matches!(failed.kind, DecisionKind::NotEvaluated(NotEvaluated::NoSample(UnknownReason::Failed))));
    let sample = Event::Sample(snapshot(node(900, 50, at(2)), &[]));
    assert_eq!(step(&mut engine, 2, sample).evaluation().unwrap().met.len(), 2);
}

#[test]
fn sample_is_not_evaluated_without_a_disk_layout() {
    let mut engine = Engine::new(policy(vec![hard(MemoryAvailable, "100")]));
    step(&mut engine, 0, Event::Pods(set(vec![pod("a", "1")])));
    step(&mut engine, 0, Event::DiskLayout(Err(UnknownReason::Failed)));
    assert!(engine.wants_layout());
    let sample = || Event::Sample(snapshot(node(1, 900, at(1)), &[memory_of("a", 9)]));
    let decision = step(&mut engine, 1, sample());
    assert!(matches!(decision.kind, DecisionKind::NotEvaluated(NotEvaluated::LayoutUnknown)));
    assert!(decision.conditions.is_empty());
    step(&mut engine, 1, Event::DiskLayout(Ok(DiskLayout::default())));
    assert!(!engine.wants_layout());
    assert_eq!(victims(&step(&mut engine, 1, sample())), [("a", 1)]);
}

#[test]
fn later_disk_layout_replaces_the_first() {
    let mut engine = Engine::new(policy(vec![hard(MemoryAvailable, "100")]));
    let dedicated = DiskLayout { dedicated_image_fs: true, ..DiskLayout::default() };
    for (seconds, layout) in [(1, DiskLayout::default()), (2, dedicated), (3, dedicated)] {
        step(&mut engine, seconds, Event::DiskLayout(Ok(layout)));
        let sample = Event::Sample(snapshot(node(1, 900, at(seconds)), &[]));
        assert_eq!(step(&mut engine, seconds, sample).evaluation().unwrap().layout, layout);
    }
}

#[test]
fn split_image_fs_without_its_gate_raises_conditions_but_evicts_no_pod() {
    let mut engine = Engine::new(Policy {
        gates: Gates { separate_disk_gc: false, ..Gates::default() },
        ..policy(vec![hard(MemoryAvailable, "100")])
    });
    step(&mut engine, 0, Event::Pods(set(vec![pod("a", "1")])));
    let layout = DiskLayout { dedicated_image_fs: true, split_image_fs: true };
    step(&mut engine, 0, Event::DiskLayout(Ok(layout)));
    let sample = |seconds| Event::Sample(snapshot(node(1, 900, at(seconds)), &[memory_of("a", 9)]));
    let first = step(&mut engine, 1, sample(1));
    assert!(matches!(first.kind, DecisionKind::NotEvaluated(NotEvaluated::LayoutRefused)));
    let second = step(&mut engine, 2, sample(2));
    assert_eq!(second.evaluation().unwrap().end, EvaluationEnd::CannotRank);
    assert_eq!(second.conditions.len(), 1);
    assert!(victims(&second).is_empty());
}

#[test]
fn same_statistics_evict_only_once() {
    let pods = set(vec![pod("a", "1"), pod("b", "1")]);
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let sample = |time| {
        let usage = [memory_of("a", 9), memory_of("b", 9)];
        Event::Sample(snapshot(node(50, 900, at(time)), &usage))
    };
    assert_eq!(victims(&step(&mut engine, 5, sample(5))).len(), 1);
    assert!(victims(&step(&mut engine, 6, sample(5))).is_empty());
    assert!(victims(&step(&mut engine, 7, sample(4))).is_empty(), "older");
    assert_eq!(victims(&step(&mut engine, 8, sample(5))).len(), 1, "newer than the last");
}

#[test]
fn hard_threshold_evicts_later_when_the_clock_goes_back() {
    let pods = set(vec![pod("a", "1")]);
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let sample = |time| Event::Sample(snapshot(node(50, 900, at(time)), &[memory_of("a", 9)]));
    assert_eq!(victims(&step(&mut engine, 10, sample(10))).len(), 1);
    assert!(victims(&step(&mut engine, 9, sample(11))).is_empty());
    assert_eq!(victims(&step(&mut engine, 10, sample(12))).len(), 1);
}

#[test]
fn pods_above_their_limits_are_evicted_first_except_critical_pods() {
    let limited = |uid: &str, priority| Pod {
        containers: vec![container("main", limits(&[("ephemeral-storage", "100")]))],
        priority: Some(priority),
        ..pod(uid, "1")
    };
    let pods = set(vec![
        limited("a", 0),
        limited("critical", 2_000_000_000),
        limited("c", 9),
        pod("unlimited", "1"),
    ]);
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let used = |uid: &'static str, used| {
        let values = PodStatValues { ephemeral_storage_used: Some(used), ..PodStatValues::default() };
        (uid, values)
    };
    let usage = [used("c", 101), used("critical", 500), used("a", 101), used("unlimited", 999)];
    let decision = step(&mut engine, 1, Event::Sample(snapshot(node(1, 900, at(1)), &usage)));
    assert_eq!(victims(&decision), [("a", 1), ("c", 1)]);
    let evaluation = decision.evaluation().unwrap();
    assert_eq!((evaluation.end, &evaluation.critical_pods[..]), (EvaluationEnd::LocalStorage, &[1][..]));
}

/// Returns a sample without pressure, with one container and one volume of the pod `a`.
fn storage_sample(container: ContainerStatValues, volume: FsUsage) -> Event {
    let mut snapshot = Snapshot::of_node(node(900, 900, at(1)));
    snapshot.add_pod("a", PodStatValues::default());
    snapshot.add_container("main", container).add_volume("cache", volume);
    Event::Sample(Arc::new(snapshot))
}

#[test]
fn unknown_usage_of_a_limited_volume_is_counted_and_evicts_no_pod() {
    let empty_dir = EmptyDir { size_limit: Some(quantity("100")), ..EmptyDir::default() };
    let cache = Volume { name: "cache".into(), empty_dir: Some(empty_dir), ..Volume::default() };
    let pods = set(vec![Pod { volumes: vec![cache], ..pod("a", "1") }]);
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let decision = step(&mut engine, 1, storage_sample(ContainerStatValues::default(), FsUsage::default()));
    assert_eq!((victims(&decision).len(), decision.evaluation().unwrap().unknown_volumes), (0, 1));
}

#[test]
fn writable_layer_on_a_dedicated_image_file_system_does_not_lower_the_usage() {
    let containers = vec![container("main", limits(&[("ephemeral-storage", "100")]))];
    let pods = set(vec![Pod { containers, ..pod("a", "1") }]);
    let mut engine = Engine::new(policy(vec![hard(NodeFsAvailable, "100")]));
    step(&mut engine, 0, Event::Pods(pods));
    let layout = DiskLayout { dedicated_image_fs: true, ..DiskLayout::default() };
    step(&mut engine, 0, Event::DiskLayout(Ok(layout)));
    // The kubelet converts usage to an i64, so this is -1.
    let values =
        ContainerStatValues { logs_used: Some(101), rootfs_used: Some(u64::MAX), ..Default::default() };
    let decision = step(&mut engine, 1, storage_sample(values, FsUsage::default()));
    assert_eq!(victims(&decision), [("a", 1)]);
}

#[test]
fn ten_thousand_pods_with_repeated_uids_are_ranked() {
    let uid = |n: u32| format!("{:08}", n / 2);
    let pods = set((0..10_000).map(|n| pod(&uid(n), "100")).collect());
    let uids: Vec<_> = (0..5_000).map(uid).collect();
    let usage: Vec<_> = uids.iter().map(|uid| memory_of(uid, 200)).collect();
    let mut engine = engine(policy(vec![hard(MemoryAvailable, "100")]), &pods);
    let sample = snapshot(node(50, 900, at(1)), &usage);
    let decision = step(&mut engine, 1, Event::Sample(sample));
    let evaluation = decision.evaluation().unwrap();
    assert_eq!(evaluation.ranked.len(), 10_000);
    let first = &pods.get(evaluation.ranked[0].pod).unwrap().pod.uid;
    assert_eq!(&**first, "00002500", "the first uid without statistics");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// This holds for any inputs, in any order and at any time.
    #[test]
    fn no_input_panics_or_evicts_a_critical_pod(policy in any_policy(), inputs in inputs()) {
        let mut engine = Engine::new(policy);
        for input in inputs {
            let decision = engine.step(input);
            for eviction in decision.evictions() {
                let pods = &decision.evaluation().unwrap().pods;
                prop_assert!(!pods.get(eviction.pod).unwrap().critical);
            }
        }
    }

    /// This also holds for snapshots that were indexed beforehand.
    #[test]
    fn the_same_inputs_give_the_same_bytes(policy in any_policy(), inputs in inputs()) {
        let run = |index: bool| {
            let mut engine = Engine::new(policy.clone());
            let mut bytes = Vec::new();
            for Input { at, mut event } in inputs.clone() {
                if let (true, Event::Sample(snapshot)) = (index, &mut event) {
                    Arc::make_mut(snapshot).index(engine.pods());
                }
                let decision = engine.step(Input { at, event });
                let report = DecisionRecord::of(&decision);
                serde_json::to_writer(&mut bytes, &report).unwrap();
            }
            bytes
        };
        prop_assert_eq!(run(false), run(true));
    }

    /// No pod is evicted because of an unknown reading.
    #[test]
    fn unknown_readings_evict_no_pod(
        policy in any_policy(),
        inputs in inputs(),
    ) {
        let mut engine = Engine::new(Policy { local_storage_capacity_isolation: false, ..policy });
        for Input { at, mut event } in inputs {
            if let Event::Sample(sample) = &mut event {
                Arc::make_mut(sample).node = Default::default();
            }
            let decision = engine.step(Input { at, event });
            prop_assert!(decision.actions.is_empty());
        }
    }
}
