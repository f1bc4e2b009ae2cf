//! Sends eviction requests and determines their results.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};
use eviction_core::signal::Resource;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::now_ns;
use crate::client::Client;
use crate::request::{Request, STRATEGIC_MERGE, push_segment, to_json};

/// The maximum time that a deletion waits for the condition, which is optional.
const CONDITION_WITHIN: Duration = Duration::from_millis(500);

/// The maximum time that an eviction waits for the node status. The node's taints keep the replacement pod
/// away from it.
const NODE_STATUS_WITHIN: Duration = Duration::from_millis(20);

/// The interval between two reads of a pod whose termination is unknown.
const READ_EVERY: Duration = Duration::from_secs(2);

/// The maximum number of reads without a usable response, for example because of missing permissions.
const MAX_UNUSABLE_RESPONSES: u32 = 12;

/// The time after which a request without a response starts the probe of the server.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// The condition with the reason why a pod is terminated (KEP-3329).
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The reason of [`DISRUPTION_TARGET`] when the Eviction API does not set it.
const DISRUPTION_REASON: &str = "TerminationByEvictionAgent";

/// The eviction of a pod, as it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRequest {
    /// The number of the decision; results contain it.
    pub decision: u64,
    /// The time of the decision: CLOCK_MONOTONIC in nanoseconds. Decisions that are too old are not carried
    /// out.
    pub at_ns: u64,
    /// The pod.
    pub pod: Arc<PodName>,
    /// The grace period. Values below one second are sent as one second: with 0 the API server deletes the
    /// object at once, while its containers continue to run.
    pub grace_period_seconds: i64,
    /// The resource that the node is short of.
    pub resource: Resource,
    /// Whether the pod is deleted, because its PodDisruptionBudget does not allow the eviction.
    pub ignores_budget: bool,
    /// The number of the node status update that must be written first; 0 if there is none to wait for.
    pub after_update: u64,
    /// Whether the request was sent before with an unknown result. Then the result is determined, and no
    /// request is sent.
    pub is_unconfirmed: bool,
}

impl EvictionRequest {
    /// Returns the operation of the request.
    fn operation(&self) -> ApiOperation {
        if self.ignores_budget { ApiOperation::Deletion } else { ApiOperation::Eviction }
    }
}

/// Limits for eviction requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictorConfig {
    /// The maximum number of requests in flight.
    pub in_flight: usize,
    /// The timeout of a request.
    pub within: Duration,
    /// The maximum age of a decision when its request is sent.
    pub fresh: Duration,
    /// Whether the server only checks the requests (dry run).
    pub is_dry: bool,
}

impl Default for EvictorConfig {
    fn default() -> Self {
        let (within, fresh) = (Duration::from_secs(5), Duration::from_secs(5));
        Self { in_flight: 8, within, fresh, is_dry: false }
    }
}

/// Sends eviction requests. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Evictor {
    client: Client,
    config: EvictorConfig,
    results: mpsc::Sender<KillUpdate>,
    node_status: Option<watch::Receiver<u64>>,
    permits: Arc<Semaphore>,
}

impl Evictor {
    /// Creates an evictor that sends requests with this client, and their results to `results`.
    pub fn new(client: Client, config: EvictorConfig, results: mpsc::Sender<KillUpdate>) -> Self {
        let permits = Arc::new(Semaphore::new(config.in_flight.max(1)));
        Self { client, config, results, node_status: None, permits }
    }

    /// Lets each eviction wait for its node status update. `node_status` has the number of the last update that is
    /// written or need not be waited for.
    #[must_use]
    pub fn after_updates(self, node_status: Option<watch::Receiver<u64>>) -> Self {
        Self { node_status, ..self }
    }

    /// Starts to carry out a request as soon as fewer than the maximum are in flight. Needs a tokio runtime.
    pub async fn evict(&self, request: EvictionRequest) {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return };
        let mut evictor = self.clone();
        tokio::spawn(async move {
            if let Some(node_status) = &mut evictor.node_status {
                let written = node_status.wait_for(|written| *written >= request.after_update);
                // The eviction continues even if the update is late or failed.
                drop(timeout(NODE_STATUS_WITHIN, written).await);
            }
            evictor.carry_out(request, permit).await;
        });
    }

    async fn carry_out(&self, eviction: EvictionRequest, permit: OwnedSemaphorePermit) {
        let operation = eviction.operation();
        if eviction.is_unconfirmed {
            drop(permit);
            let result = self.determine_result(&eviction).await;
            return self.report(&eviction, operation, result).await;
        }
        let age = Duration::from_nanos(now_ns().saturating_sub(eviction.at_ns));
        if age > self.config.fresh {
            let why = format!("the decision is {} ms old", age.as_millis());
            return self.report(&eviction, operation, ApiResult::NotSent { why: why.into() }).await;
        }
        let EvictorConfig { within, is_dry, .. } = self.config;
        let request = if eviction.ignores_budget {
            self.set_condition(&eviction).await;
            deletion_request(&eviction, within, is_dry)
        } else {
            eviction_request(&eviction, within, is_dry)
        };
        let result = self.send(operation, request).await;
        let is_unconfirmed = matches!(result, ApiResult::Unknown { .. }) && !is_dry;
        self.report(&eviction, operation, result).await;
        drop(permit);
        if is_unconfirmed {
            let result = self.determine_result(&eviction).await;
            self.report(&eviction, operation, result).await;
        }
    }

    /// Sets the condition with the reason of the termination, if the API does not set it itself.
    async fn set_condition(&self, eviction: &EvictionRequest) {
        let message = format!("The node was low on resource: {}. ", eviction.resource.name());
        let (now, is_dry) = (Timestamp::now(), self.config.is_dry);
        let request = disruption_target(&eviction.pod, &message, now, CONDITION_WITHIN, is_dry);
        let result = self.send(ApiOperation::Condition, request).await;
        if result != ApiResult::Accepted {
            self.report(eviction, ApiOperation::Condition, result).await;
        }
    }

    async fn send(&self, operation: ApiOperation, request: Request) -> ApiResult {
        let call = self.client.call(operation, request);
        tokio::pin!(call);
        let (result, _body) = match timeout(PROBE_AFTER, &mut call).await {
            Ok(answered) => answered,
            Err(_elapsed) => {
                self.client.check_reachability();
                call.await
            }
        };
        result
    }

    /// Determines whether a request without a response was carried out. It is not repeated. Instead the pod
    /// is read until the server responds.
    async fn determine_result(&self, eviction: &EvictionRequest) -> ApiResult {
        // Until then the server may still process the request: its timeout starts when the request arrives.
        let server_done_at = Instant::now() + self.config.within;
        let mut unusable_responses = 0;
        while unusable_responses < MAX_UNUSABLE_RESPONSES {
            let request = read_request(&eviction.pod, self.config.within);
            let (result, body) = self.client.call(ApiOperation::GetPod, request).await;
            match result {
                ApiResult::Accepted => {
                    match body.and_then(|body| result_from_pod(&body, &eviction.pod.uid)) {
                        Some(ApiResult::NotSent { .. }) if Instant::now() < server_done_at => {}
                        Some(result) => return result,
                        None => unusable_responses += 1,
                    }
                }
                ApiResult::Terminated => return ApiResult::Terminated,
                ApiResult::NotSent { .. }
                | ApiResult::Unknown { .. }
                | ApiResult::Unauthorized { .. }
                | ApiResult::Throttled { .. } => {}
                _ => unusable_responses += 1,
            }
            sleep(READ_EVERY).await;
        }
        ApiResult::NotSent { why: "the result of the request cannot be read".into() }
    }

    async fn report(&self, eviction: &EvictionRequest, operation: ApiOperation, answered: ApiResult) {
        let progress = KillProgress::Answered { operation, answered, is_dry: self.config.is_dry };
        let update = KillUpdate { decision: eviction.decision, at_ns: now_ns(), progress };
        // Without a receiver the update is dropped.
        let _ = self.results.send(update).await;
    }
}

/// Returns the result of an eviction request according to the pod's state.
fn result_from_pod(body: &[u8], uid: &str) -> Option<ApiResult> {
    let PartialObjectMeta { metadata, .. } = serde_json::from_slice::<PartialObjectMeta>(body).ok()?;
    let found = metadata.uid?;
    Some(match metadata.deletion_timestamp {
        _ if found != uid => ApiResult::Replaced,
        Some(_) => ApiResult::Accepted,
        None => {
            ApiResult::NotSent { why: "the pod is not terminating: the request was not carried out".into() }
        }
    })
}

/// Returns the request for an eviction, which PodDisruptionBudgets can deny.
///
/// kube's `Api::evict` is not used, because it sends the field `delete_options`, which the API does not have:
/// uid and grace period would be ignored.
fn eviction_request(order: &EvictionRequest, within: Duration, is_dry: bool) -> Request {
    let PodName { uid: _, namespace, name } = &*order.pod;
    let metadata = ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(namespace.to_string()),
        ..ObjectMeta::default()
    };
    let body = Eviction { delete_options: Some(delete_options(order, is_dry)), metadata };
    Request::post(pod_path(&order.pod, "/eviction"), to_json(&body)).on_server(within, is_dry)
}

/// Returns the request for a deletion, which PodDisruptionBudgets cannot deny.
fn deletion_request(order: &EvictionRequest, within: Duration, is_dry: bool) -> Request {
    let body = DeleteOptions {
        api_version: Some("v1".to_owned()),
        kind: Some("DeleteOptions".to_owned()),
        ..delete_options(order, is_dry)
    };
    Request::delete(pod_path(&order.pod, ""), to_json(&body)).on_server(within, is_dry)
}

/// Returns the request that sets the condition with the reason of the termination on the pod.
fn disruption_target(
    pod: &PodName,
    message: &str,
    now: Timestamp,
    within: Duration,
    is_dry: bool,
) -> Request {
    let condition = json!({
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": DISRUPTION_REASON,
        "message": message,
        // In whole seconds, as the API does.
        "lastTransitionTime": format!("{now:.0}"),
    });
    // With the uid, the server rejects the patch for another pod.
    let body = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    Request::patch(pod_path(pod, "/status"), STRATEGIC_MERGE, to_json(&body)).on_server(within, is_dry)
}

/// Returns the request that reads a pod.
fn read_request(pod: &PodName, within: Duration) -> Request {
    Request::get(pod_path(pod, "")).on_server(within, false)
}

fn delete_options(order: &EvictionRequest, is_dry: bool) -> DeleteOptions {
    let preconditions = Preconditions { uid: Some(order.pod.uid.to_string()), resource_version: None };
    DeleteOptions {
        grace_period_seconds: Some(order.grace_period_seconds.max(1)),
        preconditions: Some(preconditions),
        dry_run: is_dry.then(|| vec!["All".to_owned()]),
        ..DeleteOptions::default()
    }
}

fn pod_path(pod: &PodName, subresource: &str) -> String {
    let mut path = String::from("/api/v1/namespaces/");
    push_segment(&pod.namespace, &mut path);
    path.push_str("/pods/");
    push_segment(&pod.name, &mut path);
    path.push_str(subresource);
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn eviction_result_follows_from_uid_and_deletion_timestamp() {
        let pod = |rest: &str| format!(r#"{{"kind":"Pod","metadata":{{"uid":"u"{rest}}}}}"#);
        let going = pod(r#","deletionTimestamp":"2026-01-05T08:00:00Z""#);
        assert_eq!(result_from_pod(going.as_bytes(), "u"), Some(ApiResult::Accepted));
        assert_eq!(result_from_pod(going.as_bytes(), "v"), Some(ApiResult::Replaced));
        assert!(matches!(result_from_pod(pod("").as_bytes(), "u"), Some(ApiResult::NotSent { .. })));
        assert_eq!(result_from_pod(b"{", "u"), None);
        assert_eq!(result_from_pod(b"{\"metadata\":{}}", "u"), None);
    }

    const WITHIN: Duration = Duration::from_secs(5);

    fn order(name: &str, grace_period_seconds: i64) -> EvictionRequest {
        let pod = PodName { uid: "u-1".into(), namespace: "shop".into(), name: name.into() };
        EvictionRequest {
            decision: 1,
            at_ns: 0,
            pod: Arc::new(pod),
            grace_period_seconds,
            resource: Resource::Memory,
            ignores_budget: false,
            after_update: 0,
            is_unconfirmed: false,
        }
    }

    fn body(request: &Request) -> Value {
        serde_json::from_slice(&request.body.as_ref().unwrap().1).unwrap()
    }

    #[test]
    fn eviction_and_deletion_have_the_uid_and_at_least_1_s_of_grace() {
        for (grace, sent) in [(i64::MIN, 1), (-1, 1), (0, 1), (1, 1), (30, 30), (i64::MAX, i64::MAX)] {
            let request = eviction_request(&order("web.1", grace), WITHIN, false);
            assert_eq!(request.path, "/api/v1/namespaces/shop/pods/web.1/eviction?timeout=6s");
            assert_eq!(request.within, WITHIN);
            let wanted = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "web.1", "namespace": "shop"},
                "deleteOptions": {"gracePeriodSeconds": sent, "preconditions": {"uid": "u-1"}},
            });
            assert_eq!(body(&request), wanted);
            let request = deletion_request(&order("web.1", grace), WITHIN, false);
            assert_eq!(request.path, "/api/v1/namespaces/shop/pods/web.1?timeout=6s");
            let wanted = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": sent,
                "preconditions": {"uid": "u-1"},
            });
            assert_eq!(body(&request), wanted);
        }
    }

    #[test]
    fn dry_run_is_in_the_query_and_in_the_body() {
        let request = eviction_request(&order("web", 1), WITHIN, true);
        assert!(request.path.ends_with("?timeout=6s&dryRun=All"), "{}", request.path);
        assert_eq!(body(&request)["deleteOptions"]["dryRun"], json!(["All"]));
        assert_eq!(body(&deletion_request(&order("web", 1), WITHIN, true))["dryRun"], json!(["All"]));
        let patch = disruption_target(&order("web", 1).pod, "why", Timestamp::UNIX_EPOCH, WITHIN, true);
        assert!(patch.path.ends_with("/pods/web/status?timeout=6s&dryRun=All"), "{}", patch.path);
        assert!(!read_request(&order("web", 1).pod, WITHIN).path.contains("dryRun"));
    }

    #[test]
    fn condition_patch_has_the_uid_of_the_pod_and_whole_seconds() {
        let now = Timestamp::new(1_767_600_000, 999_999_999).unwrap();
        let request = disruption_target(&order("web", 1).pod, "memory \"low\"", now, WITHIN, false);
        assert_eq!(request.body.as_ref().unwrap().0, "application/strategic-merge-patch+json");
        let wanted = json!({
            "metadata": {"uid": "u-1"},
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByEvictionAgent",
                "message": "memory \"low\"",
                "lastTransitionTime": "2026-01-05T08:00:00Z",
            }]},
        });
        assert_eq!(body(&request), wanted);
    }

    proptest! {
        #[test]
        fn names_are_escaped_to_one_path_segment(namespace in ".{1,12}", name in "(\\.{1,3}|.{1,12}|[a-z/?#%.]{1,12})") {
            let pod = PodName { uid: "u".into(), namespace: namespace.as_str().into(), name: name.as_str().into() };
            let order = EvictionRequest { pod: Arc::new(pod), ..order("x", 1) };
            let request = eviction_request(&order, WITHIN, false);
            let rest = request.path.strip_prefix("/api/v1/namespaces/").unwrap();
            let parts: Vec<&str> = rest.split('/').collect();
            prop_assert_eq!(parts.len(), 4, "{}", request.path);
            prop_assert_eq!((parts[1], parts[3]), ("pods", "eviction?timeout=6s"));
            for part in [parts[0], parts[2]] {
                prop_assert!(part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)));
                prop_assert!(!matches!(part, "." | ".."));
            }
        }
    }
}
