//! Takes occurrences, and writes them to the API server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eviction_core::time::nanos;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::correlator::{Correlator, EventRequest, Next};
use super::object::Occurrence;
use crate::backoff::{Backoff, now_ns};
use crate::client::Client;
use crate::error::RequestError;
use crate::metrics::Observer;
use crate::request::Response;
use crate::response::NO_RIGHT;

/// The pause after a failure, at first and at most, and what a server may ask for.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Where occurrences are noted. Cloning shares all.
#[derive(Clone, Debug)]
pub struct Recorder {
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
    pub fn new(node: &str, observer: Observer) -> Self {
        let correlator = Mutex::new(Correlator::new(node, now_ns(), observer));
        Self { shared: Arc::new(Shared { correlator, changed: Notify::new() }) }
    }

    /// Takes an occurrence. Waits for nothing but others that do the same.
    pub fn note(&self, occurrence: Occurrence) {
        self.shared.correlator().note(occurrence, now_ns());
        self.shared.changed.notify_one();
    }

    /// Writes what is noted, one request at a time, for ever. Needs a tokio runtime.
    pub async fn run(self, client: Client) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut is_forbidden = false;
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
                    let response = judge(request.makes, &client.request(request.request.clone()).await);
                    let pause = match &response {
                        EventResponse::Later { .. } => backoff.pause(),
                        _ => {
                            backoff.reset();
                            Duration::ZERO
                        }
                    };
                    log(&request, &response, &mut is_forbidden);
                    self.shared.correlator().responded(&request, &response, nanos(pause), now_ns());
                }
            }
        }
    }
}

/// Logs what people have to do something about; a missing permission once.
fn log(request: &EventRequest, response: &EventResponse, is_forbidden: &mut bool) {
    match response {
        EventResponse::Forbidden { why, .. } if !*is_forbidden => {
            *is_forbidden = true;
            tracing::error!(
                verb = if request.makes { "create" } else { "patch" },
                resource = "events.events.k8s.io",
                why,
                help = "add the rule to the ClusterRole of the agent's service account",
                "a permission is missing"
            );
        }
        EventResponse::Refused { why } => {
            tracing::warn!(reason = request.reason().name(), why, "the API server does not take an event");
        }
        EventResponse::Done => *is_forbidden = false,
        EventResponse::Forbidden { .. } | EventResponse::Missing | EventResponse::Later { .. } => {}
    }
}

/// How long nothing is written after a refusal that is the same for everything.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// What a response means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventResponse {
    /// The server has it.
    Done,
    /// The event whose count was to be raised is there no more.
    Missing,
    /// It is not accepted, and will not be.
    Refused {
        /// In the server's words.
        why: String,
    },
    /// The agent may not write Events at all.
    Forbidden {
        /// In the server's words.
        why: String,
        /// How long to let it be.
        pause: Duration,
    },
    /// It was not accepted, or that is unknown: again after that time, or when the caller decides.
    Later {
        /// What the server asked for.
        pause: Option<Duration>,
    },
}

/// As far as it is there: without it the HTTP status decides.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    reason: Option<String>,
    message: Option<String>,
}

/// What the response to a request means that creates an Event, or raises its count.
///
/// A request with an unknown result may be repeated: an event is made under the same name,
/// and a count is set and not added to.
pub(super) fn judge(makes: bool, result: &Result<Response, RequestError>) -> EventResponse {
    let Ok(answer) = result else { return EventResponse::Later { pause: None } };
    let status: Status = serde_json::from_slice(&answer.body).unwrap_or_default();
    let (reason, message) = (status.reason.unwrap_or_default(), status.message.unwrap_or_default());
    let why = || {
        let words = if message.is_empty() { "no reason given" } else { &message };
        format!("status {}: {}", answer.status, words.chars().take(300).collect::<String>())
    };
    match answer.status {
        200..=299 => EventResponse::Done,
        401 | 408 | 500..=599 => EventResponse::Later { pause: None },
        403 if message.contains(NO_RIGHT) => EventResponse::Forbidden { why: why(), pause: REFUSED_FOR },
        404 if !makes && reason == "NotFound" => EventResponse::Missing,
        // It was made by a request that had no answer.
        409 if makes && reason == "AlreadyExists" => EventResponse::Done,
        409 => EventResponse::Later { pause: None },
        429 => {
            let pause = answer.retry_after.map(|pause| pause.clamp(PAUSES.0, PAUSES.1));
            EventResponse::Later { pause }
        }
        _ => EventResponse::Refused { why: why() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, reason: &str, message: &str) -> Result<Response, RequestError> {
        let body = serde_json::json!({"kind": "Status", "reason": reason, "message": message}).to_string();
        Ok(Response { status, retry_after: None, body: body.into() })
    }

    #[test]
    fn each_answer_means_one_thing() {
        let forbidden = "events.events.k8s.io is forbidden: User \"a\" cannot create resource \"events\"";
        let ending = "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        let name = |told: EventResponse| match told {
            EventResponse::Done => "done",
            EventResponse::Missing => "missing",
            EventResponse::Refused { .. } => "refused",
            EventResponse::Forbidden { .. } => "forbidden",
            EventResponse::Later { .. } => "later",
        };
        for (status, reason, message, made, raised) in [
            (201, "", "", "done", "done"),
            (400, "BadRequest", "", "refused", "refused"),
            (401, "Unauthorized", "", "later", "later"),
            (403, "Forbidden", forbidden, "forbidden", "forbidden"),
            (403, "Forbidden", ending, "refused", "refused"),
            (404, "NotFound", "namespaces \"shop\" not found", "refused", "missing"),
            (404, "", "page not found", "refused", "refused"),
            (409, "AlreadyExists", "", "done", "later"),
            (409, "Conflict", "", "later", "later"),
            (422, "Invalid", "", "refused", "refused"),
            (429, "TooManyRequests", "", "later", "later"),
            (500, "", "", "later", "later"),
            (504, "Timeout", "", "later", "later"),
        ] {
            let answer = answer(status, reason, message);
            assert_eq!(
                (name(judge(true, &answer)), name(judge(false, &answer))),
                (made, raised),
                "{status} {reason}"
            );
        }
        let lost = Err(RequestError::Deadline { after: Duration::from_secs(1) });
        assert_eq!(judge(true, &lost), EventResponse::Later { pause: None });
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_asks_within_reason() {
        for (asked, given) in [(0, 1), (7, 7), (86_400, 60)] {
            let retry_after = Some(Duration::from_secs(asked));
            let answer = Ok(Response { status: 429, retry_after, body: Default::default() });
            assert_eq!(
                judge(true, &answer),
                EventResponse::Later { pause: Some(Duration::from_secs(given)) }
            );
        }
    }
}
