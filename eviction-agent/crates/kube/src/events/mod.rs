//! Events of the API, `events.k8s.io/v1`, on pods and on the node, with few requests.
//!
//! Equal occurrences form one series: the first creates an event, and later ones update its count. The number
//! of requests and of waiting occurrences is limited. Occurrences beyond the limit are dropped and counted.

mod correlator;
mod object;
mod oom_kill;
mod sink;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eviction_core::time::nanos;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backoff::{Backoff, now_ns};
use crate::client::Client;
use crate::metrics::Observer;
use correlator::{Correlator, Next};
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
    pub(crate) async fn run(self: Arc<Self>, client: Client) -> Infallible {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let next = self.correlator().next(now_ns());
            match next {
                Next::Write(operation, request) => {
                    let (result, _body) = client.call(operation, request).await;
                    let pause_ns = nanos(backoff.pause());
                    if !self.correlator().responded(&result, pause_ns, now_ns()) {
                        backoff.reset();
                    }
                }
                Next::Wait(until_ns) => {
                    let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                    // Ends early when an occurrence is noted.
                    let _elapsed = timeout(pause, self.changed.notified()).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use eviction_core::progress::ApiOperation;
    use serde_json::json;

    use super::correlator::Outcome::{self, Done, Expired, Refused, Retry};
    use super::*;
    use crate::error::RequestError;
    use crate::response::interpret;
    use bytes::Bytes;
    use http::Response;

    fn response(status: u16, reason: &str, message: &str) -> Result<Response<Bytes>, RequestError> {
        let kind = if status < 300 { "Event" } else { "Status" };
        let body = json!({"kind": kind, "reason": reason, "message": message}).to_string();
        Ok(Response::builder().status(status).body(body.into()).unwrap())
    }

    fn outcome(creates: bool, response: &Result<Response<Bytes>, RequestError>) -> Outcome {
        let operation = if creates { ApiOperation::CreateEvent } else { ApiOperation::PatchEvent };
        Outcome::of(creates, &interpret(operation, response))
    }

    #[test]
    fn each_response_leads_to_the_expected_outcome() {
        let forbidden = "events.events.k8s.io is forbidden: User \"a\" cannot create resource \"events\"";
        let ending = "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        for (status, reason, message, created, updated) in [
            (201, "", "", Done, Done),
            (400, "BadRequest", "", Refused, Refused),
            (401, "Unauthorized", "", Retry, Retry),
            (403, "Forbidden", forbidden, Refused, Refused),
            (403, "Forbidden", ending, Refused, Refused),
            (404, "NotFound", "namespaces \"shop\" not found", Refused, Expired),
            (404, "", "page not found", Refused, Refused),
            (409, "AlreadyExists", "", Done, Retry),
            (409, "Conflict", "", Done, Retry),
            (422, "Invalid", "", Refused, Refused),
            (429, "TooManyRequests", "", Retry, Retry),
            (500, "", "", Retry, Retry),
            (504, "Timeout", "", Retry, Retry),
        ] {
            let response = response(status, reason, message);
            assert_eq!(
                (outcome(true, &response), outcome(false, &response)),
                (created, updated),
                "{status} {reason}"
            );
        }
        let lost = Err(RequestError::Deadline { after: Duration::from_secs(1) });
        assert_eq!(outcome(true, &lost), Retry);
    }
}
