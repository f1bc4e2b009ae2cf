//! The Node object: its name, how it is read, and whether it is this machine.

use std::fmt;
use std::time::Duration;

use eviction_core::error::chain;
use eviction_core::node::{Condition, ContainerImage, Node, Taint};
use k8s_openapi::api::core::v1::{self as api, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::OperationError;
use crate::request::{Request, status_message};

/// The maximum wait after a boot until the kubelet has updated the boot id in the node's object.
const BOOT_ID_TIMEOUT: Duration = Duration::from_secs(20);
const READ_EVERY: Duration = Duration::from_secs(2);

/// `validation.DNS1123SubdomainMaxLength` of apimachinery.
const LONGEST_NAME: usize = 253;

/// The name of a Node: a DNS subdomain, which can be used in a path without escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName(Box<str>);

impl NodeName {
    /// Checks the name of a node.
    ///
    /// # Errors
    /// If the name is missing or not a valid node name.
    pub fn parse(name: Option<&str>) -> Result<Self, OperationError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(OperationError::usage(
                "find this node's object: neither --node-name nor NODE_NAME is given",
            )
            .help("in a pod, set NODE_NAME from the field spec.nodeName"));
        };
        if is_dns_subdomain(name) {
            Ok(Self(name.into()))
        } else {
            Err(OperationError::new(format!("find this node's object: `{name:.300}` is no name of a node")))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_dns_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

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

/// Reads the node's object. It must exist and must not belong to another machine. If it has another boot id,
/// it is read again until the kubelet must have updated it.
pub(crate) async fn identify(
    client: &Client,
    name: &NodeName,
    boot_id: Option<&str>,
) -> Result<(), OperationError> {
    let until = Instant::now() + BOOT_ID_TIMEOUT;
    loop {
        let other = read_boot_id(client, name).await?;
        let Some(own) = boot_id.filter(|own| !other.is_empty() && **own != *other) else { return Ok(()) };
        if Instant::now() >= until {
            return Err(OperationError::new(format!(
                "find this node's object: {name} is another machine, booted as {other}, this one as {own}"
            ))
            .help("give the name under which the kubelet of this machine is registered"));
        }
        sleep(READ_EVERY).await;
    }
}

async fn read_boot_id(client: &Client, name: &NodeName) -> Result<Box<str>, OperationError> {
    let (server, origin) = (client.access().server(), client.access().origin());
    let response = match client.request(Request::get(format!("/api/v1/nodes/{name}"))).await {
        Ok(response) => response,
        Err(error) if error.is_misconfiguration() => {
            return Err(OperationError::because(format!("ask the API server {server}"), &error));
        }
        Err(error) => return Err(OperationError::unavailable(format!("{server}: {}", chain(&error)))),
    };
    let why = || status_message(&response);
    Err(match response.status().as_u16() {
        200 => match parse_node(response.body()) {
            Ok(node) => return Ok(node.boot_id),
            Err(why) => OperationError::new(format!("read node {name}: {why}")),
        },
        401 => OperationError::new(format!(
            "authenticate at the API server {server}: it rejects the credentials from {origin}"
        )),
        403 => OperationError::new(format!("read node {name}: a permission is missing: {}", why()))
            .help("the agent has to get, list and watch its own node and the pods of its node"),
        404 => OperationError::new(format!("read node {name}: there is no such node"))
            .help("in a pod, set NODE_NAME from the field spec.nodeName"),
        status => OperationError::unavailable(format!("the API server answers {status}: {}", why())),
    })
}

/// The maximum size of a list in bytes. The server may return all of it despite the limit.
const LARGEST_LIST: usize = 256 << 20;

/// Sends the requests that an agent sends at its start. Returns all problems that would keep it from starting
/// or from reading its pods.
///
/// # Errors
/// If the node's object cannot be read. It keeps the agent from starting unless the server is unavailable: the
/// agent waits for it.
pub async fn check_access(
    client: &Client,
    name: &NodeName,
    boot_id: Option<&str>,
) -> Result<Vec<OperationError>, OperationError> {
    identify(client, name, boot_id).await?;
    let mut problems = Vec::new();
    for (resource, selector) in [("pods", "spec.nodeName"), ("nodes", "metadata.name")] {
        // The watch ends after one second.
        for (verb, query) in [("list", "limit=1"), ("watch", "watch=true&timeoutSeconds=1")] {
            let selector = format!("fieldSelector={selector}%3D{name}");
            let path = format!("/api/v1/{resource}?{selector}&{query}&resourceVersion=0");
            let request = Request { largest: LARGEST_LIST, ..Request::get(path) };
            problems.extend(client.read_body(&format!("{verb} {resource}"), request, None).await.err());
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn node_name_must_be_a_dns_name() {
        let long = "a".repeat(254);
        for name in ["n1", "ip-10-0-0-1.eu.compute.internal", "0"] {
            assert_eq!(NodeName::parse(Some(name)).unwrap().to_string(), name);
        }
        for name in ["N1", "a_b", "-a", "a-", "a..b", ".", "a/b", "a b", "ü", "a?b", &long] {
            let error = NodeName::parse(Some(name)).unwrap_err();
            assert!(error.to_string().starts_with("find this node's object: `"), "{error}");
            assert!(!error.is_usage());
        }
        for name in [None, Some("")] {
            let error = NodeName::parse(name).unwrap_err();
            assert!(error.to_string().contains("neither --node-name nor NODE_NAME is given"), "{error}");
            assert!(error.is_usage());
        }
    }

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
