//! Requests evictions, and finds out what came of them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};

use crate::backoff::now_ns;
use crate::client::Client;
use crate::eviction_request::{self as request, EvictionRequest, Manner};
use crate::request::Request;
use crate::response::Permissions;
use crate::response::judge;

/// The condition is a courtesy: a deletion does not wait longer for it.
const CONDITION_WITHIN: Duration = Duration::from_millis(500);

/// The node's taints keep the replacement away from it; the victim's memory does not wait longer for
/// them.
const NODE_STATUS_WITHIN: Duration = Duration::from_millis(20);

/// A server gives up with the timeout of the request, and a moment.
const SETTLES: Duration = Duration::from_secs(2);

/// Between two reads of a pod of which it is not known whether it goes.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Reads whose response says nothing, such as those that the agent has no right to.
const READS: u32 = 12;

/// A request that has no response by then starts the probe of the server.
const SLOW: Duration = Duration::from_secs(1);

/// Bounds of eviction requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictorConfig {
    /// The most requests at a time.
    pub in_flight: usize,
    /// How long one may take.
    pub within: Duration,
    /// How old a decision may be when its request is sent.
    pub fresh: Duration,
    /// The server is to check everything and do nothing of it.
    pub is_dry: bool,
}

impl Default for EvictorConfig {
    fn default() -> Self {
        let (within, fresh) = (Duration::from_secs(5), Duration::from_secs(5));
        Self { in_flight: 8, within, fresh, is_dry: false }
    }
}

/// Requests evictions. Cloning shares all.
#[derive(Clone, Debug)]
pub struct Evictor {
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    node_status: Option<watch::Receiver<u64>>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    config: EvictorConfig,
    results: mpsc::Sender<KillUpdate>,
    permissions: Permissions,
}

impl Evictor {
    /// Sends requests by this client, and their results to `results`. `node_status` has the number of the
    /// node status that is written, or that need not be waited for: it goes first.
    pub fn new(
        client: Client,
        config: EvictorConfig,
        results: mpsc::Sender<KillUpdate>,
        node_status: Option<watch::Receiver<u64>>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(config.in_flight.max(1)));
        let shared = Arc::new(Shared { client, config, results, permissions: Permissions::default() });
        Self { shared, permits, node_status }
    }

    /// Begins to carry out a request, as soon as there is room for one more. Needs a tokio runtime.
    pub async fn evict(&self, request: EvictionRequest) {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return };
        let (shared, node_status) = (Arc::clone(&self.shared), self.node_status.clone());
        tokio::spawn(async move {
            if let Some(mut node_status) = node_status {
                let written = node_status.wait_for(|written| *written >= request.after_update);
                // Late or failed: the eviction goes on.
                drop(timeout(NODE_STATUS_WITHIN, written).await);
            }
            shared.carry_out(request, permit).await;
        });
    }
}

impl Shared {
    async fn carry_out(&self, eviction: EvictionRequest, permit: OwnedSemaphorePermit) {
        let operation = eviction.operation();
        if eviction.is_unconfirmed {
            drop(permit);
            let result = self.find_out(&eviction).await;
            return self.report(&eviction, operation, result).await;
        }
        let age = Duration::from_nanos(now_ns().saturating_sub(eviction.at_ns));
        if age > self.config.fresh {
            let why = format!("the decision is {} ms old", age.as_millis());
            return self.report(&eviction, operation, ApiResult::NotSent { why: why.into() }).await;
        }
        let manner = Manner { within: self.config.within, is_dry: self.config.is_dry };
        let request = if eviction.ignores_budget {
            self.set_condition(&eviction).await;
            request::deletion(&eviction, manner)
        } else {
            request::eviction(&eviction, manner)
        };
        let result = self.send(operation, request).await;
        let is_unconfirmed = matches!(result, ApiResult::Unknown { .. }) && !self.config.is_dry;
        self.report(&eviction, operation, result).await;
        drop(permit);
        if is_unconfirmed {
            let result = self.find_out(&eviction).await;
            self.report(&eviction, operation, result).await;
        }
    }

    /// The condition by which others know why the pod ends, where the API does not write it.
    async fn set_condition(&self, eviction: &EvictionRequest) {
        let message = format!("The node was low on resource: {}. ", eviction.resource.name());
        let now = seconds(Timestamp::now());
        let manner = Manner { within: CONDITION_WITHIN, is_dry: self.config.is_dry };
        let request = request::disruption_target(&eviction.pod, &message, &now, manner);
        let result = self.send(ApiOperation::Condition, request).await;
        if result != ApiResult::Accepted {
            self.report(eviction, ApiOperation::Condition, result).await;
        }
    }

    async fn send(&self, operation: ApiOperation, request: Request) -> ApiResult {
        let request = self.client.request(request);
        tokio::pin!(request);
        let response = match timeout(SLOW, &mut request).await {
            Ok(response) => response,
            Err(_elapsed) => {
                self.client.check_reachability();
                request.await
            }
        };
        let result = judge(operation, &response);
        self.permissions.note(operation, &result);
        result
    }

    /// Whether a request without a response was carried out. It is not repeated: its pod is read, for as
    /// long as it takes until the server responds.
    async fn find_out(&self, eviction: &EvictionRequest) -> ApiResult {
        let manner = Manner { within: self.config.within, is_dry: false };
        // Until then the server may still be at it.
        let settled = Instant::now() + SETTLES;
        let mut said_nothing = 0;
        while said_nothing < READS {
            let response = self.client.request(request::read(&eviction.pod, manner)).await;
            let result = judge(ApiOperation::GetPod, &response);
            self.permissions.note(ApiOperation::GetPod, &result);
            match result {
                ApiResult::Accepted => {
                    match response.ok().and_then(|response| observed(&response.body, &eviction.pod.uid)) {
                        Some(ApiResult::NotSent { .. }) if Instant::now() < settled => {}
                        Some(result) => return result,
                        None => said_nothing += 1,
                    }
                }
                ApiResult::Terminated => return ApiResult::Terminated,
                ApiResult::NotSent { .. }
                | ApiResult::Unknown { .. }
                | ApiResult::Unauthorized { .. }
                | ApiResult::Throttled { .. } => {}
                _ => said_nothing += 1,
            }
            sleep(READ_EVERY).await;
        }
        ApiResult::NotSent { why: "nobody says what came of the request".into() }
    }

    async fn report(&self, eviction: &EvictionRequest, operation: ApiOperation, answered: ApiResult) {
        let progress = KillProgress::Answered { operation, answered, is_dry: self.config.is_dry };
        let pod = Arc::clone(&eviction.pod);
        let update = KillUpdate { decision: eviction.decision, pod, at_ns: now_ns(), progress };
        // Without a listener it is of no use.
        let _ = self.results.send(update).await;
    }
}

/// As much of a pod as shows whether it is terminating.
#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: Box<str>,
    deletion_timestamp: Option<Box<str>>,
}

/// The result of an eviction request by the pod's state.
fn observed(body: &[u8], uid: &str) -> Option<ApiResult> {
    let Pod { metadata } = serde_json::from_slice(body).ok()?;
    Some(match metadata.deletion_timestamp {
        _ if *metadata.uid != *uid => ApiResult::Replaced,
        Some(_) => ApiResult::Accepted,
        None => ApiResult::NotSent { why: "the pod is not going: nobody carried out the request".into() },
    })
}

/// As the API writes times.
fn seconds(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_state_says_whether_it_goes() {
        let pod = |rest: &str| format!(r#"{{"kind":"Pod","metadata":{{"uid":"u"{rest}}}}}"#);
        let going = pod(r#","deletionTimestamp":"2026-01-05T08:00:00Z""#);
        assert_eq!(observed(going.as_bytes(), "u"), Some(ApiResult::Accepted));
        assert_eq!(observed(going.as_bytes(), "v"), Some(ApiResult::Replaced));
        assert!(matches!(observed(pod("").as_bytes(), "u"), Some(ApiResult::NotSent { .. })));
        assert_eq!(observed(b"{", "u"), None);
        assert_eq!(observed(b"{\"metadata\":{}}", "u"), None);
    }

    #[test]
    fn times_are_written_in_whole_seconds() {
        let at = Timestamp::new(1_767_600_000, 123_456_789).unwrap();
        assert_eq!(seconds(at), "2026-01-05T08:00:00Z");
    }
}
