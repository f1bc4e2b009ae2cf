//! Events of the API, `events.k8s.io/v1`, on pods and on the node, with few requests.
//!
//! Equal occurrences form one series: the first creates an event, and later ones update its count. The number
//! of requests and of waiting occurrences is limited. Occurrences beyond the limit are dropped and counted.

mod correlator;
mod object;
mod sink;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eviction_core::progress::ApiResult;
use eviction_core::time::nanos;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::backoff::{Backoff, now_ns};
use crate::client::Client;
use crate::metrics::Observer;
use crate::response::{Permissions, interpret};
use correlator::{Correlator, Next, is_done, should_retry};
use object::Occurrence;

pub use object::{EventResult, Reason};
pub use sink::EventSink;

/// The pause after a failure: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Accepts occurrences.
#[derive(Debug)]
pub(crate) struct Recorder {
    correlator: Mutex<Correlator>,
    /// Notified when an occurrence was noted.
    changed: Notify,
}

impl Recorder {
    /// Creates a recorder for this node and its pods. The observer counts the result of each occurrence.
    pub(crate) fn new(node: &str, observer: Observer) -> Self {
        let correlator = Mutex::new(Correlator::new(node, observer));
        Self { correlator, changed: Notify::new() }
    }

    fn correlator(&self) -> MutexGuard<'_, Correlator> {
        self.correlator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an occurrence. Waits only for other callers of this function.
    pub(crate) fn record(&self, occurrence: Occurrence) {
        self.correlator().add(occurrence, now_ns());
        self.changed.notify_one();
    }

    /// Writes the noted occurrences, one request at a time, forever. Needs a tokio runtime.
    pub(crate) async fn run(self: Arc<Self>, client: Client) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let permissions = Permissions::default();
        loop {
            let next = self.correlator().next(now_ns());
            match next {
                Next::Idle => self.changed.notified().await,
                Next::Wait(until_ns) => {
                    let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.changed.notified() => {}
                    }
                }
                Next::Write(request) => {
                    let operation = request.operation();
                    let result = interpret(operation, &client.request(request.request.clone()).await);
                    permissions.record(operation, &result);
                    let pause = if should_retry(request.creates, &result) {
                        backoff.pause()
                    } else {
                        backoff.reset();
                        if let (ApiResult::Rejected { why, .. }, false) =
                            (&result, is_done(request.creates, &result))
                        {
                            let reason = request.reason().name();
                            tracing::warn!(reason, %why, "the API server rejects a Kubernetes Event");
                        }
                        Duration::ZERO
                    };
                    self.correlator().responded(&request, &result, nanos(pause), now_ns());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::progress::ApiOperation;
    use serde_json::json;

    use super::*;
    use crate::error::RequestError;
    use crate::request::Response;

    fn response(status: u16, reason: &str, message: &str) -> Result<Response, RequestError> {
        let kind = if status < 300 { "Event" } else { "Status" };
        let body = json!({"kind": kind, "reason": reason, "message": message}).to_string();
        Ok(Response { status, retry_after: None, body: body.into() })
    }

    fn outcome(creates: bool, response: &Result<Response, RequestError>) -> &'static str {
        let operation = if creates { ApiOperation::CreateEvent } else { ApiOperation::PatchEvent };
        let result = interpret(operation, response);
        match result {
            _ if should_retry(creates, &result) => "later",
            _ if is_done(creates, &result) => "done",
            ApiResult::Terminated if !creates => "missing",
            ApiResult::Forbidden { .. } => "forbidden",
            _ => "refused",
        }
    }

    #[test]
    fn each_response_leads_to_the_expected_outcome() {
        let forbidden = "events.events.k8s.io is forbidden: User \"a\" cannot create resource \"events\"";
        let ending = "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        for (status, reason, message, created, updated) in [
            (201, "", "", "done", "done"),
            (400, "BadRequest", "", "refused", "refused"),
            (401, "Unauthorized", "", "later", "later"),
            (403, "Forbidden", forbidden, "forbidden", "forbidden"),
            (403, "Forbidden", ending, "refused", "refused"),
            (404, "NotFound", "namespaces \"shop\" not found", "refused", "missing"),
            (404, "", "page not found", "refused", "refused"),
            (409, "AlreadyExists", "", "done", "later"),
            (409, "Conflict", "", "done", "later"),
            (422, "Invalid", "", "refused", "refused"),
            (429, "TooManyRequests", "", "later", "later"),
            (500, "", "", "later", "later"),
            (504, "Timeout", "", "later", "later"),
        ] {
            let response = response(status, reason, message);
            assert_eq!(
                (outcome(true, &response), outcome(false, &response)),
                (created, updated),
                "{status} {reason}"
            );
        }
        let lost = Err(RequestError::Deadline { after: Duration::from_secs(1) });
        assert_eq!(outcome(true, &lost), "later");
    }
}
