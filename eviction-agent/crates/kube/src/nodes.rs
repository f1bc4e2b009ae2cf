//! Reads `v1.Node`.

use eviction_core::node::{Condition, ContainerImage, Node, Taint};
use k8s_openapi::api::core::v1::{self as api, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Reads a Node from JSON. It must have a name and a uid.
///
/// # Errors
/// If the object is invalid, with the first invalid field.
pub(crate) fn parse_node(json: &[u8]) -> Result<Node, String> {
    let node: api::Node = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(json))
        .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
    let node = reduce(node);
    for (path, text) in [("metadata.name", &node.name), ("metadata.uid", &node.uid)] {
        if text.is_empty() {
            return Err(format!("{path}: is missing"));
        }
    }
    Ok(node)
}

/// Keeps the fields that the agent uses.
fn reduce(node: api::Node) -> Node {
    let ObjectMeta { name, uid, resource_version, .. } = node.metadata;
    let NodeSpec { taints, .. } = node.spec.unwrap_or_default();
    let NodeStatus { conditions, node_info, images, .. } = node.status.unwrap_or_default();
    let text = |text: Option<String>| text.unwrap_or_default().into_boxed_str();
    let taints = taints.into_iter().flatten().map(|taint| Taint {
        key: taint.key.into(),
        value: text(taint.value),
        effect: taint.effect.into(),
    });
    let conditions = conditions.into_iter().flatten().map(|condition| Condition {
        kind: condition.type_.into(),
        status: condition.status.into(),
        reason: text(condition.reason),
        message: text(condition.message),
        last_heartbeat_time: condition.last_heartbeat_time.map(|time| time.0),
        last_transition_time: condition.last_transition_time.map(|time| time.0),
    });
    let images = images.into_iter().flatten().map(|image| ContainerImage {
        names: image.names.into_iter().flatten().map(Into::into).collect(),
        size_bytes: image.size_bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default(),
    });
    Node {
        name: text(name),
        uid: text(uid),
        resource_version: text(resource_version),
        taints: taints.collect(),
        conditions: conditions.collect(),
        boot_id: node_info.unwrap_or_default().boot_id.into(),
        images: images.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse_node;
    use eviction_core::node::{Condition, ContainerImage, Node, Taint};

    #[test]
    fn all_used_node_fields_are_decoded() {
        let node = json!({
            "metadata": {"name": "n1", "uid": "u", "resourceVersion": "9", "managedFields": [{"x": 1}], "labels": {"a": "b"}},
            "spec": {"podCIDR": "10.0.0.0/24", "unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "R", "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": null}],
                "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                "nodeInfo": {"bootID": "b"},
                "images": [{"names": ["r/a@sha256:1", "r/a:1"], "sizeBytes": 7}, {"names": null, "sizeBytes": -1}]
            }
        });
        let expected = Node {
            name: "n1".into(),
            uid: "u".into(),
            resource_version: "9".into(),
            taints: vec![Taint { key: "k".into(), value: "".into(), effect: "NoSchedule".into() }],
            conditions: vec![Condition {
                kind: "Ready".into(),
                status: "True".into(),
                reason: "R".into(),
                message: "".into(),
                last_heartbeat_time: Some("2026-01-02T03:04:05Z".parse().unwrap()),
                last_transition_time: None,
            }],
            boot_id: "b".into(),
            images: vec![
                ContainerImage { names: vec!["r/a@sha256:1".into(), "r/a:1".into()], size_bytes: 7 },
                ContainerImage::default(),
            ],
        };
        assert_eq!(parse_node(node.to_string().as_bytes()), Ok(expected));
    }

    #[test]
    fn node_needs_only_a_name_and_a_uid() {
        let least =
            br#"{"metadata": {"name": "n", "uid": "u"}, "spec": null, "status": {"conditions": null}}"#;
        let expected = Node { name: "n".into(), uid: "u".into(), ..Node::default() };
        assert_eq!(parse_node(least), Ok(expected.clone()));
        let nulls = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": null, "creationTimestamp": null, "labels": null,
                "annotations": null, "ownerReferences": null, "managedFields": null,
            },
            "spec": {"taints": null, "podCIDRs": null, "configSource": null},
            "status": {
                "capacity": null, "conditions": null, "addresses": null, "daemonEndpoints": null,
                "nodeInfo": null, "images": null, "volumesInUse": null, "volumesAttached": null,
                "runtimeHandlers": null, "features": null, "config": null,
            },
        });
        assert_eq!(parse_node(nulls.to_string().as_bytes()), Ok(expected.clone()));
        let empty = json!({
            "metadata": {"name": "n", "uid": "u", "managedFields": [{}], "ownerReferences": [{}]},
            "spec": {"taints": [{"key": null}]},
            "status": {
                "addresses": [{}], "daemonEndpoints": {"kubeletEndpoint": {}}, "nodeInfo": {},
                "conditions": [{"lastHeartbeatTime": null}], "images": [{}], "volumesAttached": [{}],
                "runtimeHandlers": [{}], "capacity": {},
            },
        });
        let zeros = Node {
            taints: vec![Taint::default()],
            conditions: vec![Condition::default()],
            images: vec![ContainerImage::default()],
            ..expected
        };
        assert_eq!(parse_node(empty.to_string().as_bytes()), Ok(zeros));
        let wrong = |json: &str| parse_node(json.as_bytes()).unwrap_err();
        assert_eq!(wrong(r#"{"metadata": {"name": "n"}}"#), "metadata.uid: is missing");
        assert!(
            wrong(r#"{"metadata": {"name": "n", "uid": "u"}, "spec": {"taints": 5}}"#)
                .starts_with("spec.taints: ")
        );
        assert!(parse_node(b"{").is_err());
    }
}
