//! The fields of `v1.Node` that the agent uses.

use eviction_core::node::{self as core, Condition, Taint};
use eviction_core::nullable::List;

use crate::objects::objects;

objects! {
    struct Node {
        metadata: Metadata,
        spec: Spec,
        status: Status,
    }

    struct Metadata {
        name: Box<str>,
        uid: Box<str>,
        resource_version: Box<str>,
    }

    struct Spec {
        taints: List<Taint>,
    }

    struct Status {
        conditions: List<Condition>,
        node_info: NodeInfo,
        images: List<ContainerImage>,
    }

    struct ContainerImage {
        names: List<Box<str>>,
        size_bytes: i64,
    }

    struct NodeInfo {
        #[serde(rename = "bootID")]
        boot_id: Box<str>,
    }
}

/// Reads a Node from JSON. It must have a name and a uid.
///
/// # Errors
/// If the object is invalid, with the first invalid field.
pub(crate) fn parse_node(json: &[u8]) -> Result<core::Node, String> {
    let node: Node = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(json))
        .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
    for (path, text) in [("metadata.name", &node.metadata.name), ("metadata.uid", &node.metadata.uid)] {
        if text.is_empty() {
            return Err(format!("{path}: is missing"));
        }
    }
    Ok(node.into())
}

impl From<Node> for core::Node {
    fn from(node: Node) -> Self {
        let Node { metadata, spec, status } = node;
        Self {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            taints: spec.taints.0,
            conditions: status.conditions.0,
            boot_id: status.node_info.boot_id,
            images: status.images.0.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<ContainerImage> for core::ContainerImage {
    fn from(ContainerImage { names: List(names), size_bytes }: ContainerImage) -> Self {
        Self { names, size_bytes: u64::try_from(size_bytes).unwrap_or_default() }
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
        let node = parse_node(least).unwrap();
        assert_eq!(node, Node { name: "n".into(), uid: "u".into(), ..Node::default() });
        let wrong = |json: &str| parse_node(json.as_bytes()).unwrap_err();
        assert_eq!(wrong(r#"{"metadata": {"name": "n"}}"#), "metadata.uid: is missing");
        assert!(
            wrong(r#"{"metadata": {"name": "n", "uid": "u"}, "spec": {"taints": 5}}"#)
                .starts_with("spec.taints: ")
        );
        assert!(parse_node(b"{").is_err());
    }
}
