//! The hand that asks.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use eviction_core::progress::{ApiOperation, ApiResult, KillProgress, KillUpdate};

use crate::client::Client;
use crate::clock::now_ns;
use crate::eviction_request::{self as request, EvictionRequest, Manner};
use crate::rbac::Rights;
use crate::request::Request;
use crate::response::judge;

/// The condition is a courtesy: a deletion does not wait longer for it.
const CONDITION_WITHIN: Duration = Duration::from_millis(500);

/// The node's marks keep the replacement away from it; the victim's memory does not wait longer for
/// them.
const MARKED_WITHIN: Duration = Duration::from_millis(20);

/// A server that was asked gives up with the time it was told, and a moment.
const SETTLES: Duration = Duration::from_secs(2);

/// Between two looks at a pod of which it is not known whether it goes.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Looks that were answered and told nothing, such as those that the agent has no right to.
const LOOKS: u32 = 12;

/// A request that has no answer by then makes doubt whether the server can be asked.
const DOUBT: Duration = Duration::from_secs(1);

/// How the hand works.
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

/// Asks for evictions. Cloning shares all.
#[derive(Clone, Debug)]
pub struct Evictor {
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    marks: Option<watch::Receiver<u64>>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    config: EvictorConfig,
    outcomes: mpsc::Sender<KillUpdate>,
    rights: Rights,
}

impl Evictor {
    /// A hand that asks by this client, and tells what came of it to `outcomes`.
    pub fn new(client: Client, config: EvictorConfig, outcomes: mpsc::Sender<KillUpdate>) -> Self {
        let permits = Arc::new(Semaphore::new(config.in_flight.max(1)));
        let shared = Arc::new(Shared { client, config, outcomes, rights: Rights::default() });
        Self { shared, permits, marks: None }
    }

    /// The same, that lets the node's marks go first: `marks` has the number of those that are
    /// written, or that need not be waited for.
    #[must_use]
    pub fn behind(self, marks: watch::Receiver<u64>) -> Self {
        Self { marks: Some(marks), ..self }
    }

    /// Begins to carry out an order, as soon as there is room for one more. Needs a tokio runtime.
    pub async fn take(&self, order: EvictionRequest) {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return };
        let (shared, marks) = (Arc::clone(&self.shared), self.marks.clone());
        tokio::spawn(async move {
            if let Some(marks) = marks {
                are_written(marks, order.after_marks).await;
            }
            shared.carry_out(order, permit).await;
        });
    }
}

/// Waits until marks are written, for a moment.
async fn are_written(mut marks: watch::Receiver<u64>, number: u64) {
    let written = marks.wait_for(|written| *written >= number);
    // Late, or nobody writes them any more: the eviction goes on.
    drop(tokio::time::timeout(MARKED_WITHIN, written).await);
}

impl Shared {
    async fn carry_out(&self, order: EvictionRequest, permit: OwnedSemaphorePermit) {
        let asked = order.asks_for();
        if order.is_open {
            drop(permit);
            let answered = self.find_out(&order).await;
            return self.tell(&order, asked, answered).await;
        }
        let age = Duration::from_nanos(now_ns().saturating_sub(order.at_ns));
        if age > self.config.fresh {
            let why = format!("the decision is {} ms old", age.as_millis());
            return self.tell(&order, asked, ApiResult::NotSent { why: why.into() }).await;
        }
        let manner = Manner { within: self.config.within, is_dry: self.config.is_dry };
        let request = if order.ignores_budget {
            self.say_why(&order).await;
            request::deletion(&order, manner)
        } else {
            request::eviction(&order, manner)
        };
        let answered = self.ask(asked, request).await;
        let is_open = matches!(answered, ApiResult::Unknown { .. }) && !self.config.is_dry;
        self.tell(&order, asked, answered).await;
        drop(permit);
        if is_open {
            let answered = self.find_out(&order).await;
            self.tell(&order, asked, answered).await;
        }
    }

    /// The condition by which others know why the pod ends, where the API does not write it.
    async fn say_why(&self, order: &EvictionRequest) {
        let message = format!("The node was low on resource: {}. ", order.resource.name());
        let now = seconds(Timestamp::now());
        let manner = Manner { within: CONDITION_WITHIN, is_dry: self.config.is_dry };
        let request = request::disruption_target(&order.pod, &message, &now, manner);
        let answered = self.ask(ApiOperation::Condition, request).await;
        if answered != ApiResult::Accepted {
            self.tell(order, ApiOperation::Condition, answered).await;
        }
    }

    async fn ask(&self, asked: ApiOperation, request: Request) -> ApiResult {
        let request = self.client.request(request);
        tokio::pin!(request);
        let result = match tokio::time::timeout(DOUBT, &mut request).await {
            Ok(result) => result,
            Err(_elapsed) => {
                self.client.doubt();
                request.await
            }
        };
        let answered = judge(asked, &result);
        self.rights.note(asked, &answered);
        answered
    }

    /// Whether a request was carried out of which nobody said so. It is not repeated: its pod is
    /// looked at, for as long as it takes until the server can be asked.
    async fn find_out(&self, order: &EvictionRequest) -> ApiResult {
        let manner = Manner { within: self.config.within, is_dry: false };
        // Until then the server may still be at it.
        let settled = Instant::now() + SETTLES;
        let mut told_nothing = 0;
        while told_nothing < LOOKS {
            let result = self.client.request(request::look(&order.pod, manner)).await;
            let answered = judge(ApiOperation::GetPod, &result);
            self.rights.note(ApiOperation::GetPod, &answered);
            match answered {
                ApiResult::Accepted => {
                    match result.ok().and_then(|answer| seen(&answer.body, &order.pod.uid)) {
                        Some(ApiResult::NotSent { .. }) if Instant::now() < settled => {}
                        Some(answered) => return answered,
                        None => told_nothing += 1,
                    }
                }
                ApiResult::Terminated => return ApiResult::Terminated,
                ApiResult::NotSent { .. }
                | ApiResult::Unknown { .. }
                | ApiResult::Unauthorized { .. }
                | ApiResult::Throttled { .. } => {}
                _ => told_nothing += 1,
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        ApiResult::NotSent { why: "nobody says what came of the request".into() }
    }

    async fn tell(&self, order: &EvictionRequest, asked: ApiOperation, answered: ApiResult) {
        let progress = KillProgress::Answered { asked, answered, is_dry: self.config.is_dry };
        let pod = Arc::clone(&order.pod);
        let outcome = KillUpdate { decision: order.decision, pod, at_ns: now_ns(), progress };
        // Without a listener it is of no use.
        let _ = self.outcomes.send(outcome).await;
    }
}

/// Of a pod as much as tells whether it goes.
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

/// What a pod's state says of a request that it go.
fn seen(body: &[u8], uid: &str) -> Option<ApiResult> {
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
        assert_eq!(seen(going.as_bytes(), "u"), Some(ApiResult::Accepted));
        assert_eq!(seen(going.as_bytes(), "v"), Some(ApiResult::Replaced));
        assert!(matches!(seen(pod("").as_bytes(), "u"), Some(ApiResult::NotSent { .. })));
        assert_eq!(seen(b"{", "u"), None);
        assert_eq!(seen(b"{\"metadata\":{}}", "u"), None);
    }

    #[test]
    fn times_are_written_in_whole_seconds() {
        let at = Timestamp::new(1_767_600_000, 123_456_789).unwrap();
        assert_eq!(seconds(at), "2026-01-05T08:00:00Z");
    }
}
