//! Tests of what is read of pods' storage, of limits, and of sums by file system.

use super::*;
use crate::cgroup::hierarchy::Host;
use crate::clock::mono_ns;
use crate::fs::FsPaths;
use crate::thread::Priority;
use eviction_core::fixture::{pod, policy};
use eviction_core::pod::{EmptyDir, Pod};
use eviction_core::units::Quantity;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn volume(name: &str, medium: &str, limit: Option<&str>) -> Volume {
    let size_limit = limit.map(|limit| Quantity::parse(limit).unwrap());
    Volume {
        name: name.into(),
        empty_dir: Some(EmptyDir { medium: medium.into(), size_limit }),
        ..Volume::default()
    }
}

fn known(volumes: Vec<Volume>) -> KnownPod {
    KnownPod::new(Pod { volumes, ..pod("uid-1", "10") }, &policy(Vec::new()))
}

fn paths(root: &Path) -> FsPaths {
    let [kubelet_root, pod_logs] = ["kubelet", "logs"].map(|name| Some(root.join(name)));
    FsPaths { kubelet_root, pod_logs, ..FsPaths::default() }
}

fn write(root: &Path, path: &str, bytes: u64) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![1; usize::try_from(bytes).unwrap()]).unwrap();
}

fn read(root: &Path, known: &KnownPod) -> (PodStorage, Parts) {
    let containers = vec![("app".into(), root.join("cgroup.procs"))];
    let request = StorageRequest::new(known, containers, 0);
    let sample = read_pod_storage(&Host::default(), &paths(root), &[request]);
    (sample.pods["uid-1"].clone(), sample.unmeasured)
}

const VOLUMES: &str = "kubelet/pods/uid-1/volumes/kubernetes.io~empty-dir";

#[test]
fn volumes_and_logs_are_read() {
    let root = tempfile::tempdir().unwrap();
    let known = known(vec![
        volume("cache", "", Some("1Mi")),
        volume("memory", "Memory", None),
        volume("none", "", None),
    ]);
    write(root.path(), &format!("{VOLUMES}/cache/file"), 3 * MIB);
    write(root.path(), &format!("{VOLUMES}/memory/file"), MIB);
    let Pod { namespace, name, .. } = &known.pod;
    write(root.path(), &format!("logs/{namespace}_{name}_uid-1/app/0.log"), 2 * MIB);
    let (found, unmeasured) = read(root.path(), &known);
    let volumes: Vec<_> = found
        .volumes(&known)
        .map(|(name, it)| (name.to_owned(), it.used.unwrap() / MIB, it.inodes))
        .collect();
    assert_eq!(volumes, [("cache".to_owned(), 3, Some(2)), ("none".to_owned(), 0, Some(0))]);
    let app = found.container("app", &known);
    assert_eq!((app.logs_used.unwrap() / MIB, app.logs_inodes, app.rootfs_used), (2, Some(2), None));
    assert_eq!(found.ephemeral_storage(), None, "the writable layer is not known");
    assert_eq!(unmeasured, Parts { rootfs: true, logs: false, volumes: false });
}

#[test]
fn missing_directories_leave_all_storage_unmeasured() {
    let root = tempfile::tempdir().unwrap();
    let (found, unmeasured) = read(root.path(), &known(vec![volume("cache", "", None)]));
    assert_eq!(unmeasured, Parts::ALL);
    assert_eq!((found.volumes.len(), found.ephemeral_storage()), (0, None));
}

/// Without `DAC_READ_SEARCH` the directories of pods are there, and none of them can be opened.
#[test]
fn unreadable_directories_leave_all_storage_unmeasured() {
    let root = tempfile::tempdir().unwrap();
    let known = known(vec![volume("cache", "", None)]);
    let Pod { namespace, name, .. } = &known.pod;
    write(root.path(), "kubelet/pods", 1);
    write(root.path(), &format!("logs/{namespace}_{name}_uid-1"), 1);
    let (found, unmeasured) = read(root.path(), &known);
    assert_eq!((found.volumes.len(), unmeasured), (0, Parts::ALL));
    let without_volumes = read(root.path(), &self::known(Vec::new())).1;
    assert!(!without_volumes.volumes, "there is nothing to read");
}

#[test]
fn a_lower_bound_never_exceeds_a_limit() {
    let known = known(vec![volume("cache", "", Some("1Mi"))]);
    let usage = |bytes, is_lower_bound| DiskUsage { bytes, inodes: 1, is_lower_bound, preallocated: 0 };
    let used = |usage| {
        let storage = PodStorage { volumes: vec![("cache".into(), usage)], ..PodStorage::default() };
        let used = storage.volumes(&known).next().unwrap().1.used;
        (used, storage.ephemeral_storage())
    };
    assert_eq!(used(usage(3 * MIB, false)), (Some(3 * MIB), Some(3 * MIB)));
    assert_eq!(used(usage(3 * MIB, true)), (None, None));
    assert_eq!(used(usage(MIB, true)), (Some(MIB), None));
}

#[test]
fn pod_headroom_is_to_the_nearest_limit_and_none_if_one_is_exceeded() {
    let volumes = vec![
        volume("cache", "", Some("4Mi")),
        volume("other", "", Some("9Mi")),
        volume("memory", "Memory", Some("1Mi")),
    ];
    let known = known(volumes);
    let usage =
        |mib, is_lower_bound| DiskUsage { bytes: mib * MIB, inodes: 1, is_lower_bound, preallocated: 0 };
    let headroom = |cache, other, has_unknown_volume| {
        let volumes = vec![("cache".into(), cache), ("other".into(), other)];
        let storage = PodStorage { volumes, has_unknown_volume, ..PodStorage::default() };
        storage.headroom(&known, false)
    };
    assert_eq!(PodStorage::default().headroom(&known, false), Some(4 * MIB + 1), "a new pod uses nothing");
    assert_eq!(headroom(usage(1, false), usage(2, false), true), Some(3 * MIB + 1));
    assert_eq!(headroom(usage(1, false), usage(8, false), true), Some(MIB + 1));
    assert_eq!(headroom(usage(4, false), usage(2, false), true), Some(1));
    assert_eq!(headroom(usage(5, false), usage(2, false), true), None);
    assert_eq!(headroom(usage(5, true), usage(2, false), true), Some(7 * MIB + 1));
    assert_eq!(
        PodStorage { has_unknown_volume: true, ..PodStorage::default() }.headroom(&known, false),
        None
    );
}

/// As in the kubelet's rule for containers (`eviction_manager.go: containerEphemeralStorageLimitEviction`).
#[test]
fn writable_layer_on_a_dedicated_imagefs_does_not_use_up_the_limit_of_its_container() {
    let mut known = known(Vec::new());
    known.limits.containers = vec![NamedLimit { index: 0, name: "app".into(), limit: i128::from(4 * MIB) }];
    let usage = |mib| Some(DiskUsage { bytes: mib * MIB, inodes: 1, ..DiskUsage::default() });
    let app = ContainerStorage { name: "app".into(), rootfs: usage(9), layer: None, logs: usage(1) };
    let storage = PodStorage::new(Vec::new(), vec![app]);
    assert_eq!(storage.headroom(&known, true), Some(3 * MIB + 1));
    assert_eq!(storage.headroom(&known, false), None, "it exceeds the limit");
}

#[test]
fn writable_layers_count_for_the_file_system_that_they_are_on() {
    let usage = |bytes| DiskUsage { bytes, ..DiskUsage::default() };
    let app =
        ContainerStorage { name: "app".into(), rootfs: Some(usage(4)), layer: None, logs: Some(usage(2)) };
    let storage = PodStorage::new(vec![("cache".into(), usage(1))], vec![app]);
    let bytes = |dedicated_image_fs, split_image_fs| {
        let layout = DiskLayout { dedicated_image_fs, split_image_fs };
        PodStorage::sum_by_file_system(std::iter::once(&storage), layout).map(|usage| usage.bytes)
    };
    assert_eq!(bytes(false, false), [7, 0], "one file system");
    assert_eq!(bytes(true, false), [3, 4]);
    assert_eq!(bytes(true, true), [7, 0], "imagefs has images only");
}

#[test]
fn inode_growth_is_added_once_and_shrinkage_is_spread_over_parts() {
    let parts = |growth, parts: [(bool, Option<u64>); 3]| {
        let mut growth = InodeGrowth { cgroup: 1, inodes: growth };
        parts.map(|(is_image_fs, inodes)| growth.add_to(is_image_fs, inodes))
    };
    let shared = |inodes| (false, Some(inodes));
    assert_eq!(parts([7, 7], [(false, None), shared(2), shared(3)]), [None, Some(9), Some(3)]);
    assert_eq!(parts([-4, -4], [shared(1), shared(2), shared(3)]), [Some(0), Some(0), Some(2)]);
    assert_eq!(parts([5, -2], [(true, Some(9)), shared(1), shared(0)]), [Some(7), Some(6), Some(0)]);
    assert_eq!(parts([-9, 0], [shared(1), shared(2), (true, Some(3))]), [Some(0), Some(0), Some(3)]);
}

#[test]
fn storage_thread_answers_a_request() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), &format!("{VOLUMES}/cache/file"), MIB);
    let (sender, mut samples) = tokio::sync::mpsc::channel(1);
    let reader = StorageReader::of_directories(Host::default(), paths(root.path()), sender).unwrap();
    assert!(reader.request(
        vec![StorageRequest::new(&known(vec![volume("cache", "", None)]), Vec::new(), 0)],
        Priority::Idle
    ));
    let sample = samples.blocking_recv().unwrap();
    assert!(sample.pods["uid-1"].ephemeral_storage().unwrap() >= MIB);
    assert!(sample.took_ns > 0 && sample.began_ns <= mono_ns());
}
