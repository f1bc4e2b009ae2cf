use std::sync::Arc;

use super::{
    ContainerStatValues, NO_STATS, PodStatValues, PodStats, Snapshot, SnapshotBuilder, SnapshotPool,
    VolumeStatValues,
};
use crate::fixture::{pod, set};

fn used(bytes: u64) -> VolumeStatValues {
    VolumeStatValues { used: Some(bytes), inodes: None }
}

fn filled(mut builder: SnapshotBuilder) -> Snapshot {
    let values = PodStatValues { process_count: Some(u64::MAX), ..PodStatValues::default() };
    builder
        .pod("a", values)
        .volume("v", used(1))
        .container("c", ContainerStatValues { logs_inodes: Some(0), ..ContainerStatValues::default() });
    builder.pod("b", PodStatValues::default()).volume("w", used(2));
    builder.pod("a", PodStatValues::default());
    builder.finish()
}

#[test]
fn snapshot_returns_added_values_and_keeps_absent_ones_absent() {
    let snapshot = filled(SnapshotBuilder::new());
    let a = snapshot.pod(0).unwrap();
    assert_eq!((a.uid(), a.values().process_count), ("a", Some(u64::MAX)));
    assert_eq!(a.values().memory_working_set, None);
    let container = a.containers().next().unwrap();
    assert_eq!(container.name(), "c");
    assert_eq!(container.values().logs_inodes, Some(0));
    assert_eq!(container.values().rootfs_used, None);
    let b = snapshot.pod(1).unwrap();
    assert_eq!(b.containers().len(), 0);
    let volumes: Vec<_> = b.volumes().map(|v| (v.name(), v.values())).collect();
    assert_eq!(volumes, [("w", used(2))]);
    assert!(snapshot.pod(3).is_none());
}

#[test]
fn memory_stats_without_a_value_differ_from_missing_memory_stats() {
    let mut builder = SnapshotBuilder::new();
    let empty = PodStatValues { has_memory: true, ..PodStatValues::default() };
    builder.pod("a", empty);
    builder.pod("b", PodStatValues::default());
    let snapshot = builder.finish();
    let has_memory = |index| snapshot.pod(index).unwrap().values().has_memory;
    assert!(has_memory(0) && !has_memory(1));
}

#[test]
fn reused_snapshot_is_cleared_and_keeps_its_buffers() {
    let mut old = filled(SnapshotBuilder::new());
    old.index(&set(vec![pod("a", "1")]));
    let capacity = |snapshot: &Snapshot| {
        let Snapshot { text, pods, containers, volumes, .. } = snapshot;
        (text.as_ptr(), pods.as_ptr(), containers.as_ptr(), volumes.as_ptr())
    };
    let before = capacity(&old);
    let again = filled(SnapshotBuilder::reuse(old));
    assert_eq!(capacity(&again), before);
    assert_eq!(again.len(), 3);
}

#[test]
fn last_statistics_of_a_uid_count_for_every_pod_with_that_uid() {
    let pods = set(vec![pod("b", "1"), pod("a", "1"), pod("c", "1"), pod("a", "2")]);
    let snapshot = Arc::new(filled(SnapshotBuilder::new())).indexed(&pods);
    assert_eq!(snapshot.stats_index, [1, 2, NO_STATS, 2]);
    let stats = [0, 2, 4].map(|index| snapshot.stats_of(index).map(PodStats::uid));
    assert_eq!(stats, [Some("b"), None, None]);
    assert!(Arc::ptr_eq(&snapshot.indexed(&pods), &snapshot), "it was known");
    let others = set(vec![pod("b", "1")]);
    assert_eq!(snapshot.indexed(&others).stats_index, [1], "of other pods");
}

#[test]
fn pool_reuses_a_returned_snapshot_unless_it_is_still_shared() {
    let mut pool = SnapshotPool::default();
    let sample = |pool: &mut SnapshotPool| {
        let snapshot = filled(pool.begin());
        pool.share(snapshot)
    };
    let index = |snapshot: &Arc<Snapshot>| (Arc::as_ptr(snapshot), snapshot.pods.as_ptr());
    let first = sample(&mut pool);
    let before = index(&first);
    pool.recycle(first);
    let second = sample(&mut pool);
    assert_eq!(index(&second), before);
    let kept = Arc::clone(&second);
    pool.recycle(second);
    let third = sample(&mut pool);
    assert_ne!(index(&third), before);
    assert_eq!(kept.len(), 3);
}
