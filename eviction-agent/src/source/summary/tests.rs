use proptest::prelude::*;

use super::Summary;
use eviction_core::disk_layout::Parts;
use eviction_core::fixture::policy;
use eviction_core::pods::KnownPod;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::snapshot::MemoryStats;
use eviction_node::fs::{StorageRequest, StorageSample};

const FULL: &str = r#"{
  "node": {
    "nodeName": "n",
    "systemContainers": [
      {"name": "kubelet", "memory": {"availableBytes": 1, "workingSetBytes": 1}},
      {"name": "pods", "memory": {"time": "2026-01-01T00:00:01Z", "availableBytes": 70, "workingSetBytes": 30}},
      {"name": "pods", "memory": {"availableBytes": 2, "workingSetBytes": 2}}
    ],
    "memory": {"time": "2026-01-01T00:00:00Z", "availableBytes": 18446744073709551615, "workingSetBytes": 0, "rssBytes": 5},
    "fs": {"time": "0001-01-01T00:00:00Z", "availableBytes": 10, "capacityBytes": 100, "usedBytes": 90, "inodesFree": 4, "inodes": 9},
    "runtime": {
      "imageFs": {"time": null, "availableBytes": 11, "capacityBytes": null},
      "containerFs": {"inodesFree": 3}
    },
    "rlimit": {"time": "2026-01-01T00:00:00.123456789+01:00", "maxpid": -5, "curproc": 7}
  },
  "pods": [
    {
      "podRef": {"name": "p", "namespace": "d", "uid": "u"},
      "memory": {"workingSetBytes": 12},
      "ephemeral-storage": {"usedBytes": 13},
      "process_stats": {"process_count": 14},
      "containers": [
        {"name": "c", "memory": {"workingSetBytes": 1}, "rootfs": {"usedBytes": 2, "inodesUsed": 3}, "logs": {"usedBytes": 4, "inodesUsed": 5}},
        {"name": "d"}
      ],
      "volume": [{"name": "v", "usedBytes": 6, "inodesUsed": 7, "pvcRef": {"name": "x"}}, {"name": "w"}]
    },
    {"podRef": {"uid": "u"}, "memory": {}},
    {"podRef": {"uid": "o"}}
  ]
}"#;

#[test]
fn all_used_fields_of_a_summary_are_read() {
    let snapshot = Summary::parse(FULL.as_bytes()).unwrap().snapshot();
    let pods: Vec<_> = snapshot
        .pods()
        .map(|pod| {
            let containers: Vec<_> = pod.containers().collect();
            let volumes: Vec<_> = pod.volumes().collect();
            (pod.uid(), pod.values(), containers, volumes)
        })
        .collect();
    insta::assert_debug_snapshot!((snapshot.node, pods));
}

#[test]
fn missing_values_are_not_read_as_zero() {
    let empty = Summary::parse(b"{}").unwrap().snapshot();
    assert_eq!(empty.node.memory, Reading::Unknown(UnknownReason::Absent));
    assert!(empty.is_empty());
    let nulls = r#"{"node": {"memory": null, "systemContainers": null, "fs": null, "runtime": null, "rlimit": null}, "pods": null}"#;
    for text in [nulls, r#"{"node": null, "pods": []}"#] {
        assert_eq!(Summary::parse(text.as_bytes()).unwrap().snapshot().node, empty.node);
    }
    let without_figures = Summary::parse(br#"{"node": {"memory": {}}, "pods": [null]}"#).unwrap();
    let snapshot = without_figures.snapshot();
    let nothing = MemoryStats::default();
    assert_eq!(snapshot.node.memory, Reading::Known(nothing));
    assert_eq!(snapshot.pod(0).map(|pod| pod.uid().to_owned()), Some(String::new()));
}

#[test]
fn snapshot_in_reused_memory_is_equal() {
    let summary = Summary::parse(FULL.as_bytes()).unwrap();
    let old = summary.snapshot();
    let mut again = old.clone();
    summary.snapshot_into(&mut again);
    assert_eq!(format!("{again:?}"), format!("{old:?}"));
}

#[test]
fn errors_name_the_field() {
    for (text, error) in [
        (
            r#"{"node": {"memory": {"availableBytes": -1}}}"#,
            "node.memory.availableBytes: invalid value: integer `-1`, expected u64 at line 1 column 41",
        ),
        (
            r#"{"node": {"memory": {"availableBytes": 18446744073709551616}}}"#,
            "node.memory.availableBytes: invalid type: floating point `1.8446744073709552e+19`, expected u64 at line 1 column 59",
        ),
        (
            r#"{"pods": [{}, {"containers": [{"name": 5}]}]}"#,
            "pods[1].containers[0].name: invalid type: integer `5`, expected a string at line 1 column 40",
        ),
        (r#"{"node": {"rlimit": {"time": "noon"}}}"#, "node.rlimit.time: "),
    ] {
        let found = Summary::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
}

/// Requests a static pod, which the kubelet identifies by the hash of its manifest, a pod that the Summary has, and
/// one that it does not have.
#[test]
fn pod_storage_returns_the_storage_of_requested_pods() {
    let known = |uid: &str, hash: Option<&str>| {
        let mut object = serde_json::json!({
            "metadata": {"namespace": "d", "name": uid, "uid": uid}, "spec": {"containers": [{"name": "c"}]},
        });
        if let Some(hash) = hash {
            object["metadata"]["annotations"] =
                serde_json::json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash});
        }
        let pod = eviction_kube::pods::pod_of(&object).unwrap();
        KnownPod::new(pod, &policy(Vec::new()))
    };
    let request = |uid: &str, hash: Option<&str>| StorageRequest::new(&known(uid, hash), Vec::new(), 0);
    let summary = Summary::parse(FULL.as_bytes()).unwrap();
    let StorageSample { pods, unmeasured, .. } =
        summary.pod_storage(&[request("static", Some("u")), request("o", None), request("new", None)]);
    assert_eq!(unmeasured, Parts::default());
    let storage = |uid: &str| pods[uid].ephemeral_storage();
    assert_eq!(pods["static"].container("c", &known("static", None)).rootfs_used, Some(2));
    assert_eq!((storage("static"), storage("o"), storage("new")), (None, Some(0), None), "d has no figures");
    let nothing = Summary::parse(b"{}").unwrap().pod_storage(&[request("u", None)]);
    assert_eq!((nothing.unmeasured, nothing.pods["u"].ephemeral_storage()), (Parts::ALL, None));
}

/// As in the kubelet's `ephemeral-storage` (`pkg/kubelet/stats/helper.go: calcEphemeralStorage`): a pod must not exceed
/// its limit by what it keeps on a persistent volume or in memory.
#[test]
fn only_volumes_on_the_disks_of_the_node_count_as_pod_storage() {
    let object = serde_json::json!({
        "metadata": {"namespace": "d", "name": "p", "uid": "p"},
        "spec": {
            "containers": [{"name": "c"}],
            "volumes": [
                {"name": "cache", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    });
    let known = KnownPod::new(eviction_kube::pods::pod_of(&object).unwrap(), &policy(Vec::new()));
    let text = r#"{"pods": [{
        "podRef": {"uid": "p"},
        "containers": [{"name": "c", "rootfs": {"usedBytes": 1}, "logs": {"usedBytes": 2}}],
        "volume": [
            {"name": "cache", "usedBytes": 4},
            {"name": "data", "usedBytes": 1099511627776, "pvcRef": {"name": "data"}},
            {"name": "memory", "usedBytes": 8},
            {"name": "kube-api-access", "usedBytes": 16}
        ]
    }]}"#;
    let request = StorageRequest::new(&known, Vec::new(), 0);
    let sample = Summary::parse(text.as_bytes()).unwrap().pod_storage(&[request]);
    assert_eq!(sample.pods["p"].ephemeral_storage(), Some(1 + 2 + 4));
    let volumes: Vec<_> =
        sample.pods["p"].volumes(&known).map(|(name, values)| (name, values.used)).collect();
    assert_eq!(volumes, [("cache", Some(4))]);
}

proptest! {
    #[test]
    fn damaged_summary_does_not_cause_a_panic(at in 0..FULL.len(), byte in any::<u8>(), end in 0..FULL.len()) {
        let mut bytes = FULL.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(summary) = Summary::parse(&bytes) {
            let _ = summary.snapshot();
        }
        let _ = Summary::parse(&bytes[..end]);
    }
}
