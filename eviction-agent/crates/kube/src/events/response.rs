//! What an answer about an event means.

use std::time::Duration;

use serde::Deserialize;

use crate::error::RequestError;
use crate::request::Response;
use crate::response::NO_RIGHT;

/// So long nothing is told after a refusal that is the same for everything.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How long a server may ask to be left alone.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The server has it.
    Done,
    /// The event whose count was to be raised is there no more.
    Missing,
    /// It is not taken, and will not be.
    Refused {
        /// In the server's words.
        why: String,
    },
    /// The agent may not tell of events at all.
    Forbidden {
        /// In the server's words.
        why: String,
        /// How long to let it be.
        pause: Duration,
    },
    /// It was not taken, or nobody knows: again after that time, or when the caller sees fit.
    Later {
        /// What the server asked for.
        pause: Option<Duration>,
    },
}

/// As far as it is there: without it the status of the answer says what it means.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    reason: Option<String>,
    message: Option<String>,
}

/// What the answer to a request means that made an event, or raised its count.
///
/// A request of which nobody knows what became may be repeated: an event is made under the same name,
/// and a count is set and not added to.
pub(super) fn judge(makes: bool, result: &Result<Response, RequestError>) -> Told {
    let Ok(answer) = result else { return Told::Later { pause: None } };
    let status: Status = serde_json::from_slice(&answer.body).unwrap_or_default();
    let (reason, message) = (status.reason.unwrap_or_default(), status.message.unwrap_or_default());
    let why = || {
        let words = if message.is_empty() { "no reason given" } else { &message };
        format!("status {}: {}", answer.status, words.chars().take(300).collect::<String>())
    };
    match answer.status {
        200..=299 => Told::Done,
        401 | 408 | 500..=599 => Told::Later { pause: None },
        403 if message.contains(NO_RIGHT) => Told::Forbidden { why: why(), pause: REFUSED_FOR },
        404 if !makes && reason == "NotFound" => Told::Missing,
        // It was made by a request that had no answer.
        409 if makes && reason == "AlreadyExists" => Told::Done,
        409 => Told::Later { pause: None },
        429 => {
            let pause = answer.retry_after.map(|pause| pause.clamp(PAUSES.0, PAUSES.1));
            Told::Later { pause }
        }
        _ => Told::Refused { why: why() },
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
        let name = |told: Told| match told {
            Told::Done => "done",
            Told::Missing => "missing",
            Told::Refused { .. } => "refused",
            Told::Forbidden { .. } => "forbidden",
            Told::Later { .. } => "later",
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
        assert_eq!(judge(true, &lost), Told::Later { pause: None });
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_asks_within_reason() {
        for (asked, given) in [(0, 1), (7, 7), (86_400, 60)] {
            let retry_after = Some(Duration::from_secs(asked));
            let answer = Ok(Response { status: 429, retry_after, body: Default::default() });
            assert_eq!(judge(true, &answer), Told::Later { pause: Some(Duration::from_secs(given)) });
        }
    }
}
