//! What `check` finds out about the cluster.

use std::time::Duration;

use crate::client::Client;
use crate::error::OperationError;
use crate::node_identity::{IdentifyError, NodeName, identify, message};
use crate::request::Request;

/// A guard against a server that does not respond.
const WITHIN: Duration = Duration::from_secs(10);

/// Bytes that a list may have: all of it, whatever the limit.
const LARGEST: usize = 256 << 20;

/// Sends what an agent sends at its start; returns everything that would keep it from starting or from
/// knowing its pods.
///
/// # Errors
/// Why the node's object is not known, and whether that keeps the agent from starting: it waits for a
/// server that does not respond.
pub async fn check_access(
    client: &Client,
    name: &NodeName,
    boot_id: Option<&str>,
) -> Result<Vec<OperationError>, (OperationError, bool)> {
    identify(client, name, boot_id).await.map_err(|error| match error {
        IdentifyError::Unavailable(why) => (OperationError::new(why), false),
        IdentifyError::Failed(error) => (error, true),
    })?;
    let mut problems = Vec::new();
    for (resource, selector) in [("pods", "spec.nodeName"), ("nodes", "metadata.name")] {
        // A watch of a second.
        for (verb, query) in [("list", "limit=1"), ("watch", "watch=true&timeoutSeconds=1")] {
            let selector = format!("fieldSelector={selector}%3D{name}");
            let path = format!("/api/v1/{resource}?{selector}&{query}&resourceVersion=0");
            problems.extend(request(client, format!("{verb} {resource}"), path).await.err());
        }
    }
    Ok(problems)
}

async fn request(client: &Client, operation: String, path: String) -> Result<(), OperationError> {
    let request = Request { largest: LARGEST, ..Request::get(path).within(WITHIN) };
    let response =
        client.request(request).await.map_err(|error| OperationError::because(&operation, &error))?;
    match response.status {
        200 => Ok(()),
        status => Err(OperationError::new(format!("{operation}: {status}: {}", message(&response)))),
    }
}
