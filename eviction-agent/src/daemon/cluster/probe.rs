//! What `check` finds out about the cluster.

use std::time::Duration;

use super::identity::{self, Found, NodeName, message};
use super::watching::{ClusterOptions, connect, source};
use crate::api::{Client, Request};
use crate::daemon::error::{Failure, chain};
use crate::telemetry::event_log::Backend;

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

async fn listed(client: &Client, what: &str, path: &str) -> Result<(), Failure> {
    let operation = format!("list {what}");
    let request = Request::get(format!("{path}&limit=1&resourceVersion=0")).within(WITHIN);
    // All of them may come, whatever the limit.
    let request = Request { largest: 256 << 20, ..request };
    let answer = client.request(request).await.map_err(|error| Failure::because(&operation, &error))?;
    match answer.status {
        200 => Ok(()),
        status => Err(Failure::failed(format!("{operation}: {status}: {}", message(&answer.body)))),
    }
}

async fn watched(client: &Client, what: &str, path: &str) -> Result<(), Failure> {
    let operation = format!("watch {what}");
    let path = format!("{path}&watch=true&timeoutSeconds=1&resourceVersion=0");
    let stream = client.stream(path, WITHIN).await.map_err(|error| Failure::because(&operation, &error))?;
    match stream.status() {
        200 => Ok(()),
        status => {
            let said = match stream.rest(1 << 20).await {
                Ok(answer) => message(&answer.body),
                Err(error) => chain(&error),
            };
            Err(Failure::failed(format!("{operation}: {status}: {said}")))
        }
    }
}
