//! Sends eviction requests and determines their results.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::PartialObjectMeta;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};

use crate::backoff::now_ns;
use crate::client::Client;
use crate::eviction_request::{self as request, EvictionRequest};
use crate::request::Request;

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
    /// Creates an evictor that sends requests with this client, and their results to `results`. `node_status`
    /// has the number of the last node status update that is written or need not be waited for. An eviction
    /// waits for its update.
    pub fn new(
        client: Client,
        config: EvictorConfig,
        results: mpsc::Sender<KillUpdate>,
        node_status: Option<watch::Receiver<u64>>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(config.in_flight.max(1)));
        Self { client, config, results, node_status, permits }
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
            request::deletion(&eviction, within, is_dry)
        } else {
            request::eviction(&eviction, within, is_dry)
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
        let request = request::disruption_target(&eviction.pod, &message, now, CONDITION_WITHIN, is_dry);
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
            let request = request::read(&eviction.pod, self.config.within);
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

#[cfg(test)]
mod tests {
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
}
