//! Removes the conditions and taints that the agent has set on nodes.

use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::progress::ApiResult;
use kube::api::ObjectList;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::OperationError;
use crate::item::Item;
use crate::node_patch::{NodePatcher, NodeResponse, PatchKind};
use crate::request::Request;

/// The time limit for one node, in case others write continuously or the server stays unavailable.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a condition or taint is removed again if it is written again at once.
const MAX_REPEATS: u32 = 2;

/// The number of nodes that one request lists, and the maximum size of the response in bytes.
const PAGE: u32 = 50;
const LARGEST: usize = 32 << 20;

/// Lists the names of all nodes.
///
/// # Errors
/// If the API server rejects the request or does not respond.
pub async fn list_nodes(client: &Client) -> Result<Vec<String>, OperationError> {
    const OPERATION: &str = "list nodes";
    let mut names = Vec::new();
    let mut next = String::new();
    loop {
        let request = Request::get(format!("/api/v1/nodes?limit={PAGE}{next}"));
        let request = Request { largest: LARGEST, ..request };
        let body = client.read_body(OPERATION, request, Some("it takes list of nodes")).await?;
        let page: ObjectList<Item> =
            serde_json::from_slice(&body).map_err(|error| OperationError::because(OPERATION, &error))?;
        let nodes = page.items.into_iter().filter_map(|node| node.identity);
        names.extend(nodes.map(|identity| identity.key.name.into()));
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            return Ok(names);
        };
        // The server's token is URL-safe Base64.
        next = format!("&continue={token}");
    }
}

/// The taints and conditions that were removed from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clean {
    /// Taints as `KEY:EFFECT`.
    pub taints: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

/// Removes the agent's conditions and taints from a node; with `only_read` returns what it would remove.
///
/// # Errors
/// If the node does not exist, or the API server cannot be reached, rejects a request, or does not respond for 30 s.
pub async fn clean_node(patcher: &NodePatcher, name: &str, only_read: bool) -> Result<Clean, OperationError> {
    let until = Instant::now() + NODE_TIMEOUT;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let (mut removed, mut repeats) = (Clean::default(), 0);
    loop {
        let mut response = patcher.read(name).await;
        let mut operation = "read";
        if let Some(node) = response.node.take() {
            let node = node.map_err(|why| error("read", name, &why))?;
            if only_read {
                return Ok(Clean::of(&node));
            }
            match clean_once(patcher, &node, &mut removed).await {
                Ok(false) => return Ok(removed),
                // A dry run changes nothing.
                Ok(true) if patcher.is_dry => return Ok(removed),
                Ok(true) if repeats < MAX_REPEATS => {
                    repeats += 1;
                    continue;
                }
                Ok(true) => {
                    return Err(error("clean", name, "something else writes the removed values again")
                        .help("the agent still runs there: take its DaemonSet away first"));
                }
                Err(rejected) => (operation, response) = rejected,
            }
        }
        if !is_transient(&response) || Instant::now() >= until {
            return Err(failure(operation, name, &response.result));
        }
        sleep(backoff.pause()).await;
    }
}

/// Removes the agent's taints and conditions and adds them to `removed`. Returns false if there are none.
/// Fails with the response if the server did not accept a patch.
async fn clean_once(
    patcher: &NodePatcher,
    node: &Node,
    removed: &mut Clean,
) -> Result<bool, (&'static str, NodeResponse)> {
    let mut is_any = false;
    for kind in PatchKind::ALL {
        let patch = kind.removal(node);
        if patch.is_empty() {
            continue;
        }
        let response = patcher.send_patch(node, &patch).await;
        let (operation, list) = match kind {
            PatchKind::Taints => ("take the taints from", &mut removed.taints),
            PatchKind::Conditions => ("take the conditions from", &mut removed.conditions),
        };
        if response.result != ApiResult::Accepted {
            return Err((operation, response));
        }
        list.extend(patch.removed());
        is_any = true;
    }
    Ok(is_any)
}

impl Clean {
    /// Returns the agent's taints and conditions on a node.
    fn of(node: &Node) -> Self {
        let [taints, conditions] = PatchKind::ALL.map(|kind| kind.removal(node).removed());
        Self { taints, conditions }
    }
}

/// Returns the agent's taints and conditions on a node, in one list.
pub(crate) fn leftovers(node: &Node) -> Vec<String> {
    let Clean { taints, conditions } = Clean::of(node);
    taints.into_iter().chain(conditions).collect()
}

/// Whether a retry may succeed.
fn is_transient(response: &NodeResponse) -> bool {
    response.is_stale() || matches!(response.result, ApiResult::Throttled { .. } | ApiResult::Unknown { .. })
}

fn error(operation: &'static str, name: &str, why: &str) -> OperationError {
    OperationError::new(format!("{operation} node {name}: {why}"))
}

fn failure(operation: &'static str, name: &str, result: &ApiResult) -> OperationError {
    let failed = |why: &str| error(operation, name, why);
    match result {
        ApiResult::Terminated => failed("there is no such node"),
        ApiResult::Forbidden { why } => failed(&format!("a permission is missing: {why}"))
            .help("it takes get and patch of nodes, and patch of nodes/status"),
        ApiResult::Throttled { .. } => failed("the API server has too much to do"),
        result => failed(result.why().unwrap_or(result.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::{json, serve};

    #[tokio::test]
    async fn every_page_of_the_list_is_read() {
        let (access, seen) = serve(|head| {
            let body = match head.contains("continue=abc") {
                false => {
                    r#"{"metadata": {"continue": "abc"}, "items": [{"metadata": {"name": "n1", "uid": "1"}}]}"#
                }
                true => {
                    r#"{"metadata": {"continue": null}, "items": [{"metadata": {"name": "n2", "uid": "2"}}]}"#
                }
            };
            json(200, body)
        })
        .await;
        let client = Client::new(access).unwrap();
        assert_eq!(list_nodes(&client).await.unwrap(), ["n1", "n2"]);
        assert_eq!(seen.lock().unwrap().len(), 2);
    }
}
