//! Waits until the pods of a DaemonSet are ready.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::OperationError;
use crate::request::{Request, push_segment};

const READ_EVERY: Duration = Duration::from_secs(1);

/// The maximum number of pods that an error lists.
const MAX_LISTED_PODS: usize = 20;

/// A DaemonSet as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetName {
    namespace: String,
    name: String,
}

impl FromStr for DaemonSetName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("must be NAMESPACE/NAME"),
        }
    }
}

impl fmt::Display for DaemonSetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Waits until the pods of a DaemonSet are ready, for at most `within`. Returns their number.
///
/// # Errors
/// If pods are not ready, with their nodes and the causes, or if the DaemonSet cannot be read.
pub async fn wait_ready(
    client: &Client,
    daemon_set: &DaemonSetName,
    within: Duration,
) -> Result<u64, OperationError> {
    let until = Instant::now() + within;
    loop {
        let found = read_daemon_set(client, daemon_set).await;
        if let Ok((_, Progress { is_current: true, ready, desired })) = found
            && ready >= desired
        {
            return Ok(ready);
        }
        if Instant::now() >= until {
            let (found, progress) = found?;
            return Err(not_ready(client, daemon_set, &found, &progress).await);
        }
        sleep(READ_EVERY).await;
    }
}

/// The pods of a DaemonSet.
struct Progress {
    /// Whether the numbers are of the present generation.
    is_current: bool,
    ready: u64,
    desired: u64,
}

async fn read_daemon_set(
    client: &Client,
    daemon_set: &DaemonSetName,
) -> Result<(Value, Progress), OperationError> {
    let found = read(client, daemon_set, "daemonsets", "").await?;
    let number = |pointer| match found.pointer(pointer) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_u64().ok_or_else(|| {
            OperationError::new(format!("DaemonSet {daemon_set}: {pointer} must be a number, got {value}"))
        }),
    };
    let progress = Progress {
        is_current: number("/metadata/generation")? <= number("/status/observedGeneration")?,
        ready: number("/status/numberReady")?,
        desired: number("/status/desiredNumberScheduled")?,
    };
    Ok((found, progress))
}

async fn not_ready(
    client: &Client,
    daemon_set: &DaemonSetName,
    found: &Value,
    Progress { ready, desired, .. }: &Progress,
) -> OperationError {
    let mut text = format!("DaemonSet {daemon_set}: {ready} of {desired} pods are ready");
    let labels = found.pointer("/spec/selector/matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels: Vec<_> =
        labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    match read(client, daemon_set, "pods", &labels.join(",")).await {
        Ok(pods) => {
            let mut problems: Vec<_> = items(&pods, "/items").filter_map(problem).collect();
            problems.sort();
            // Writing to a string cannot fail.
            for problem in problems.iter().take(MAX_LISTED_PODS) {
                let _ = write!(text, "; {problem}");
            }
            if problems.len() > MAX_LISTED_PODS {
                let _ = write!(text, "; and {} more", problems.len() - MAX_LISTED_PODS);
            }
        }
        Err(error) => {
            let _ = write!(text, "; {error}");
        }
    }
    OperationError::new(text)
}

/// Reads the DaemonSet, or the pods of its namespace that have these labels.
async fn read(
    client: &Client,
    daemon_set: &DaemonSetName,
    resource: &str,
    labels: &str,
) -> Result<Value, OperationError> {
    let DaemonSetName { namespace, name } = daemon_set;
    let is_list = resource == "pods";
    let mut path = if is_list { "/api/v1".to_owned() } else { "/apis/apps/v1".to_owned() };
    path.push_str("/namespaces/");
    push_segment(namespace, &mut path);
    let _ = write!(path, "/{resource}{}", if is_list { "?labelSelector=" } else { "/" });
    push_segment(if is_list { labels } else { name }, &mut path);
    let operation = format!("read {resource} of DaemonSet {daemon_set}");
    let request = Request { largest: 32 << 20, ..Request::get(path) };
    let help = "it takes get of daemonsets and list of pods in that namespace";
    let body = client.read_body(&operation, request, Some(help)).await?;
    let object = serde_json::from_slice::<Map<_, _>>(&body).map(Value::Object);
    object.map_err(|error| OperationError::because(&operation, &error))
}

// The decoders of k8s-openapi for these objects would add 0.7 MiB to the agent, which keeps its code in memory.

/// Returns a text of an object if it is not empty.
fn text<'o>(object: &'o Value, pointer: &str) -> Option<&'o str> {
    object.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// Returns the items of a list of an object.
fn items<'o>(object: &'o Value, pointer: &str) -> impl Iterator<Item = &'o Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Returns why a pod is not ready, with its node; `None` if it is ready.
fn problem(pod: &Value) -> Option<String> {
    let is_true = |condition: &&Value| text(condition, "/status") == Some("True");
    let conditions = || items(pod, "/status/conditions");
    if conditions().any(|it| text(it, "/type") == Some("Ready") && is_true(&it)) {
        return None;
    }
    let containers =
        items(pod, "/status/initContainerStatuses").chain(items(pod, "/status/containerStatuses"));
    let of_container = containers.filter_map(failure).next();
    let of_condition = conditions().filter(|it| !is_true(it)).find_map(|it| text(it, "/message"));
    let why = of_container.or(of_condition).or(text(pod, "/status/phase")).unwrap_or_default();
    let why = why.trim().replace('\n', ", ");
    let node = text(pod, "/spec/nodeName").unwrap_or("(none yet)");
    Some(format!("node {node}: pod {}: {why}", text(pod, "/metadata/name").unwrap_or_default()))
}

/// Returns why a container has terminated or waits.
fn failure(status: &Value) -> Option<&str> {
    let terminated = ["/state/terminated", "/lastState/terminated"].into_iter();
    let of_terminated = terminated.filter_map(|pointer| {
        let state = status.pointer(pointer)?;
        let failed = state.pointer("/exitCode").and_then(Value::as_i64).is_some_and(|code| code != 0);
        let reason = || text(state, "/reason").filter(|_| failed);
        text(state, "/message").or_else(reason)
    });
    of_terminated.chain(text(status, "/state/waiting/message")).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::{json, serve};

    const PODS: &str = r#"{"items": [
        {"metadata": {"name": "a"}, "spec": {"nodeName": "n1"},
         "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"name": "b"}, "spec": {"nodeName": "n2"}, "status": {"phase": "Pending", "conditions": null,
         "initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
          "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "error: an agent runs\nhelp: x\n"}}}]}},
        {"metadata": {"name": "c"}, "spec": {}, "status": {"phase": "Pending",
         "conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient cpu"}]}},
        {"metadata": {"name": "d"}, "spec": {"nodeName": "n4"}, "status": {"phase": "Pending"}}
    ]}"#;

    async fn wait(
        daemon_set: &'static str,
        pods: &'static str,
    ) -> (Result<u64, OperationError>, Vec<String>) {
        let (access, seen) = serve(move |head| {
            let body = if head.contains("/pods") { pods } else { daemon_set };
            json(if body.is_empty() { 403 } else { 200 }, body)
        })
        .await;
        let client = Client::new(access).unwrap();
        let name = "space/set".parse().unwrap();
        let result = wait_ready(&client, &name, Duration::ZERO).await;
        let seen = seen.lock().unwrap().iter().map(|head| head.lines().next().unwrap().to_owned()).collect();
        (result, seen)
    }

    #[tokio::test]
    async fn daemon_set_is_ready_when_all_pods_are_ready() {
        let ready = r#"{"metadata": {"generation": 2},
            "status": {"observedGeneration": 2, "desiredNumberScheduled": 3, "numberReady": 3}}"#;
        let (result, seen) = wait(ready, PODS).await;
        assert_eq!(result.unwrap(), 3);
        assert_eq!(seen, ["GET /apis/apps/v1/namespaces/space/daemonsets/set HTTP/1.1"]);
    }

    #[tokio::test]
    async fn error_lists_each_unready_pod_with_node_and_cause() {
        let waiting = r#"{"metadata": {"generation": 1}, "spec": {"selector": {"matchLabels": {"a/b": "c", "d": "e"}}},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": 4, "numberReady": 1}}"#;
        let (result, seen) = wait(waiting, PODS).await;
        assert_eq!(
            result.unwrap_err().to_string(),
            "DaemonSet space/set: 1 of 4 pods are ready; node (none yet): pod c: Insufficient cpu; \
             node n2: pod b: error: an agent runs, help: x; node n4: pod d: Pending"
        );
        assert_eq!(seen[1], "GET /api/v1/namespaces/space/pods?labelSelector=a%2Fb%3Dc%2Cd%3De HTTP/1.1");
    }

    #[tokio::test]
    async fn a_status_of_an_earlier_generation_does_not_count() {
        let stale = r#"{"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}"#;
        let (result, _) = wait(stale, "").await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains("0 of 0 pods are ready; read pods of DaemonSet space/set: 403"), "{error}");
        let invalid = r#"{"status": {"desiredNumberScheduled": "3"}}"#;
        let error = wait(invalid, "").await.0.unwrap_err().to_string();
        assert!(error.ends_with("/status/desiredNumberScheduled must be a number, got \"3\""), "{error}");
        let error = wait("[]", "").await.0.unwrap_err().to_string();
        assert!(error.contains("read daemonsets of DaemonSet space/set: invalid type"), "{error}");
        let error = wait("", "").await.0.unwrap_err();
        assert!(error.advice().is_some_and(|help| help.contains("get of daemonsets")), "{error}");
    }

    #[test]
    fn daemon_set_name_needs_a_namespace_and_a_name() {
        assert_eq!("a/b".parse::<DaemonSetName>().unwrap().to_string(), "a/b");
        for wrong in ["", "a", "/b", "a/", "a/b/c"] {
            assert!(wrong.parse::<DaemonSetName>().is_err(), "{wrong}");
        }
    }
}
