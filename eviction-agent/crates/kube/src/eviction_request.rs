//! The eviction of a pod as it was decided, and the requests for it.

use std::sync::Arc;
use std::time::Duration;

use eviction_core::pod::PodName;
use eviction_core::progress::ApiOperation;
use eviction_core::signal::Resource;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use serde_json::json;

use crate::request::{Request, STRATEGIC_MERGE, push_segment, to_json};

/// The condition with the reason why a pod is terminated (KEP-3329).
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The reason of that condition when the Eviction API does not set it.
const REASON: &str = "TerminationByEvictionAgent";

/// The eviction of a pod, as it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRequest {
    /// The number of the decision; results contain it.
    pub decision: u64,
    /// The time of the decision: CLOCK_MONOTONIC in nanoseconds. Decisions that are too old are not carried
    /// out.
    pub at_ns: u64,
    /// The pod.
    pub pod: Arc<PodName>,
    /// The grace period. Values below one second are sent as one second: with 0 the API server deletes the
    /// object at once, while its containers continue to run.
    pub grace_period_seconds: i64,
    /// The resource that the node is short of.
    pub resource: Resource,
    /// Whether the pod is deleted, because its PodDisruptionBudget does not allow the eviction.
    pub ignores_budget: bool,
    /// The number of the node status update that must be written first; 0 if there is none to wait for.
    pub after_update: u64,
    /// Whether the request was sent before with an unknown result. Then the result is determined, and no
    /// request is sent.
    pub is_unconfirmed: bool,
}

impl EvictionRequest {
    /// Returns the operation of the request.
    pub(crate) fn operation(&self) -> ApiOperation {
        if self.ignores_budget { ApiOperation::Deletion } else { ApiOperation::Eviction }
    }
}

/// Returns the request for an eviction, which PodDisruptionBudgets can deny.
///
/// kube's `Api::evict` is not used, because it sends the field `delete_options`, which the API does not have:
/// uid and grace period would be ignored.
pub(crate) fn eviction(order: &EvictionRequest, within: Duration, is_dry: bool) -> Request {
    let PodName { uid: _, namespace, name } = &*order.pod;
    let metadata = ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(namespace.to_string()),
        ..ObjectMeta::default()
    };
    let body = Eviction { delete_options: Some(delete_options(order, is_dry)), metadata };
    Request::post(path(&order.pod, "/eviction"), to_json(&body)).on_server(within, is_dry)
}

/// Returns the request for a deletion, which PodDisruptionBudgets cannot deny.
pub(crate) fn deletion(order: &EvictionRequest, within: Duration, is_dry: bool) -> Request {
    let body = DeleteOptions {
        api_version: Some("v1".to_owned()),
        kind: Some("DeleteOptions".to_owned()),
        ..delete_options(order, is_dry)
    };
    Request::delete(path(&order.pod, ""), to_json(&body)).on_server(within, is_dry)
}

/// Returns the request that sets the condition with the reason of the termination on the pod.
pub(crate) fn disruption_target(
    pod: &PodName,
    message: &str,
    now: Timestamp,
    within: Duration,
    is_dry: bool,
) -> Request {
    let condition = json!({
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": REASON,
        "message": message,
        // In whole seconds, as the API does.
        "lastTransitionTime": format!("{now:.0}"),
    });
    // With the uid, the server rejects the patch for another pod.
    let body = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    Request::patch(path(pod, "/status"), STRATEGIC_MERGE, to_json(&body)).on_server(within, is_dry)
}

/// Returns the request that reads a pod.
pub(crate) fn read(pod: &PodName, within: Duration) -> Request {
    Request::get(path(pod, "")).on_server(within, false)
}

fn delete_options(order: &EvictionRequest, is_dry: bool) -> DeleteOptions {
    let preconditions = Preconditions { uid: Some(order.pod.uid.to_string()), resource_version: None };
    DeleteOptions {
        grace_period_seconds: Some(order.grace_period_seconds.max(1)),
        preconditions: Some(preconditions),
        dry_run: is_dry.then(|| vec!["All".to_owned()]),
        ..DeleteOptions::default()
    }
}

fn path(pod: &PodName, subresource: &str) -> String {
    let mut path = String::from("/api/v1/namespaces/");
    push_segment(&pod.namespace, &mut path);
    path.push_str("/pods/");
    push_segment(&pod.name, &mut path);
    path.push_str(subresource);
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

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
    fn eviction_and_deletion_have_the_uid_and_at_least_1_s_of_grace() {
        for (grace, sent) in [(i64::MIN, 1), (-1, 1), (0, 1), (1, 1), (30, 30), (i64::MAX, i64::MAX)] {
            let request = eviction(&order("web.1", grace), WITHIN, false);
            assert_eq!(request.path, "/api/v1/namespaces/shop/pods/web.1/eviction?timeout=6s");
            assert_eq!(request.within, WITHIN);
            let wanted = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "web.1", "namespace": "shop"},
                "deleteOptions": {"gracePeriodSeconds": sent, "preconditions": {"uid": "u-1"}},
            });
            assert_eq!(body(&request), wanted);
            let request = deletion(&order("web.1", grace), WITHIN, false);
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
    fn dry_run_is_in_the_query_and_in_the_body() {
        let request = eviction(&order("web", 1), WITHIN, true);
        assert!(request.path.ends_with("?timeout=6s&dryRun=All"), "{}", request.path);
        assert_eq!(body(&request)["deleteOptions"]["dryRun"], json!(["All"]));
        assert_eq!(body(&deletion(&order("web", 1), WITHIN, true))["dryRun"], json!(["All"]));
        let patch = disruption_target(&order("web", 1).pod, "why", Timestamp::UNIX_EPOCH, WITHIN, true);
        assert!(patch.path.ends_with("/pods/web/status?timeout=6s&dryRun=All"), "{}", patch.path);
        assert!(!read(&order("web", 1).pod, WITHIN).path.contains("dryRun"));
    }

    #[test]
    fn condition_patch_has_the_uid_of_the_pod_and_whole_seconds() {
        let now = Timestamp::new(1_767_600_000, 999_999_999).unwrap();
        let request = disruption_target(&order("web", 1).pod, "memory \"low\"", now, WITHIN, false);
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
        fn names_are_escaped_to_one_path_segment(namespace in ".{1,12}", name in "(\\.{1,3}|.{1,12}|[a-z/?#%.]{1,12})") {
            let pod = PodName { uid: "u".into(), namespace: namespace.as_str().into(), name: name.as_str().into() };
            let order = EvictionRequest { pod: Arc::new(pod), ..order("x", 1) };
            let request = eviction(&order, WITHIN, false);
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
