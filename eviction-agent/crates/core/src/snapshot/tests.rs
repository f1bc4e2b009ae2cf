use std::sync::Arc;

use super::{ContainerStatValues, FsUsage, NodeStats, PodStatValues, PodStats, Snapshot};
use crate::fixture::{pod, set};

fn used(bytes: u64) -> FsUsage {
    FsUsage { used: Some(bytes), inodes: None }
}

fn fill(snapshot: &mut Snapshot) {
    let values = PodStatValues { process_count: Some(u64::MAX), ..PodStatValues::default() };
    snapshot
        .add_pod("a", values)
        .add_volume("v", used(1))
        .add_container("c", ContainerStatValues { logs_inodes: Some(0), ..ContainerStatValues::default() });
    snapshot.add_pod("b", PodStatValues::default()).add_volume("w", used(2));
    snapshot.add_pod("a", PodStatValues::default());
}

fn filled() -> Snapshot {
    let mut snapshot = Snapshot::default();
    fill(&mut snapshot);
    snapshot
}

#[test]
fn snapshot_returns_added_values_and_keeps_absent_ones_absent() {
    let snapshot = filled();
    let a = snapshot.pod(0).unwrap();
    assert_eq!((a.uid(), a.values().process_count), ("a", Some(u64::MAX)));
    assert_eq!(a.values().memory_working_set, None);
    let (name, values) = a.containers().next().unwrap();
    assert_eq!(name, "c");
    assert_eq!(values.logs_inodes, Some(0));
    assert_eq!(values.rootfs_used, None);
    let b = snapshot.pod(1).unwrap();
    assert_eq!(b.containers().len(), 0);
    let volumes: Vec<_> = b.volumes().collect();
    assert_eq!(volumes, [("w", used(2))]);
    assert!(snapshot.pod(3).is_none());
}

#[test]
fn memory_stats_without_a_value_differ_from_missing_memory_stats() {
    let mut snapshot = Snapshot::default();
    let empty = PodStatValues { has_memory: true, ..PodStatValues::default() };
    snapshot.add_pod("a", empty);
    snapshot.add_pod("b", PodStatValues::default());
    let has_memory = |index| snapshot.pod(index).unwrap().values().has_memory;
    assert!(has_memory(0) && !has_memory(1));
}

#[test]
fn reused_snapshot_is_cleared_and_keeps_its_buffers() {
    let mut snapshot = filled();
    snapshot.index(&set(vec![pod("a", "1")]));
    let capacity = |snapshot: &Snapshot| {
        let Snapshot { text, pods, containers, volumes, .. } = snapshot;
        (text.as_ptr(), pods.as_ptr(), containers.as_ptr(), volumes.as_ptr())
    };
    let before = capacity(&snapshot);
    snapshot.reset(NodeStats::default());
    fill(&mut snapshot);
    assert_eq!(capacity(&snapshot), before);
    assert_eq!(snapshot.len(), 3);
}

#[test]
fn last_statistics_of_a_uid_count_for_every_pod_with_that_uid() {
    let pods = set(vec![pod("b", "1"), pod("a", "1"), pod("c", "1"), pod("a", "2")]);
    let snapshot = Arc::new(filled()).indexed(&pods);
    assert_eq!(snapshot.stats_index, [Some(1), Some(2), None, Some(2)]);
    let stats = [0, 2, 4].map(|index| snapshot.stats_of(index).map(PodStats::uid));
    assert_eq!(stats, [Some("b"), None, None]);
    assert!(Arc::ptr_eq(&snapshot.indexed(&pods), &snapshot), "it was known");
    let others = set(vec![pod("b", "1")]);
    assert_eq!(snapshot.indexed(&others).stats_index, [Some(1)], "of other pods");
}
