//! The ranking of the enhanced profile.

use std::cmp::Ordering;
use std::sync::Arc;

use proptest::prelude::*;

use crate::decision::Decision;
use crate::disk_layout::DiskLayout;
use crate::engine::Engine;
use crate::eviction::EvaluationEnd;
use crate::fixture::arbitrary::{pod as any_pod, snapshot as any_snapshot};
use crate::fixture::{
    at, container, hard, list, memory_of, node, pod, policy, requests, set_by, snapshot_of, step, victims,
};
use crate::input::Event;
use crate::pod::{EmptyDir, Owner, Pod, Volume};
use crate::pods::PRIORITY_HINT;
use crate::policy::preferences::Preferences;
use crate::policy::{Policy, Rules};
use crate::protection::Refusal;
use crate::signal::Signal::{
    self, ImageFsAvailable, MemoryAvailable, NodeFsAvailable, NodeFsInodesFree, PidAvailable,
};
use crate::snapshot::{ContainerStatValues, FsUsage, PodStatValues, Snapshot};

use super::Candidate;
use super::tests::measures;

fn enhanced(signal: Signal) -> Policy {
    let rules = Rules::enhanced(&Preferences { rate_limits: Vec::new(), ..Preferences::default() });
    Policy { rules, ..policy(vec![hard(signal, "100%")]) }
}

/// Returns the decision of an evaluation after a reclaim that freed nothing.
fn sample(signal: Signal, layout: DiskLayout, pods: Vec<Pod>, sample: Arc<Snapshot>) -> Decision {
    let policy = enhanced(signal);
    let mut engine = Engine::new(policy.clone());
    step(&mut engine, 0, Event::Pods(set_by(&policy, pods)));
    step(&mut engine, 0, Event::DiskLayout(Ok(layout)));
    let decision = step(&mut engine, 1, Event::Sample(Arc::clone(&sample)));
    if decision.awaits_reclaim() {
        return step(&mut engine, 1, Event::Reclaimed(Ok(sample)));
    }
    decision
}

fn order(decision: &Decision) -> Vec<&str> {
    let evaluation = decision.evaluation().unwrap();
    evaluation.ranked.iter().map(|candidate| &*evaluation.pods.get(candidate.pod).unwrap().pod.uid).collect()
}

fn by_memory(pods: Vec<Pod>, usage: &[(&str, u64)]) -> Vec<String> {
    let seen = snapshot_of(node(50, 900, at(1)), usage);
    let decision = sample(MemoryAvailable, DiskLayout::default(), pods, seen);
    order(&decision).into_iter().map(str::to_owned).collect()
}

fn owned(pod: Pod) -> Pod {
    Pod { owner: Some(Owner { kind: "Job".into(), name: "j".into(), uid: "j".into() }), ..pod }
}

fn prioritised(uid: &str, memory: &str, priority: i32) -> Pod {
    owned(Pod { priority: Some(priority), ..pod(uid, memory) })
}

#[test]
fn unknown_usage_ranks_after_exceeding_pods_and_last_in_its_priority() {
    let pods = vec![
        prioritised("unseen, asks for more", "200", 0),
        prioritised("unseen, asks for nothing", "0", 0),
        prioritised("unseen, low", "900", -1),
        prioritised("exceeds, high", "10", 99),
        prioritised("within", "500", 0),
        prioritised("within, high", "500", 1),
    ];
    let usage = [("exceeds, high", 11), ("within", 1), ("within, high", 1)];
    assert_eq!(
        by_memory(pods, &usage),
        [
            "exceeds, high",
            "unseen, low",
            "within",
            "unseen, asks for nothing",
            "unseen, asks for more",
            "within, high",
        ]
    );
}

#[test]
fn absent_and_absurd_values_count_as_unknown_usage() {
    let pods = ["absent", "absurd", "zero"].map(|uid| owned(pod(uid, "10"))).into();
    let mut snapshot = Snapshot::of_node(node(50, 900, at(1)));
    snapshot.add_pod("absent", PodStatValues { has_memory: true, ..PodStatValues::default() });
    for (uid, used) in [("absurd", u64::MAX), ("zero", 0)] {
        snapshot.add_pod(uid, memory_of(uid, used).1);
    }
    let decision = sample(MemoryAvailable, DiskLayout::default(), pods, Arc::new(snapshot));
    assert_eq!(order(&decision), ["zero", "absent", "absurd"]);
}

#[test]
fn unknown_process_count_ranks_last_in_its_priority() {
    let processes = |count| PodStatValues { process_count: Some(count), ..PodStatValues::default() };
    let processes_of_node = crate::snapshot::ProcessStats {
        max: Some(100),
        running: Some(99),
        ..crate::snapshot::ProcessStats::default()
    };
    let mut snapshot = Snapshot::of_node(crate::snapshot::NodeStats {
        processes: crate::reading::Reading::Known(processes_of_node),
        ..node(50, 900, at(1))
    });
    snapshot.add_pod("few", processes(1));
    snapshot.add_pod("many", processes(50));
    let pods = vec![prioritised("unseen", "1", 0), prioritised("few", "1", 0), prioritised("many", "1", 0)];
    let decision = sample(PidAvailable, DiskLayout::default(), pods, Arc::new(snapshot));
    assert_eq!(order(&decision), ["many", "few", "unseen"]);
}

#[test]
fn pods_without_controller_rank_last_in_their_class_then_hints_count() {
    let hinted = |uid: &str, hint: &str| {
        let annotations = [(PRIORITY_HINT.into(), hint.into())].into_iter().collect();
        owned(Pod { annotations, ..pod(uid, "10") })
    };
    let mut important = hinted("important, please me", "-100");
    important.priority = Some(1);
    let pods = vec![
        pod("bare", "10"),
        hinted("not me", "1"),
        hinted("me", "-1"),
        owned(pod("whoever", "10")),
        important,
        pod("bare, but within", "900"),
        owned(pod("within", "900")),
    ];
    let uids: Vec<_> = pods.iter().map(|pod| pod.uid.clone()).collect();
    let usage: Vec<_> = uids.iter().map(|uid| (&**uid, 200)).collect();
    assert_eq!(
        by_memory(pods, &usage),
        ["me", "whoever", "not me", "bare", "important, please me", "within", "bare, but within"]
    );
}

fn storage(uid: &str, bytes: &str) -> Pod {
    owned(Pod {
        containers: vec![container("c", requests(&[("ephemeral-storage", bytes)]))],
        ..pod(uid, "0")
    })
}

fn disk(pods: &[(&str, ContainerStatValues)]) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::of_node(node(900, 5, at(1)));
    for (uid, values) in pods {
        snapshot.add_pod(uid, PodStatValues::default()).add_container("c", *values);
    }
    Arc::new(snapshot)
}

fn layers(bytes: u64, inodes: u64) -> ContainerStatValues {
    ContainerStatValues {
        rootfs_used: Some(bytes),
        rootfs_inodes: Some(inodes),
        logs_used: Some(0),
        logs_inodes: Some(0),
        ..ContainerStatValues::default()
    }
}

#[test]
fn inode_ranking_ignores_requested_bytes() {
    let pods = vec![storage("hog", "100Gi"), storage("modest", "0")];
    let seen = disk(&[("hog", layers(1, 40_000)), ("modest", layers(1, 10))]);
    let decision = sample(NodeFsInodesFree, DiskLayout::default(), pods, seen);
    assert_eq!(order(&decision), ["hog", "modest"]);
    let excess = |candidate: &Candidate| candidate.excess.units_rounded_up();
    let ranked = &decision.evaluation().unwrap().ranked;
    assert_eq!(ranked.iter().map(excess).collect::<Vec<_>>(), [40_000, 10]);
}

#[test]
fn file_system_with_only_images_evicts_no_pod() {
    let layout = DiskLayout { dedicated_image_fs: true, split_image_fs: true };
    let seen = disk(&[("a", layers(900, 900))]);
    let decision = sample(ImageFsAvailable, layout, vec![storage("a", "1"), storage("unseen", "1")], seen);
    let evaluation = decision.evaluation().unwrap();
    assert_eq!(evaluation.end, EvaluationEnd::OnlyProtected);
    assert!(victims(&decision).is_empty());
    let why: Vec<_> = evaluation.refused_pods.iter().map(|refused| refused.why).collect();
    assert_eq!(why, [Refusal::FreesNothing; 2]);
}

#[test]
fn only_pods_that_certainly_free_nothing_are_not_evicted() {
    let nothing = layers(0, 0);
    let is_evicted = |pod: Pod, values: Option<ContainerStatValues>| {
        let seen: Vec<_> = values.into_iter().map(|values| ("a", values)).collect();
        let decision = sample(NodeFsAvailable, DiskLayout::default(), vec![pod], disk(&seen));
        !victims(&decision).is_empty()
    };
    assert!(!is_evicted(storage("a", "0"), Some(nothing)));
    assert!(is_evicted(storage("a", "0"), Some(layers(1, 0))));
    let half = ContainerStatValues { logs_used: None, ..nothing };
    assert!(is_evicted(storage("a", "0"), Some(half)), "its logs may be large");
    assert!(is_evicted(storage("a", "0"), None), "nothing is known");
    let dir = EmptyDir { medium: "".into(), size_limit: None };
    let scratch = Volume { name: "scratch".into(), empty_dir: Some(dir), ..Volume::default() };
    let with_volume = Pod { volumes: vec![scratch.clone()], ..storage("a", "0") };
    assert!(is_evicted(with_volume.clone(), Some(nothing)), "its volume was not measured");

    let mut snapshot = Snapshot::of_node(node(900, 5, at(1)));
    let empty = FsUsage { used: Some(0), inodes: Some(0) };
    snapshot.add_pod("a", PodStatValues::default()).add_container("c", nothing).add_volume("scratch", empty);
    let seen = Arc::new(snapshot);
    let decision = sample(NodeFsAvailable, DiskLayout::default(), vec![with_volume], seen);
    assert!(victims(&decision).is_empty(), "it was");
}

#[test]
fn pod_level_request_replaces_container_requests_per_resource() {
    let level = |resources: &[(&str, &str)]| {
        let mut pod = pod("a", "100Mi");
        pod.overhead = list(&[("memory", "1Mi")]);
        pod.resources = Some(requests(resources));
        let policy = enhanced(MemoryAvailable);
        set_by(&policy, vec![pod]).get(0).unwrap().request(crate::signal::Resource::Memory).to_string()
    };
    assert_eq!(level(&[("cpu", "1")]), "101Mi");
    assert_eq!(level(&[("cpu", "1"), ("memory", "1Gi")]), "1025Mi");
    assert_eq!(level(&[]), "101Mi");
}

/// Returns any pod, with or without an owner and with any hint.
fn any_protected_pod() -> impl Strategy<Value = Pod> {
    (any_pod(), any::<bool>(), prop::option::of(-101..102i32)).prop_map(|(mut pod, is_owned, hint)| {
        if let Some(hint) = hint {
            pod.annotations.insert(PRIORITY_HINT, hint.to_string().into());
        }
        if is_owned { owned(pod) } else { pod }
    })
}

proptest! {
    /// As in the kubelet's profile: the order of every pair is that of the list.
    #[test]
    fn the_order_is_strict_and_total(
        measure in measures(),
        pods in prop::collection::vec(any_protected_pod(), 0..12),
        sample in any_snapshot(),
    ) {
        let pods = set_by(&enhanced(MemoryAvailable), pods);
        let (sample, mut ranked) = (sample.indexed(&pods), Vec::new());
        super::rank(measure, &pods, &sample, &mut ranked);
        prop_assert_eq!(ranked.len(), pods.len());
        for (i, a) in ranked.iter().enumerate() {
            for b in &ranked[i + 1..] {
                prop_assert_eq!(a.key().cmp(&b.key()), Ordering::Less);
                prop_assert_eq!(b.key().cmp(&a.key()), Ordering::Greater);
                let unknown = |one: &Candidate| one.class == super::OverRequestClass::Unknown;
                let alike = (a.order, a.priority) == (b.order, b.priority);
                prop_assert!(!(alike && unknown(a) && !unknown(b)), "unknown before known");
            }
        }
    }
}
