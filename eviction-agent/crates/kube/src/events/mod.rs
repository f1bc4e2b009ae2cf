//! Events of the API, `events.k8s.io/v1`: of pods and of the node, in few requests.
//!
//! What is the same is one series: the first of it makes an event, and later ones raise its count.
//! How many requests that takes is bounded, and how much waits for them. What finds no room is
//! dropped and counted; nothing is lost without a count.

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
use crate::response::{Permissions, judge};
use correlator::{Correlator, Next, is_done, is_to_be_repeated};
use object::Occurrence;

pub use object::{EventResult, Reason};
pub use sink::EventSink;

/// The pause after a failure, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Where occurrences are noted. Cloning shares all.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    correlator: Mutex<Correlator>,
    /// Something was noted.
    changed: Notify,
}

impl Shared {
    fn correlator(&self) -> MutexGuard<'_, Correlator> {
        self.correlator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// One for that node and its pods. The observer takes the result of each occurrence.
    pub(crate) fn new(node: &str, observer: Observer) -> Self {
        let correlator = Mutex::new(Correlator::new(node, now_ns(), observer));
        Self { shared: Arc::new(Shared { correlator, changed: Notify::new() }) }
    }

    /// Takes an occurrence. Waits for nothing but others that do the same.
    pub(crate) fn note(&self, occurrence: Occurrence) {
        self.shared.correlator().note(occurrence, now_ns());
        self.shared.changed.notify_one();
    }

    /// Writes what is noted, one request at a time, for ever. Needs a tokio runtime.
    pub(crate) async fn run(self, client: Client) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let permissions = Permissions::default();
        loop {
            let next = self.shared.correlator().next(now_ns());
            match next {
                Next::Idle => self.shared.changed.notified().await,
                Next::Wait(until_ns) => {
                    let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = self.shared.changed.notified() => {}
                    }
                }
                Next::Write(request) => {
                    let operation = request.operation();
                    let result = judge(operation, &client.request(request.request.clone()).await);
                    permissions.note(operation, &result);
                    let pause = if is_to_be_repeated(request.makes, &result) {
                        backoff.pause()
                    } else {
                        backoff.reset();
                        if let (ApiResult::Rejected { why, .. }, false) =
                            (&result, is_done(request.makes, &result))
                        {
                            let reason = request.reason().name();
                            tracing::warn!(reason, %why, "the API server does not take an event");
                        }
                        Duration::ZERO
                    };
                    self.shared.correlator().responded(&request, &result, nanos(pause), now_ns());
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

    fn answer(status: u16, reason: &str, message: &str) -> Result<Response, RequestError> {
        let kind = if status < 300 { "Event" } else { "Status" };
        let body = json!({"kind": kind, "reason": reason, "message": message}).to_string();
        Ok(Response { status, retry_after: None, body: body.into() })
    }

    fn outcome(makes: bool, response: &Result<Response, RequestError>) -> &'static str {
        let operation = if makes { ApiOperation::CreateEvent } else { ApiOperation::PatchEvent };
        let result = judge(operation, response);
        match result {
            _ if is_to_be_repeated(makes, &result) => "later",
            _ if is_done(makes, &result) => "done",
            ApiResult::Terminated if !makes => "missing",
            ApiResult::Forbidden { .. } => "forbidden",
            _ => "refused",
        }
    }

    #[test]
    fn each_answer_means_one_thing() {
        let forbidden = "events.events.k8s.io is forbidden: User \"a\" cannot create resource \"events\"";
        let ending = "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        for (status, reason, message, made, raised) in [
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
            let answer = answer(status, reason, message);
            assert_eq!(
                (outcome(true, &answer), outcome(false, &answer)),
                (made, raised),
                "{status} {reason}"
            );
        }
        let lost = Err(RequestError::Deadline { after: Duration::from_secs(1) });
        assert_eq!(outcome(true, &lost), "later");
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_asks_within_reason() {
        for (asked, given) in [(0, 1), (7, 7), (86_400, 60)] {
            let retry_after = Some(Duration::from_secs(asked));
            let answer = Ok(Response { status: 429, retry_after, body: Default::default() });
            let pause = Duration::from_secs(given);
            assert_eq!(judge(ApiOperation::CreateEvent, &answer), ApiResult::Throttled { pause });
        }
    }
}
