//! The hand that writes into the node's own object: conditions and taints of the agent's.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use eviction_core::node::{Condition, Node};
use eviction_core::node_conditions::TaintChange;
use eviction_core::progress::{ApiOperation, ApiResult};

use crate::client::Client;
use crate::rbac::Rights;
use crate::request::{Request, to_json};
use crate::response::judge;

/// Merges lists of conditions by their type; a JSON merge patch would replace the list.
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// Changes the list of taints in its places: it is atomic for every other kind of patch.
const JSON_PATCH: &str = "application/json-patch+json";

/// Short, so that a write which hangs on a dead connection is soon made on another.
const WITHIN: Duration = Duration::from_secs(4);

/// Writes into a node's object. What it writes is of use once: nothing is repeated here.
#[derive(Debug)]
pub struct NodePatcher {
    client: Client,
    is_dry: bool,
    rights: Rights,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub struct NodeResponse {
    /// What the answer means.
    pub answered: ApiResult,
    /// The node as it is after that, in JSON; nothing if it was not told.
    pub node: Option<Bytes>,
}

impl NodeResponse {
    /// The node is not any more what the request was made for: it is to be looked at again.
    pub fn is_stale(&self) -> bool {
        matches!(self.answered, ApiResult::Rejected { status: 409 | 422, .. } | ApiResult::Another)
    }
}

impl NodePatcher {
    /// A hand that asks by this client; with `is_dry` the server checks everything and does nothing
    /// of it.
    pub fn new(client: Client, is_dry: bool) -> Self {
        Self { client, is_dry, rights: Rights::default() }
    }

    /// Whether the server changes nothing.
    pub(crate) fn is_dry(&self) -> bool {
        self.is_dry
    }

    /// Changes the taints of a node, if it still is what it was.
    pub async fn write_taints(&self, node: &Node, changes: &[TaintChange]) -> NodeResponse {
        let path = self.path(&node.name, "");
        self.ask(ApiOperation::Taints, Request::patch(path, JSON_PATCH, taint_patch(node, changes))).await
    }

    /// Writes these conditions, and takes away those of these types; all others stay.
    pub async fn write_conditions(&self, node: &Node, set: &[Condition], remove: &[&str]) -> NodeResponse {
        let path = self.path(&node.name, "/status");
        let patch = condition_patch(node, set, remove);
        self.ask(ApiOperation::NodeConditions, Request::patch(path, STRATEGIC_MERGE, patch)).await
    }

    /// Looks at a node.
    pub async fn look(&self, name: &str) -> NodeResponse {
        self.ask(ApiOperation::Node, Request::get(format!("/api/v1/nodes/{name}"))).await
    }

    async fn ask(&self, asked: ApiOperation, request: Request) -> NodeResponse {
        let result = self.client.request(request.within(WITHIN)).await;
        let answered = judge(asked, &result);
        self.rights.note(asked, &answered);
        let node = result.ok().filter(|_| answered == ApiResult::Accepted).map(|answer| answer.body);
        NodeResponse { answered, node }
    }

    /// A node's name is a DNS name, and stands in a path as it is.
    fn path(&self, name: &str, subresource: &str) -> String {
        let seconds = WITHIN.as_secs().saturating_add(1);
        let mut path = format!("/api/v1/nodes/{name}{subresource}?timeout={seconds}s");
        if self.is_dry {
            path.push_str("&dryRun=All");
        }
        path
    }
}

/// RFC 6902. All of it is done or nothing: the node must be the one that was looked at, in the state
/// in which it was, and what is changed must be where it was.
fn taint_patch(node: &Node, changes: &[TaintChange]) -> Vec<u8> {
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": node.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.resource_version}),
    ];
    let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
    let is_there = |index: usize, key: &str| json!({"op": "test", "path": format!("/spec/taints/{index}/key"), "value": key});
    let mut list_is_there = !node.taints.is_empty();
    for change in changes {
        match *change {
            TaintChange::Replace { index, key, effect } => operations.extend([
                is_there(index, key),
                json!({"op": "replace", "path": format!("/spec/taints/{index}"), "value": taint(key, effect.name())}),
            ]),
            TaintChange::Remove { index, key, effect: _ } => operations.extend([
                is_there(index, key),
                json!({"op": "remove", "path": format!("/spec/taints/{index}")}),
            ]),
            TaintChange::Add { key, effect } => {
                let taint = taint(key, effect.name());
                let (path, value) = match list_is_there {
                    true => ("/spec/taints/-", taint),
                    false => ("/spec/taints", json!([taint])),
                };
                operations.push(json!({"op": "add", "path": path, "value": value}));
                list_is_there = true;
            }
        }
    }
    to_json(&operations)
}

/// Of another node of that name the patch is refused.
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
    use eviction_core::node_conditions::Effect;
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
    fn taints_are_changed_where_they_are_and_only_in_that_state_of_that_node() {
        let (key, other) = ("eviction-agent.io/memory-pressure", "eviction-agent.io/pid-pressure");
        let changes = [
            TaintChange::Replace { index: 1, key, effect: Effect::NoSchedule },
            TaintChange::Remove { index: 3, key: other, effect: Effect::NoSchedule },
        ];
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "test", "path": "/spec/taints/1/key", "value": key},
            {"op": "replace", "path": "/spec/taints/1", "value": {"key": key, "effect": "NoSchedule"}},
            {"op": "test", "path": "/spec/taints/3/key", "value": other},
            {"op": "remove", "path": "/spec/taints/3"},
        ]);
        assert_eq!(parsed(&taint_patch(&node(4), &changes)), expected);
    }

    #[test]
    fn the_first_taint_brings_the_list_with_it() {
        let add = |key| TaintChange::Add { key, effect: Effect::PreferNoSchedule };
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
    fn conditions_are_merged_into_that_very_node() {
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
