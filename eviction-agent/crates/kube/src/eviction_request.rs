//! The eviction of a pod as it was decided, and the requests that it takes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::ApiOperation;
use eviction_core::signal::Resource;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use serde_json::json;

use crate::request::{Request, segment, to_json};

/// The condition that says why a pod is ended: KEP-3329.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Its reason, where the Eviction API does not set it.
const REASON: &str = "TerminationByEvictionAgent";

/// Merges lists of conditions by their type; a JSON merge patch would replace the list.
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// No response of interest is longer: that to a deletion or a patch is the pod itself.
const LARGEST: usize = 4 << 20;

/// The eviction of a pod, as it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRequest {
    /// Number of the decision; outcomes carry it.
    pub decision: u64,
    /// When it was decided: CLOCK_MONOTONIC in nanoseconds. Too old a decision is not carried out.
    pub at_ns: u64,
    /// Which pod.
    pub pod: Arc<PodName>,
    /// How long it may take to end. Less than a second is a second: with 0 the API server takes
    /// the object away at once, and its containers run on.
    pub grace_period_seconds: i64,
    /// What the node is short of.
    pub resource: Resource,
    /// Its PodDisruptionBudget does not allow the eviction: it is deleted.
    pub ignores_budget: bool,
    /// The node status that is written first: the number of the update, 0 if there is none to wait for.
    pub after_update: u64,
    /// It was requested before, and its result is unknown: that is found out, and nothing requested.
    pub is_unconfirmed: bool,
}

impl EvictionRequest {
    /// What is requested.
    pub(crate) fn operation(&self) -> ApiOperation {
        if self.ignores_budget { ApiOperation::Deletion } else { ApiOperation::Eviction }
    }
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// How long it may take. The server gives up then as well.
    pub(crate) within: Duration,
    /// Nothing is to be written: the server checks all, and does none of it.
    pub(crate) is_dry: bool,
}

/// Requests an eviction, which PodDisruptionBudgets can refuse.
///
/// kube's `Api::evict` would send `delete_options`, a field that the API does not have: neither uid nor
/// grace period would count.
pub(crate) fn eviction(order: &EvictionRequest, manner: Manner) -> Request {
    let PodName { uid: _, namespace, name } = &*order.pod;
    let metadata = ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(namespace.to_string()),
        ..ObjectMeta::default()
    };
    let body = Eviction { delete_options: Some(options(order, manner)), metadata };
    finish(Request::post(path(&order.pod, "/eviction", manner), to_json(&body)), manner)
}

/// Requests a deletion, which they cannot.
pub(crate) fn deletion(order: &EvictionRequest, manner: Manner) -> Request {
    let body = DeleteOptions {
        api_version: Some("v1".to_owned()),
        kind: Some("DeleteOptions".to_owned()),
        ..options(order, manner)
    };
    finish(Request::delete(path(&order.pod, "", manner), to_json(&body)), manner)
}

/// Says on the pod why it is about to end.
pub(crate) fn disruption_target(pod: &PodName, message: &str, now: &str, manner: Manner) -> Request {
    let condition = json!({
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": REASON,
        "message": message,
        "lastTransitionTime": now,
    });
    // Of another pod the patch is refused.
    let body = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    finish(Request::patch(path(pod, "/status", manner), STRATEGIC_MERGE, to_json(&body)), manner)
}

/// Looks at a pod.
pub(crate) fn read(pod: &PodName, manner: Manner) -> Request {
    finish(Request::get(path(pod, "", Manner { is_dry: false, ..manner })), manner)
}

fn options(order: &EvictionRequest, manner: Manner) -> DeleteOptions {
    let preconditions = Preconditions { uid: Some(order.pod.uid.to_string()), resource_version: None };
    DeleteOptions {
        grace_period_seconds: Some(order.grace_period_seconds.max(1)),
        preconditions: Some(preconditions),
        dry_run: manner.is_dry.then(|| vec!["All".to_owned()]),
        ..DeleteOptions::default()
    }
}

fn finish(request: Request, manner: Manner) -> Request {
    Request { largest: LARGEST, ..request.within(manner.within) }
}

fn path(pod: &PodName, subresource: &str, manner: Manner) -> String {
    let mut path = String::from("/api/v1/namespaces/");
    segment(&pod.namespace, &mut path);
    path.push_str("/pods/");
    segment(&pod.name, &mut path);
    path.push_str(subresource);
    // In whole seconds, the last one begun included: the server never gives up before we do.
    let seconds = manner.within.as_secs().saturating_add(1);
    // Writing to a string cannot fail.
    let _ = write!(path, "?timeout={seconds}s");
    if manner.is_dry {
        path.push_str("&dryRun=All");
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const MANNER: Manner = Manner { within: Duration::from_secs(5), is_dry: false };

    fn order(name: &str, grace_period_seconds: i64) -> EvictionRequest {
        let pod = PodName { uid: "u-1".into(), namespace: "shop".into(), name: name.into() };
        EvictionRequest {
            decision: 1,
            at_ns: 0,
            pod: Arc::new(pod),
            grace_period_seconds,
            resource: Resource::Memory,
            ignores_budget: false,
            after_update: 0,
            is_unconfirmed: false,
        }
    }

    fn body(request: &Request) -> Value {
        serde_json::from_slice(&request.body.as_ref().unwrap().1).unwrap()
    }

    #[test]
    fn an_eviction_names_the_uid_and_a_grace_of_at_least_a_second() {
        for (grace, sent) in [(i64::MIN, 1), (-1, 1), (0, 1), (1, 1), (30, 30), (i64::MAX, i64::MAX)] {
            let request = eviction(&order("web.1", grace), MANNER);
            assert_eq!(request.path, "/api/v1/namespaces/shop/pods/web.1/eviction?timeout=6s");
            assert_eq!(request.within, MANNER.within);
            let wanted = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "web.1", "namespace": "shop"},
                "deleteOptions": {"gracePeriodSeconds": sent, "preconditions": {"uid": "u-1"}},
            });
            assert_eq!(body(&request), wanted);
            let request = deletion(&order("web.1", grace), MANNER);
            assert_eq!(request.path, "/api/v1/namespaces/shop/pods/web.1?timeout=6s");
            let wanted = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": sent,
                "preconditions": {"uid": "u-1"},
            });
            assert_eq!(body(&request), wanted);
        }
    }

    #[test]
    fn a_dry_run_says_so_twice() {
        let manner = Manner { is_dry: true, ..MANNER };
        let request = eviction(&order("web", 1), manner);
        assert!(request.path.ends_with("?timeout=6s&dryRun=All"), "{}", request.path);
        assert_eq!(body(&request)["deleteOptions"]["dryRun"], json!(["All"]));
        assert_eq!(body(&deletion(&order("web", 1), manner))["dryRun"], json!(["All"]));
        let patch = disruption_target(&order("web", 1).pod, "why", "2026-01-05T08:00:00Z", manner);
        assert!(patch.path.ends_with("/pods/web/status?timeout=6s&dryRun=All"), "{}", patch.path);
        assert!(!read(&order("web", 1).pod, manner).path.contains("dryRun"));
    }

    #[test]
    fn the_condition_is_merged_into_that_very_pod() {
        let request =
            disruption_target(&order("web", 1).pod, "memory \"low\"", "2026-01-05T08:00:00Z", MANNER);
        assert_eq!(request.body.as_ref().unwrap().0, "application/strategic-merge-patch+json");
        let wanted = json!({
            "metadata": {"uid": "u-1"},
            "status": {"conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "TerminationByEvictionAgent",
                "message": "memory \"low\"",
                "lastTransitionTime": "2026-01-05T08:00:00Z",
            }]},
        });
        assert_eq!(body(&request), wanted);
    }

    proptest! {
        #[test]
        fn no_name_leaves_its_place_in_the_path(namespace in ".{1,12}", name in "(\\.{1,3}|.{1,12}|[a-z/?#%.]{1,12})") {
            let pod = PodName { uid: "u".into(), namespace: namespace.as_str().into(), name: name.as_str().into() };
            let order = EvictionRequest { pod: Arc::new(pod), ..order("x", 1) };
            let request = eviction(&order, MANNER);
            let rest = request.path.strip_prefix("/api/v1/namespaces/").unwrap();
            let parts: Vec<&str> = rest.split('/').collect();
            prop_assert_eq!(parts.len(), 4, "{}", request.path);
            prop_assert_eq!((parts[1], parts[3]), ("pods", "eviction?timeout=6s"));
            for part in [parts[0], parts[2]] {
                prop_assert!(part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)));
                prop_assert!(!matches!(part, "." | ".."));
            }
        }
    }
}
