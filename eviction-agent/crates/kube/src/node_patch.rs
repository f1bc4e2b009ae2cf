//! Patches of the node's own object: the difference between the agent's actual and desired conditions and
//! taints, and the request that removes it.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::node::{Condition, Node};
use eviction_core::node_conditions::{self, Due, Pressure, TaintChange, condition_type, taints, wanted};
use eviction_core::policy::Threshold;
use eviction_core::policy::eviction_settings::NodeStatusSettings;
use eviction_core::progress::{ApiOperation, ApiResult};
use eviction_core::signal::NodeCondition;
use eviction_core::time::Timestamp;
use eviction_core::units::GoDuration;
use serde_json::{Value, json};

use crate::client::Client;
use crate::node::parse_node;
use crate::request::{Request, STRATEGIC_MERGE, to_json};

/// The content type of a patch that changes single elements of the list of taints. All other kinds of patches
/// replace the whole list.
const JSON_PATCH: &str = "application/json-patch+json";

/// The timeout of a patch. It is short, so that a patch on a broken connection is soon sent over another one.
const WITHIN: Duration = Duration::from_secs(4);

/// The desired state of the node's object.
#[derive(Clone, Debug)]
pub struct NodeStatusUpdate {
    /// The number of the update, starting at 1.
    pub number: u64,
    /// The pressure of each condition.
    pub pressures: [Pressure; NodeCondition::COUNT],
    /// The thresholds that the messages of conditions name.
    pub thresholds: Arc<[Threshold]>,
    /// How long a condition stays true after the pressure has ended.
    pub period: GoDuration,
    /// Which conditions and taints are written.
    pub settings: NodeStatusSettings,
}

impl NodeStatusUpdate {
    /// Returns whether only the number differs.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { number: _, pressures, thresholds, period, settings } = self;
        (pressures, period, settings) == (&other.pressures, &other.period, &other.settings)
            && Arc::ptr_eq(thresholds, &other.thresholds)
    }
}

/// A patch of the part of a node's object that the agent owns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Patch {
    /// Changes of the observed list of taints.
    Taints(Vec<TaintChange>),
    /// Conditions to write, and the types of conditions to remove. All others stay.
    Conditions { write: Vec<Condition>, remove: Vec<&'static str> },
}

/// Compares the taints of the observed node with the desired state, as [`condition_difference`] does.
pub(crate) fn taint_difference(
    desired: &NodeStatusUpdate,
    node: &Node,
    _now: Timestamp,
) -> (Patch, Due, Option<Timestamp>) {
    let wanted = NodeCondition::ALL.map(|it| wanted(&desired.pressures[it as usize], desired.settings));
    let patch = Patch::Taints(taints(node, &wanted));
    let due = patch.due();
    (patch, due, None)
}

/// Compares the conditions of the observed node with the desired state. Returns the patch, how urgent it is, and
/// when it must be written again even without a difference.
pub(crate) fn condition_difference(
    desired: &NodeStatusUpdate,
    node: &Node,
    now: Timestamp,
) -> (Patch, Due, Option<Timestamp>) {
    let NodeStatusUpdate { number: _, pressures, thresholds, period, settings } = desired;
    if !settings.conditions {
        let [_, patch] = removals(node);
        let due = patch.due();
        return (patch, due, None);
    }
    let node_conditions::DesiredConditions { all, due, heartbeat } =
        node_conditions::conditions(node, pressures, thresholds, *period, now);
    (Patch::Conditions { write: all.into(), remove: Vec::new() }, due, Some(heartbeat))
}

/// Returns the patches that remove everything the agent owns: taints, then conditions.
pub(crate) fn removals(node: &Node) -> [Patch; 2] {
    let exists = |kind: &&str| node.conditions.iter().any(|it| *it.kind == **kind);
    let remove = NodeCondition::ALL.map(condition_type).into_iter().filter(exists).collect();
    let taints = taints(node, &[None; NodeCondition::COUNT]);
    [Patch::Taints(taints), Patch::Conditions { write: Vec::new(), remove }]
}

impl Patch {
    /// Returns the operation of the request, whose name is that of the patch in metrics.
    pub(crate) fn operation(&self) -> ApiOperation {
        match self {
            Self::Taints(_) => ApiOperation::Taints,
            Self::Conditions { .. } => ApiOperation::NodeConditions,
        }
    }

    /// Returns how urgent a patch is whose changes are all of [`Due::Status`].
    fn due(&self) -> Due {
        if self.is_empty() { Due::Not } else { Due::Status }
    }

    /// Returns whether the patch changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Taints(changes) => changes.is_empty(),
            Self::Conditions { write, remove } => write.is_empty() && remove.is_empty(),
        }
    }

    /// Returns what the patch removes: taints as `KEY:EFFECT`, conditions by their type.
    pub(crate) fn removed(&self) -> Vec<String> {
        match self {
            Self::Taints(changes) => {
                let removed = changes.iter().filter_map(|change| match change {
                    TaintChange::Remove { key, effect, .. } => Some(format!("{key}:{}", effect.name())),
                    TaintChange::Add { .. } => None,
                });
                removed.collect()
            }
            Self::Conditions { remove, .. } => remove.iter().map(|&kind| kind.to_owned()).collect(),
        }
    }

    /// Logs changes of taints, because these keep pods away from the node.
    pub(crate) fn log(&self) {
        let Self::Taints(changes) = self else { return };
        let is_added = |removed: &str| {
            changes.iter().any(|change| matches!(change, TaintChange::Add { key, .. } if *key == removed))
        };
        for change in changes {
            match change {
                TaintChange::Add { key, effect } => {
                    tracing::info!(key, effect = effect.name(), "the node is tainted");
                }
                // Only the effect changes.
                TaintChange::Remove { key, .. } if is_added(key) => {}
                TaintChange::Remove { key, effect, .. } => {
                    tracing::info!(key, effect = effect.name(), "the node's taint is removed");
                }
            }
        }
    }
}

/// Sends a patch, once: it is only valid for this state of the node. The server rejects it if the node is another
/// object; for taints also if the node has changed. With `is_dry` the server changes nothing (dry run). Returns the
/// node after the patch, or the result if it is another than [`ApiResult::Accepted`].
pub(crate) async fn send_patch(
    client: &Client,
    node: &Node,
    patch: &Patch,
    is_dry: bool,
) -> Result<Node, ApiResult> {
    let (subresource, content_type, body) = match patch {
        Patch::Taints(changes) => ("", JSON_PATCH, taint_patch(node, changes)),
        Patch::Conditions { write, remove } => {
            ("/status", STRATEGIC_MERGE, condition_patch(node, write, remove))
        }
    };
    // A node's name is a DNS name, which needs no escapes in a path.
    let path = format!("/api/v1/nodes/{}{subresource}", node.name);
    let request = Request::patch(path, content_type, body).on_server(WITHIN, is_dry);
    send(client, patch.operation(), request).await
}

/// Reads a node. Returns the result if it is another than [`ApiResult::Accepted`].
pub(crate) async fn read_node(client: &Client, name: &str) -> Result<Node, ApiResult> {
    send(client, ApiOperation::Node, read_request(name)).await
}

/// Returns the request that reads a node.
pub(crate) fn read_request(name: &str) -> Request {
    Request::get(format!("/api/v1/nodes/{name}")).within(WITHIN)
}

async fn send(client: &Client, operation: ApiOperation, request: Request) -> Result<Node, ApiResult> {
    match client.call(operation, request).await {
        (ApiResult::Accepted, body) => {
            parse_node(&body.unwrap_or_default()).map_err(|why| ApiResult::Unknown { why: why.into() })
        }
        (result, _body) => Err(result),
    }
}

/// Returns whether the node has changed since the patch was made, so that it must be read again.
pub(crate) fn is_stale(result: &ApiResult) -> bool {
    matches!(result, ApiResult::Rejected { status: 409 | 422, .. } | ApiResult::Replaced)
}

/// Returns a JSON patch (RFC 6902), which is applied completely or not at all. The node must be the observed
/// one in the observed version, and the changed taints must be at their observed index.
fn taint_patch(node: &Node, changes: &[TaintChange]) -> Vec<u8> {
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": node.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.resource_version}),
    ];
    let test = |index: usize, key: &str| json!({"op": "test", "path": format!("/spec/taints/{index}/key"), "value": key});
    let mut list_exists = !node.taints.is_empty();
    for change in changes {
        match *change {
            TaintChange::Remove { index, key, effect: _ } => operations
                .extend([test(index, key), json!({"op": "remove", "path": format!("/spec/taints/{index}")})]),
            TaintChange::Add { key, effect } => {
                let taint = json!({"key": key, "effect": effect.name()});
                let (path, value) = match list_exists {
                    true => ("/spec/taints/-", taint),
                    false => ("/spec/taints", json!([taint])),
                };
                operations.push(json!({"op": "add", "path": path, "value": value}));
                list_exists = true;
            }
        }
    }
    to_json(&operations)
}

/// Returns the patch of conditions. With the uid, the server rejects it for another node with the same name.
fn condition_patch(node: &Node, set: &[Condition], remove: &[&str]) -> Vec<u8> {
    let set = set.iter().map(|condition| {
        let Condition { kind, status, reason, message, last_heartbeat_time, last_transition_time } =
            condition;
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": last_heartbeat_time,
            "lastTransitionTime": last_transition_time,
        })
    });
    let remove = remove.iter().map(|kind| json!({"type": kind, "$patch": "delete"}));
    let conditions: Vec<Value> = set.chain(remove).collect();
    to_json(&json!({"metadata": {"uid": node.uid}, "status": {"conditions": conditions}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eviction_core::node::Taint;
    use eviction_core::node_conditions::TaintEffect;
    use eviction_core::time::Timestamp;

    fn node(taints: usize) -> Node {
        Node {
            uid: "u".into(),
            resource_version: "7".into(),
            taints: vec![Taint::default(); taints],
            ..Node::default()
        }
    }

    fn parsed(patch: &[u8]) -> Value {
        serde_json::from_slice(patch).unwrap()
    }

    #[test]
    fn taint_patch_tests_uid_version_and_taint_keys() {
        let (key, other) = ("eviction-agent.io/memory-pressure", "eviction-agent.io/pid-pressure");
        let changes = [
            TaintChange::Remove { index: 3, key: other, effect: TaintEffect::NoSchedule },
            TaintChange::Remove { index: 1, key, effect: TaintEffect::PreferNoSchedule },
            TaintChange::Add { key, effect: TaintEffect::NoSchedule },
        ];
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "test", "path": "/spec/taints/3/key", "value": other},
            {"op": "remove", "path": "/spec/taints/3"},
            {"op": "test", "path": "/spec/taints/1/key", "value": key},
            {"op": "remove", "path": "/spec/taints/1"},
            {"op": "add", "path": "/spec/taints/-", "value": {"key": key, "effect": "NoSchedule"}},
        ]);
        assert_eq!(parsed(&taint_patch(&node(4), &changes)), expected);
    }

    #[test]
    fn first_taint_is_added_together_with_the_list() {
        let add = |key| TaintChange::Add { key, effect: TaintEffect::PreferNoSchedule };
        let changes = [add("a"), add("b")];
        let added = |taints| {
            let patch = parsed(&taint_patch(&node(taints), &changes));
            [&patch[2]["path"], &patch[2]["value"], &patch[3]["path"]].map(Value::to_string)
        };
        let taint = r#"{"effect":"PreferNoSchedule","key":"a"}"#;
        let list = format!("[{taint}]");
        assert_eq!(added(0), ["\"/spec/taints\"", &list, "\"/spec/taints/-\""]);
        assert_eq!(added(100), ["\"/spec/taints/-\"", taint, "\"/spec/taints/-\""]);
    }

    #[test]
    fn condition_patch_has_the_uid_and_set_and_removed_conditions() {
        let time: Timestamp = "2026-01-05T08:00:00Z".parse().unwrap();
        let condition = Condition {
            kind: "A".into(),
            status: "True".into(),
            reason: "R".into(),
            message: "M".into(),
            last_heartbeat_time: Some(time),
            last_transition_time: Some(time),
        };
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {"conditions": [
                {
                    "type": "A", "status": "True", "reason": "R", "message": "M",
                    "lastHeartbeatTime": "2026-01-05T08:00:00Z", "lastTransitionTime": "2026-01-05T08:00:00Z",
                },
                {"type": "B", "$patch": "delete"},
            ]},
        });
        assert_eq!(parsed(&condition_patch(&node(0), &[condition], &["B"])), expected);
    }
}
