use proptest::prelude::*;
use serde_json::json;

use super::{parse_pod, parse_pod_list};
use eviction_core::pod::{Owner, Pod};
use eviction_core::units::Quantity;

const FULL: &str = r#"{
  "apiVersion": "v1", "kind": "Pod",
  "metadata": {
    "name": "web-1", "namespace": "shop", "uid": "u-1", "generation": 3,
    "labels": {"app": "web", "empty": null},
    "annotations": {"kubernetes.io/config.mirror": null, "of/no-concern": "x"},
    "ownerReferences": [
      {"kind": "Service", "name": "s", "uid": "o-0"},
      {"kind": "ReplicaSet", "name": "web", "uid": "o-1", "controller": true}
    ]
  },
  "spec": {
    "priority": -5, "priorityClassName": "low", "terminationGracePeriodSeconds": 45,
    "nodeName": "ignored",
    "containers": [
      {"name": "app", "resources": {"requests": {"memory": "+5Mi", "cpu": 0.50}, "limits": {"ephemeral-storage": 1e3}}},
      {"name": "bare"}
    ],
    "initContainers": [{"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"memory": " 1.500M "}}}],
    "resources": {},
    "overhead": {"memory": "8Mi"},
    "volumes": [
      {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
      {"name": "b", "hostPath": {"path": "/"}},
      {"name": "c", "configMap": {"name": "x"}},
      {"name": "d", "gitRepo": {"repository": "r"}},
      {"name": "e", "secret": {"secretName": "s"}},
      {"name": "f", "emptyDir": {}}
    ],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]
  },
  "status": {
    "qosClass": "Burstable", "reason": "Evicted", "startTime": "2026-01-02T03:04:05Z",
    "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2, "lastTransitionTime": "2026-01-02T03:05:01Z"}],
    "containerStatuses": [
      {
        "name": "main", "containerID": "containerd://4f1c", "state": {"running": {"startedAt": "2026-01-02T03:05:00Z"}},
        "lastState": {"terminated": {
          "exitCode": 137, "signal": 9, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:04:59Z", "containerID": "containerd://3e0b"
        }}
      }, {"name": "late", "containerID": ""}
    ],
    "initContainerStatuses": [{"name": "setup", "containerID": "cri-o://77aa"}]
  }
}"#;

/// Each image name is listed once, whichever fields of the pod have it.
#[test]
fn images_of_a_pod_are_read_from_spec_and_status() {
    let status = |image: &str, id: &str| json!({"name": "x", "image": image, "imageID": id});
    let pod = json!({
        "metadata": {"name": "p", "uid": "u"},
        "spec": {
            "containers": [{"name": "a", "image": "nginx"}, {"name": "b", "image": null}],
            "initContainers": [{"name": "i", "image": "setup:1"}],
            "ephemeralContainers": [{"name": "e", "image": "debug:1"}],
            "volumes": [{"name": "v", "image": {"reference": "data:1"}}, {"name": "w", "image": {}}]
        },
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [status("docker.io/library/nginx:latest", "sha256:a"), status("", "")],
            "initContainerStatuses": [status("setup:1", "sha256:b")],
            "ephemeralContainerStatuses": [status("debug:1", "sha256:c")]
        }
    });
    let pod = parse_pod(pod.to_string().as_bytes()).unwrap();
    let mut images: Vec<_> = pod.images.iter().map(|name| &**name).collect();
    images.sort_unstable();
    let nginx = "docker.io/library/nginx:latest";
    let ids = ["sha256:a", "sha256:b", "sha256:c"];
    assert_eq!(images, [&["data:1", "debug:1", nginx, "nginx", "setup:1"][..], &ids].concat());
    assert!(pod.finished);
}

#[test]
fn all_used_fields_of_a_pod_are_read() {
    let pod = parse_pod(FULL.as_bytes()).unwrap();
    insta::assert_debug_snapshot!(pod);
}

#[test]
fn absent_and_null_fields_are_the_same() {
    let least = json!({"metadata": {"name": "p", "uid": "u"}});
    let nulls = json!({
        "metadata": {
            "name": "p", "uid": "u", "namespace": null, "generation": null, "labels": null,
            "annotations": null, "ownerReferences": null,
        },
        "spec": {
            "priority": null, "priorityClassName": null, "terminationGracePeriodSeconds": null,
            "containers": null, "initContainers": null, "resources": null, "overhead": null,
            "volumes": null, "tolerations": null,
        },
        "status": {
            "qosClass": null, "startTime": null, "conditions": null, "reason": null, "containerStatuses": [
                {"name": null, "containerID": null, "state": null, "lastState": {"terminated": null}},
            ],
        },
    });
    let expected = Pod { name: "p".into(), uid: "u".into(), ..Pod::default() };
    for pod in [least, nulls, json!({"metadata": {"name": "p", "uid": "u"}, "spec": null, "status": null})] {
        assert_eq!(parse_pod(pod.to_string().as_bytes()), Ok(expected.clone()));
    }
    let zeros = json!({
        "metadata": {"name": "p", "uid": "u", "ownerReferences": [null]},
        "spec": {
            "containers": [null, {"resources": {"requests": {"memory": null}}}],
            "volumes": [{"emptyDir": {"sizeLimit": null}, "hostPath": null}],
        },
    });
    let pod = parse_pod(zeros.to_string().as_bytes()).unwrap();
    assert_eq!(pod.owner, Some(Owner { kind: "".into(), name: "".into(), uid: "".into() }));
    assert_eq!(pod.containers[1].resources.requests.get("memory"), Some(&Quantity::ZERO));
    assert!(pod.volumes[0].empty_dir.as_ref().unwrap().size_limit.is_none());
    assert!(!pod.volumes[0].host_path);
}

#[test]
fn numbers_keep_their_digits() {
    for (json, written) in [
        ("1.500", "1.500"),
        ("1e3", "1e3"),
        ("5", "5"),
        ("1000", "1k"),
        ("-0", "0"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("0.30000000000000001", "300000001n"),
        (r#"" 5Mi ""#, "5Mi"),
        (r#""""#, "error"),
        (r#""\u0035Mi""#, "error"),
        ("true", "error"),
        ("{}", "error"),
    ] {
        let pod = format!(
            r#"{{"metadata": {{"name": "p", "uid": "u"}}, "spec": {{"overhead": {{"memory": {json}}}}}}}"#
        );
        let found = match parse_pod(pod.as_bytes()) {
            Ok(pod) => pod.overhead.get("memory").unwrap().to_string(),
            Err(error) => {
                assert!(error.starts_with("spec.overhead.memory: "), "{error}");
                "error".to_owned()
            }
        };
        assert_eq!(found, written, "{json}");
    }
}

fn list(items: &str) -> String {
    format!(r#"{{"apiVersion": "v1", "kind": "PodList", "items": [{items}]}}"#)
}

#[test]
fn json_and_yaml_are_read_the_same() {
    let json = list(FULL);
    let from_json = parse_pod_list(json.as_bytes()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let yaml = serde_yaml_ng::to_string(&value).unwrap();
    assert!(!yaml.starts_with('{'));
    assert_eq!(parse_pod_list(yaml.as_bytes()).unwrap(), from_json);
    let yaml = "apiVersion: v1\nkind: List\nitems:\n- metadata: {name: p, uid: u}\n  spec: {overhead: {memory: 1e9, cpu: 0.5}}\n";
    let pods = parse_pod_list(yaml.as_bytes()).unwrap();
    assert_eq!(pods[0].overhead.get("memory").unwrap().to_string(), "1G");
    assert_eq!(pods[0].overhead.get("cpu").unwrap().to_string(), "500m");
}

#[test]
fn errors_name_the_pod_and_the_field() {
    let pods = [
        r#"{"metadata": {"namespace": "a", "name": "quantity", "uid": "1"}, "spec": {"containers": [{}, {"resources": {"requests": {"memory": "12 Gi"}}}]}}"#,
        r#"{"metadata": {"namespace": "a", "name": "overflow", "uid": "2"}, "spec": {"priority": 3000000000}}"#,
        r#"{"metadata": {"namespace": "a", "name": "fraction", "uid": "3"}, "spec": {"terminationGracePeriodSeconds": 1.5}}"#,
        r#"{"metadata": {"namespace": "a", "name": "type", "uid": "4"}, "spec": {"containers": {}}}"#,
        r#"{"metadata": {"namespace": "a", "name": "time", "uid": "5"}, "status": {"startTime": "yesterday"}}"#,
        r#"{"metadata": {"namespace": "a", "name": "no-uid"}}"#,
        r#"{"metadata": {"namespace": "a", "uid": "6"}}"#,
        r#"{"metadata": {"namespace": "a", "name": "first", "uid": "7"}}"#,
        r#"{"metadata": {"namespace": "a", "name": "second", "uid": "7"}}"#,
        r#"{"metadata": {"namespace": "a", "name": "limit", "uid": "8"}, "spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1K"}}]}}"#,
        r#"{"metadata": {"namespace": "a", "name": "annotation", "uid": "9", "annotations": {"odd": 5}}}"#,
        r#""text""#,
    ];
    let json = list(&pods.join(","));
    let errors = parse_pod_list(json.as_bytes()).unwrap_err();
    insta::assert_snapshot!(errors);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let yaml = serde_yaml_ng::to_string(&value).unwrap();
    // The pod and the field of each error.
    let places = |errors: &str| -> Vec<_> {
        errors.lines().map(|error| error.split(": ").take(2).collect::<String>()).collect()
    };
    assert_eq!(places(&parse_pod_list(yaml.as_bytes()).unwrap_err()), places(&errors));
}

#[test]
fn text_that_is_not_a_pod_list_is_an_error() {
    for (text, cause) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "not JSON: EOF while parsing an object at line 1 column 1"),
        ("{}", "apiVersion: expected `v1`, found ``"),
        (r#"{"apiVersion": "v1", "kind": "Pod"}"#, "kind: expected `PodList`, found `Pod`"),
        ("apiVersion: v1\nkind: ConfigMap\n", "kind: expected `PodList`, found `ConfigMap`"),
    ] {
        assert_eq!(parse_pod_list(text.as_bytes()).unwrap_err(), cause, "{text}");
    }
    for text in ["a: b: c", "- 1", "text", "\u{0}", "%", "{\"items\": 5}"] {
        assert!(parse_pod_list(text.as_bytes()).is_err(), "{text}");
    }
    assert_eq!(parse_pod_list(list("").as_bytes()), Ok(Vec::new()));
}

#[test]
fn too_deep_nesting_is_an_error() {
    let deep = "[".repeat(100_000);
    assert!(parse_pod_list(list(&deep).as_bytes()).is_err());
    assert!(parse_pod_list(format!("a: {deep}").as_bytes()).is_err());
    assert!(parse_pod(deep.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_pod(&bytes);
        let _ = parse_pod_list(&bytes);
    }

    #[test]
    fn damaged_pod_list_does_not_cause_a_panic(at in 0..FULL.len(), byte in any::<u8>(), end in 0..FULL.len()) {
        let mut bytes = list(FULL).into_bytes();
        bytes[at] = byte;
        let _ = parse_pod_list(&bytes);
        bytes.truncate(end);
        let _ = parse_pod_list(&bytes);
    }
}
