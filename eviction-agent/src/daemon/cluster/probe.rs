//! What `check` finds out about the cluster.

use std::time::Duration;

use super::identity::{self, Found, NodeName, message};
use super::watching::{ClusterOptions, connect, source};
use crate::error::Failure;
use crate::telemetry::event_log::Backend;
use eviction_kube::{Client, Request};

/// A guard against a server that says nothing.
const WITHIN: Duration = Duration::from_secs(10);

/// Asks for what `run` asks for: the source of the pods, and everything that would keep `run` from
/// starting or from knowing them.
pub(crate) async fn probe(options: &ClusterOptions) -> (Backend, Vec<String>) {
    let nothing =
        |why: String| Backend { source: "pods".to_owned(), backend: "none".to_owned(), reason: why };
    let ClusterOptions { kubeconfig, node_name } = options;
    let named = NodeName::of(node_name.as_deref());
    let connected = named.and_then(|name| Ok((connect(kubeconfig.as_deref())?, name)));
    let (client, name) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            let causes = failure.into_causes();
            return (nothing(causes.join("; ")), causes);
        }
    };
    match identity::find_patiently(&client, &name).await {
        Ok(Found::Node(_)) => {}
        // `run` would wait for it.
        Ok(Found::Unreachable(why)) => return (nothing(why), Vec::new()),
        Err(failure) => {
            let causes = failure.into_causes();
            return (nothing(causes.join("; ")), causes);
        }
    }
    let pods = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}");
    let node = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{name}");
    let mut problems = Vec::new();
    for (what, path) in [("pods", &pods), ("nodes", &node)] {
        problems.extend(listed(&client, what, path).await.err());
        problems.extend(watched(&client, what, path).await.err());
    }
    (source(&client, &name), problems.into_iter().flat_map(Failure::into_causes).collect())
}

/// Bytes that what is listed may come to: all of it, whatever the limit.
const LARGEST: usize = 256 << 20;

async fn listed(client: &Client, what: &str, path: &str) -> Result<(), Failure> {
    ask(client, format!("list {what}"), format!("{path}&limit=1&resourceVersion=0")).await
}

/// Watches for a second.
async fn watched(client: &Client, what: &str, path: &str) -> Result<(), Failure> {
    let path = format!("{path}&watch=true&timeoutSeconds=1&resourceVersion=0");
    ask(client, format!("watch {what}"), path).await
}

async fn ask(client: &Client, operation: String, path: String) -> Result<(), Failure> {
    let request = Request { largest: LARGEST, ..Request::get(path).within(WITHIN) };
    let answer = client.request(request).await.map_err(|error| Failure::because(&operation, &error))?;
    match answer.status {
        200 => Ok(()),
        status => Err(Failure::failed(format!("{operation}: {status}: {}", message(&answer.body)))),
    }
}
