//! Removes the conditions and taints that the agent has set on nodes.

use std::time::Duration;

use eviction_core::node::Node;
use eviction_core::progress::{ApiOperation, ApiResult};
use kube::api::ObjectList;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::OperationError;
use crate::item::Item;
use crate::node::parse_node;
use crate::node_patch::{Patch, is_stale, read_request, removals, send_patch};
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
        names.extend(nodes.map(|identity| identity.name.into()));
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            return Ok(names);
        };
        // The server's token is URL-safe Base64.
        next = format!("&continue={token}");
    }
}

/// The agent's taints and conditions on a node, or those that were removed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Taints as `KEY:EFFECT`.
    pub taints: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<String>,
}

/// Returns the agent's conditions and taints on a node.
///
/// # Errors
/// As [`clean_node`].
pub async fn find_leftovers(client: &Client, name: &str) -> Result<Leftovers, OperationError> {
    let until = Instant::now() + NODE_TIMEOUT;
    retry(name, until, async || read(client, name).await.map(|node| Leftovers::of(&node))).await
}

/// Removes the agent's conditions and taints from a node. With `is_dry` the server removes none (dry run).
///
/// # Errors
/// If the node does not exist, or the API server cannot be reached, rejects a request, or does not respond for 30 s.
pub async fn clean_node(client: &Client, name: &str, is_dry: bool) -> Result<Leftovers, OperationError> {
    let until = Instant::now() + NODE_TIMEOUT;
    let mut removed = Leftovers::default();
    for _ in 0..=MAX_REPEATS {
        let clean = async || remove_leftovers(client, name, &mut removed, is_dry).await;
        let is_any = retry(name, until, clean).await?;
        if !is_any || is_dry {
            return Ok(removed);
        }
    }
    Err(error("clean", name, "something else writes the removed values again")
        .help("the agent still runs there: take its DaemonSet away first"))
}

/// The operation that failed, and its result.
type Failed = (&'static str, ApiResult);

/// Repeats an operation on a node until it succeeds or a retry cannot succeed, at most until this time.
async fn retry<T>(
    name: &str,
    until: Instant,
    mut operation: impl AsyncFnMut() -> Result<T, Failed>,
) -> Result<T, OperationError> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    loop {
        let (operation, result) = match operation().await {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        if !is_transient(&result) || Instant::now() >= until {
            return Err(failure(operation, name, &result));
        }
        sleep(backoff.pause()).await;
    }
}

async fn read(client: &Client, name: &str) -> Result<Node, Failed> {
    let (result, body) = client.call(ApiOperation::Node, read_request(name)).await;
    let node = match result {
        // The next response would be the same.
        ApiResult::Accepted => parse_node(&body.unwrap_or_default())
            .map_err(|why| ApiResult::Rejected { status: 200, why: why.into() }),
        result => Err(result),
    };
    node.map_err(|result| ("read", result))
}

/// Removes the agent's taints and conditions and adds them to `removed`. Returns false if there are none.
async fn remove_leftovers(
    client: &Client,
    name: &str,
    removed: &mut Leftovers,
    is_dry: bool,
) -> Result<bool, Failed> {
    let node = read(client, name).await?;
    let mut is_any = false;
    for patch in removals(&node).into_iter().filter(|patch| !patch.is_empty()) {
        let (operation, list) = match patch {
            Patch::Taints(_) => ("take the taints from", &mut removed.taints),
            Patch::Conditions { .. } => ("take the conditions from", &mut removed.conditions),
        };
        send_patch(client, &node, &patch, is_dry).await.map_err(|result| (operation, result))?;
        list.extend(patch.removed());
        is_any = true;
    }
    Ok(is_any)
}

impl Leftovers {
    /// Returns the agent's taints and conditions on a node.
    pub(crate) fn of(node: &Node) -> Self {
        let [taints, conditions] = removals(node).map(|patch| patch.removed());
        Self { taints, conditions }
    }
}

/// Whether a retry may succeed.
fn is_transient(result: &ApiResult) -> bool {
    is_stale(result) || matches!(result, ApiResult::Throttled { .. } | ApiResult::Unknown { .. })
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

    #[tokio::test]
    async fn an_undecodable_node_is_read_once() {
        let node = r#"{"kind": "Node", "metadata": {"name": "n1", "uid": "1"}, "spec": {"taints": 5}}"#;
        let (access, seen) = serve(move |_| json(200, node)).await;
        let client = Client::new(access).unwrap();
        for result in [clean_node(&client, "n1", false).await, find_leftovers(&client, "n1").await] {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with("read node n1: spec.taints: invalid type"), "{error}");
        }
        assert_eq!(seen.lock().unwrap().len(), 2);
    }
}
