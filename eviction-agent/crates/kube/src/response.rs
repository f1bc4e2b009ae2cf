//! The meaning of a response: a pure function of the operation and the response.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use eviction_core::error::chain;
use eviction_core::progress::{ApiOperation, ApiResult};
use http::Response;
use serde_json::Value;

use crate::error::RequestError;
use crate::request::retry_after;

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

/// A text in the denials of admission webhooks, which have any status (`webhook/errors/statuserror.go`).
const DENIED_BY_WEBHOOK: &str = "denied the request";

/// The text for a webhook that cannot be called and whose failure policy is `Fail` (apiserver,
/// `util/webhook/error.go`).
const WEBHOOK_FAILED: &str = "failed calling webhook";

/// The maximum length of a text from the server, in bytes.
const LONGEST_TEXT: usize = 512;

/// Returns the meaning of the response to a request.
pub(crate) fn interpret(
    operation: ApiOperation,
    result: &Result<Response<Bytes>, RequestError>,
) -> ApiResult {
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

fn interpret_response(operation: ApiOperation, response: &Response<Bytes>) -> ApiResult {
    // Other programs may respond on this port too, so it is not always a valid `Status`.
    let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    let (status, message) = (response.status().as_u16(), body["message"].as_str());
    let why = || match message {
        Some(message) => text(message),
        None => text(&format!("status {status} without a reason")),
    };
    let message_has = |part: &str| message.is_some_and(|message| message.contains(part));
    // It is about this pod only, and the pod is as it was.
    let is_rejected_by_webhook = matches!(operation, ApiOperation::Eviction | ApiOperation::Deletion)
        && (message_has(DENIED_BY_WEBHOOK) || message_has(WEBHOOK_FAILED));
    match status {
        // Another server may respond with a page and status 200.
        200..=299 => match (body["kind"].as_str(), body["status"].as_str()) {
            (Some("Status"), Some("Success")) | (Some("Pod" | "Node" | "Event"), _) => ApiResult::Accepted,
            _ => ApiResult::Unknown { why: text(&format!("status {status} without an object")) },
        },
        401 => ApiResult::Unauthorized { why: why() },
        403 if message_has(MISSING_PERMISSION) => ApiResult::Forbidden { why: why() },
        404 if body["kind"] == "Status" && body["reason"] == "NotFound" => ApiResult::Terminated,
        409 if message_has(OTHER_UID) || message_has(OTHER_UID_IN_THE) => ApiResult::Replaced,
        // A patch with another uid is rejected as a change of an immutable field.
        422 if matches!(operation, ApiOperation::Condition | ApiOperation::NodeConditions)
            && message_has("uid") =>
        {
            ApiResult::Replaced
        }
        429 => match budget(&body["details"]["causes"]) {
            Some(why) => ApiResult::PdbDenied { why },
            // KubeVirt denies the eviction of a VM, and migrates the VM instead.
            None if is_rejected_by_webhook => ApiResult::Rejected { status: 429, why: why() },
            None => {
                let requested = body["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs);
                let pause = retry_after(response.headers()).or(requested).unwrap_or(PAUSE);
                ApiResult::Throttled { pause: pause.clamp(PAUSE, LONGEST_PAUSE) }
            }
        },
        500 if operation == ApiOperation::Eviction && message_has(SEVERAL_BUDGETS) => {
            ApiResult::PdbDenied { why: why() }
        }
        500..=599 if is_rejected_by_webhook => ApiResult::Rejected { status, why: why() },
        // Includes requests that timed out on the server: they may still be in progress.
        500..=599 => ApiResult::Unknown { why: text(&format!("status {status}: {}", why())) },
        _ => ApiResult::Rejected { status, why: why() },
    }
}

/// Returns the text of the budget, if there is one.
fn budget(causes: &Value) -> Option<Box<str>> {
    let cause = causes.as_array()?.iter().find(|cause| cause["reason"] == DISRUPTION_BUDGET)?;
    Some(text(cause["message"].as_str().unwrap_or(DISRUPTION_BUDGET)))
}

/// Returns the text as one line of limited length.
fn text(from: &str) -> Box<str> {
    let mut line: String = from.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > LONGEST_TEXT {
        line.truncate(line.floor_char_boundary(LONGEST_TEXT));
        line.push('…');
    }
    line.into()
}

/// Logs a missing permission once, until it is granted. `missing` has those that were logged.
pub(crate) fn log_missing_permission(
    missing: &mut BTreeSet<ApiOperation>,
    operation: ApiOperation,
    result: &ApiResult,
) {
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

#[cfg(test)]
mod tests;
