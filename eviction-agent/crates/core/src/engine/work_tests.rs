//! How the work of an evaluation grows with the number of pods.

use std::sync::Arc;

use crate::decision::Action;
use crate::disk_layout::DiskLayout;
use crate::eviction::EvaluationEnd;
use crate::fixture::{at, container, hard, limits, node, pod, policy, set, step};
use crate::input::Event;
use crate::pod::Pod;
use crate::policy::preferences::Preferences;
use crate::policy::{Policy, Rules};
use crate::signal::Signal::{MemoryAvailable, NodeFsAvailable};
use crate::snapshot::{ContainerStatValues, PodStatValues, Snapshot};
use crate::work::steps;

use super::Engine;

/// The number of pods of the smaller node.
const PODS: u64 = 400;

/// How the values of the pods relate to their order: sorts have good and bad cases.
const USES: [fn(u64, u64) -> u64; 4] = [
    |index, _| index,
    |index, pods| pods - index,
    |_, _| 7,
    // Scattered: the multiplier of Knuth's multiplicative hashing.
    |index, _| index.wrapping_mul(2_654_435_761) % 1_000_003,
];

fn limited(uid: &str) -> Pod {
    let limits = limits(&[("ephemeral-storage", "1Gi")]);
    let containers = ["app", "proxy", "logs"].map(|name| container(name, limits.clone()));
    Pod { containers: containers.into(), ..pod(uid, "10") }
}

/// Returns the steps of one evaluation of a node with this many pods, without the indexing of its snapshot.
fn steps_of(
    policy: &Policy,
    memory: u64,
    disk: u64,
    pods: u64,
    uses: fn(u64, u64) -> u64,
) -> (EvaluationEnd, u64) {
    let uid = |index: u64| format!("{index:08}");
    let set = set((0..pods).map(|index| limited(&uid(index))).collect());
    let mut snapshot = Snapshot::of_node(node(memory, disk, at(1)));
    for index in 0..pods {
        let used = Some(uses(index, pods));
        let values = PodStatValues { memory_working_set: used, ..PodStatValues::default() };
        snapshot.add_pod(&uid(index), values);
        for name in ["app", "proxy", "logs"] {
            snapshot.add_container(
                name,
                ContainerStatValues { logs_used: used, ..ContainerStatValues::default() },
            );
        }
    }
    snapshot.index(&set);
    let snapshot = Arc::new(snapshot);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::Pods(set));
    step(&mut engine, 0, Event::DiskLayout(Ok(DiskLayout::default())));
    let (decision, steps) = steps(|| {
        let decision = step(&mut engine, 1, Event::Sample(Arc::clone(&snapshot)));
        match decision.actions.iter().any(|action| matches!(action, Action::Reclaim(_))) {
            true => step(&mut engine, 1, Event::Reclaimed(Ok(Arc::clone(&snapshot)))),
            false => decision,
        }
    });
    (decision.evaluation().unwrap().end, steps)
}

fn profiles(local_storage: bool) -> [(&'static str, Policy); 2] {
    let thresholds = vec![hard(MemoryAvailable, "100"), hard(NodeFsAvailable, "100")];
    let kubelet = Policy { local_storage_capacity_isolation: local_storage, ..policy(thresholds) };
    let enhanced = Policy { rules: Rules::enhanced(&Preferences::default()), ..kubelet.clone() };
    [("kubelet", kubelet), ("enhanced", enhanced)]
}

/// Checks that an evaluation of twice as many pods takes at most `times` as many steps.
fn grows_by_at_most(
    times: f64,
    policy: &Policy,
    memory: u64,
    disk: u64,
    expected: EvaluationEnd,
    name: &str,
) {
    for (order, uses) in USES.into_iter().enumerate() {
        let (end, once) = steps_of(policy, memory, disk, PODS, uses);
        let (_, twice) = steps_of(policy, memory, disk, 2 * PODS, uses);
        assert_eq!(end, expected, "{name}, order {order}");
        let grown = twice as f64 / once.max(1) as f64;
        assert!(grown <= times, "{name}, order {order}: {PODS} pods {once}, twice as many {twice}");
    }
}

#[test]
fn an_evaluation_without_pressure_and_local_storage_reads_no_pod() {
    let [(_, kubelet), _] = profiles(false);
    assert_eq!(steps_of(&kubelet, 900, 900, PODS, USES[0]), (EvaluationEnd::NoPressure, 0));
}

#[test]
fn an_evaluation_without_pressure_is_linear_in_the_pods() {
    for local_storage in [false, true] {
        for (name, policy) in profiles(local_storage) {
            // Less than twice if some steps do not depend on the number of pods.
            grows_by_at_most(2.0, &policy, 900, 900, EvaluationEnd::NoPressure, name);
        }
    }
}

#[test]
fn an_evaluation_under_pressure_is_at_worst_n_log_n() {
    // 2n log 2n is 2 + 2 / log n times n log n, 2.24 times here. The sort uses different algorithms for
    // different sizes, so it may take somewhat more than that.
    const TIMES: f64 = 2.5;
    for (name, policy) in profiles(true) {
        for (memory, disk) in [(50, 900), (900, 50)] {
            grows_by_at_most(TIMES, &policy, memory, disk, EvaluationEnd::Evicted, name);
        }
    }
}
