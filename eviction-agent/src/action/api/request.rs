//! Requests about one pod, as the API server takes them.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::order::Order;
use crate::api::Request;
use eviction_core::pod::PodName;

/// The condition that says why a pod is ended: KEP-3329.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Its reason, where the Eviction API does not set it.
const REASON: &str = "TerminationByEvictionAgent";

/// Merges lists of conditions by their type; a JSON merge patch would replace the list.
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// No answer of interest is longer: that to a deletion or a patch is the pod itself.
const LARGEST: usize = 4 << 20;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// How long it may take. The server is told, and gives up as well.
    pub(super) within: Duration,
    /// Nothing is to be written: the server checks all, and does none of it.
    pub(super) is_dry: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Eviction<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    delete_options: DeleteOptions<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions<'a> {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    type_meta: Option<TypeMeta>,
    grace_period_seconds: i64,
    preconditions: Uid<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    dry_run: &'static [&'static str],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: &'static str,
    kind: &'static str,
}

#[derive(Serialize)]
struct Uid<'a> {
    uid: &'a str,
}

#[derive(Serialize)]
struct StatusPatch<'a> {
    /// Of another pod the patch is refused.
    metadata: Uid<'a>,
    status: Status<'a>,
}

#[derive(Serialize)]
struct Status<'a> {
    conditions: [Condition<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    r#type: &'static str,
    status: &'static str,
    reason: &'static str,
    message: &'a str,
    last_transition_time: &'a str,
}

/// Asks for an eviction, of which PodDisruptionBudgets have a say: `policy/v1` Eviction.
pub(super) fn eviction(order: &Order, manner: Manner) -> Request {
    let PodName { uid, namespace, name } = &*order.pod;
    let body = Eviction {
        api_version: "policy/v1",
        kind: "Eviction",
        metadata: Metadata { name, namespace },
        delete_options: options(order, uid, manner, None),
    };
    finish(Request::post(path(&order.pod, "/eviction", manner), json(&body)), manner)
}

/// Asks for a deletion, of which nobody else has a say.
pub(super) fn deletion(order: &Order, manner: Manner) -> Request {
    let type_meta = TypeMeta { api_version: "v1", kind: "DeleteOptions" };
    let body = options(order, &order.pod.uid, manner, Some(type_meta));
    finish(Request::delete(path(&order.pod, "", manner), json(&body)), manner)
}

/// Says on the pod why it is about to end.
pub(super) fn disruption_target(pod: &PodName, message: &str, now: &str, manner: Manner) -> Request {
    let condition = Condition {
        r#type: DISRUPTION_TARGET,
        status: "True",
        reason: REASON,
        message,
        last_transition_time: now,
    };
    let body = StatusPatch { metadata: Uid { uid: &pod.uid }, status: Status { conditions: [condition] } };
    finish(Request::patch(path(pod, "/status", manner), STRATEGIC_MERGE, json(&body)), manner)
}

/// Looks at a pod.
pub(super) fn look(pod: &PodName, manner: Manner) -> Request {
    finish(Request::get(path(pod, "", Manner { is_dry: false, ..manner })), manner)
}

fn options<'a>(
    order: &Order,
    uid: &'a str,
    manner: Manner,
    type_meta: Option<TypeMeta>,
) -> DeleteOptions<'a> {
    DeleteOptions {
        type_meta,
        grace_period_seconds: order.grace_period_seconds.max(1),
        preconditions: Uid { uid },
        dry_run: if manner.is_dry { &["All"] } else { &[] },
    }
}

fn finish(request: Request, manner: Manner) -> Request {
    Request { largest: LARGEST, ..request.within(manner.within) }
}

/// What is written here is always JSON; were it not, the server would say so.
pub(super) fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
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

/// Whatever a name is, it is one segment of the path.
pub(super) fn segment(name: &str, path: &mut String) {
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => path.push(byte.into()),
            b'.' if !matches!(name, "." | "..") => path.push('.'),
            _ => {
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use eviction_core::signal::Resource;

    const MANNER: Manner = Manner { within: Duration::from_secs(5), is_dry: false };

    fn order(name: &str, grace_period_seconds: i64) -> Order {
        let pod = PodName { uid: "u-1".into(), namespace: "shop".into(), name: name.into() };
        Order {
            decision: 1,
            at_ns: 0,
            pod: Arc::new(pod),
            grace_period_seconds,
            resource: Resource::Memory,
            ignores_budget: false,
            after_marks: 0,
            is_open: false,
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
        assert!(!look(&order("web", 1).pod, manner).path.contains("dryRun"));
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
            let order = Order { pod: Arc::new(pod), ..order("x", 1) };
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
