//! The meaning of a response: a pure function of the operation and the response.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use eviction_core::error::chain;
use eviction_core::progress::{ApiOperation, ApiResult};
use serde::Deserialize;

use crate::error::RequestError;
use crate::request::Response;

/// The pause after a 429 response without a time.
const PAUSE: Duration = Duration::from_secs(1);

/// The maximum pause, even if a server requests a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// `k8s.io/api/policy/v1: DisruptionBudgetCause`.
const DISRUPTION_BUDGET: &str = "DisruptionBudget";

/// `pkg/registry/core/pod/storage/eviction.go`: the response for a pod that several budgets match has no
/// specific reason.
const SEVERAL_BUDGETS: &str = "more than one PodDisruptionBudget";

/// `staging/src/k8s.io/apiserver/pkg/registry/rest: Preconditions`, in the wording of the store.
const OTHER_UID: &str = "UID in precondition";
const OTHER_UID_IN_THE: &str = "UID in the precondition";

/// A text that authorizers use and admission does not: `apierrors.NewForbidden` over
/// `responsewriters.ForbiddenMessage`.
const MISSING_PERMISSION: &str = "is forbidden: User ";

/// The maximum length of a text from the server, in bytes.
const LONGEST_TEXT: usize = 512;

/// The body of a response. All fields are optional: other programs may respond on this port too.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    kind: Option<Box<str>>,
    /// The status of a `Status` is a text; that of a pod is an object.
    status: serde_json::Value,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    causes: Option<Vec<Cause>>,
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
}

/// Returns the meaning of the response to a request.
pub(crate) fn interpret(operation: ApiOperation, result: &Result<Response, RequestError>) -> ApiResult {
    match result {
        Ok(response) => interpret_response(operation, response),
        Err(error) => {
            let why = text(&chain(error));
            match error.may_have_been_carried_out() {
                true => ApiResult::Unknown { why },
                false => ApiResult::NotSent { why },
            }
        }
    }
}

fn interpret_response(operation: ApiOperation, response: &Response) -> ApiResult {
    let body = serde_json::from_slice::<Body>(&response.body).ok();
    let is_status = body.as_ref().is_some_and(|body| body.kind.as_deref() == Some("Status"));
    let message_text = |body: &Body| body.message.as_deref().map(text);
    let why = || {
        let message_text = body.as_ref().and_then(message_text);
        message_text.unwrap_or_else(|| text(&format!("status {} without a reason", response.status)))
    };
    let reason = body.as_ref().and_then(|body| body.reason.as_deref()).unwrap_or("");
    let message = body.as_ref().and_then(|body| body.message.as_deref()).unwrap_or("");
    match response.status {
        // Another server may respond with a page and status 200.
        200..=299 => match &body {
            Some(Body { kind: Some(kind), status, .. })
                if matches!(
                    (&**kind, status.as_str()),
                    ("Status", Some("Success")) | ("Pod" | "Node" | "Event", _)
                ) =>
            {
                ApiResult::Accepted
            }
            _ => ApiResult::Unknown { why: text(&format!("status {} without an object", response.status)) },
        },
        401 => ApiResult::Unauthorized { why: why() },
        403 if message.contains(MISSING_PERMISSION) => ApiResult::Forbidden { why: why() },
        404 if is_status && reason == "NotFound" => ApiResult::Terminated,
        409 if is_other_uid(message) => ApiResult::Replaced,
        // A patch with another uid is rejected as a change of an immutable field.
        422 if matches!(operation, ApiOperation::Condition | ApiOperation::NodeConditions)
            && message.contains("uid") =>
        {
            ApiResult::Replaced
        }
        429 => {
            let details = body.as_ref().and_then(|body| body.details.as_ref());
            match details.and_then(budget) {
                Some(cause) => ApiResult::PdbDenied { why: cause },
                None => {
                    let requested = details.and_then(|details| details.retry_after_seconds);
                    let pause = response.retry_after.or(requested.map(Duration::from_secs)).unwrap_or(PAUSE);
                    ApiResult::Throttled { pause: pause.clamp(PAUSE, LONGEST_PAUSE) }
                }
            }
        }
        500 if operation == ApiOperation::Eviction && message.contains(SEVERAL_BUDGETS) => {
            ApiResult::PdbDenied { why: why() }
        }
        // Includes requests that timed out on the server: they may still be in progress.
        500..=599 => ApiResult::Unknown { why: text(&format!("status {}: {}", response.status, why())) },
        status => ApiResult::Rejected { status, why: why() },
    }
}

fn is_other_uid(message: &str) -> bool {
    message.contains(OTHER_UID_IN_THE) || message.contains(OTHER_UID)
}

/// Returns the text of the budget, if there is one.
fn budget(details: &Details) -> Option<Box<str>> {
    let causes = details.causes.as_deref().unwrap_or_default();
    let cause = causes.iter().find(|cause| cause.reason.as_deref() == Some(DISRUPTION_BUDGET))?;
    Some(cause.message.as_deref().map_or_else(|| DISRUPTION_BUDGET.into(), text))
}

/// Returns the text as one line of limited length.
fn text(from: &str) -> Box<str> {
    let mut line: String = from.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > LONGEST_TEXT {
        let end = (0..=LONGEST_TEXT).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line.into()
}

/// The missing permissions that were logged.
#[derive(Debug, Default)]
pub(crate) struct Permissions {
    missing: Mutex<BTreeSet<ApiOperation>>,
}

impl Permissions {
    /// Logs a missing permission once, until it is granted.
    pub(crate) fn record(&self, operation: ApiOperation, result: &ApiResult) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            ApiResult::Forbidden { why } if missing.insert(operation) => {
                let (verb, resource) = operation.right();
                tracing::error!(
                    verb, resource, %why,
                    help = "add the rule to the ClusterRole of the agent's service account",
                    "a permission is missing"
                );
            }
            ApiResult::Accepted | ApiResult::PdbDenied { .. } => {
                missing.remove(&operation);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
