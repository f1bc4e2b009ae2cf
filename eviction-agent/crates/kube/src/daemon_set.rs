//! Waits until the pods of a DaemonSet are ready.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::OperationError;
use crate::objects::objects;
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

objects! {
    struct DaemonSet {
        metadata: Metadata,
        spec: DaemonSetSpec,
        status: DaemonSetStatus,
    }

    struct Metadata {
        name: String,
        generation: u64,
    }

    struct DaemonSetSpec {
        selector: Selector,
    }

    struct Selector {
        match_labels: BTreeMap<String, String>,
    }

    struct DaemonSetStatus {
        observed_generation: u64,
        desired_number_scheduled: u64,
        number_ready: u64,
    }

    struct PodList {
        items: Vec<Pod>,
    }

    struct Pod {
        metadata: Metadata,
        spec: PodSpec,
        status: PodStatus,
    }

    struct PodSpec {
        node_name: String,
    }

    struct PodStatus {
        phase: String,
        conditions: Vec<Condition>,
        init_container_statuses: Vec<ContainerStatus>,
        container_statuses: Vec<ContainerStatus>,
    }

    struct Condition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        message: String,
    }

    struct ContainerStatus {
        state: ContainerState,
        last_state: ContainerState,
    }

    struct ContainerState {
        waiting: StateDetails,
        terminated: StateDetails,
    }

    /// Why a container waits or has terminated.
    struct StateDetails {
        reason: String,
        message: String,
        exit_code: i64,
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
        let found = read::<DaemonSet>(client, daemon_set, "daemonsets", "").await;
        if let Ok(found) = &found
            && found.metadata.generation <= found.status.observed_generation
            && found.status.number_ready >= found.status.desired_number_scheduled
        {
            return Ok(found.status.number_ready);
        }
        if Instant::now() >= until {
            return Err(not_ready(client, daemon_set, &found?).await);
        }
        sleep(READ_EVERY).await;
    }
}

async fn not_ready(client: &Client, daemon_set: &DaemonSetName, found: &DaemonSet) -> OperationError {
    let DaemonSetStatus { desired_number_scheduled, number_ready, .. } = found.status;
    let mut text =
        format!("DaemonSet {daemon_set}: {number_ready} of {desired_number_scheduled} pods are ready");
    let labels = found.spec.selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    match read::<PodList>(client, daemon_set, "pods", &labels.collect::<Vec<_>>().join(",")).await {
        Ok(PodList { items }) => {
            let mut problems: Vec<_> = items.iter().filter_map(Pod::problem).collect();
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
async fn read<T: DeserializeOwned>(
    client: &Client,
    daemon_set: &DaemonSetName,
    resource: &str,
    labels: &str,
) -> Result<T, OperationError> {
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
    serde_json::from_slice(&body).map_err(|error| OperationError::because(&operation, &error))
}

impl Pod {
    /// Returns why the pod is not ready, with its node; `None` if it is ready.
    fn problem(&self) -> Option<String> {
        let PodStatus { phase, conditions, init_container_statuses, container_statuses } = &self.status;
        if conditions.iter().any(|it| it.kind == "Ready" && it.status == "True") {
            return None;
        }
        let node = Some(self.spec.node_name.as_str()).filter(|name| !name.is_empty());
        let containers = init_container_statuses.iter().chain(container_statuses);
        let states =
            containers.flat_map(|it| [&it.state.terminated, &it.last_state.terminated, &it.state.waiting]);
        let of_container = states
            .filter(|it| it.exit_code != 0 || !it.message.is_empty())
            .map(|it| if it.message.is_empty() { &it.reason } else { &it.message });
        let of_condition = conditions.iter().filter(|it| it.status != "True").map(|it| &it.message);
        let why = of_container.chain(of_condition).find(|why| !why.is_empty()).unwrap_or(phase);
        let why = why.trim().replace('\n', ", ");
        Some(format!("node {}: pod {}: {why}", node.unwrap_or("(none yet)"), self.metadata.name))
    }
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
