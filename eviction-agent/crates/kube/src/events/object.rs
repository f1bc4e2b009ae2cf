//! Events in the form that the API accepts.
//!
//! The rules are in `pkg/apis/core/validation/events.go: ValidateEventCreate` of Kubernetes: `eventTime` has
//! exactly six decimal places, notes have at most 1,024 bytes, and a series has a count of at least two. Only
//! the series may change later.

use std::collections::BTreeMap;

use eviction_core::pod::PodName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;

use crate::request::{Request, push_segment, to_json};

eviction_core::named_enum! {
    /// The reason of an event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// A pod was evicted. The kubelet uses the same reason.
        Evicted = "Evicted",
        /// The kernel killed a process of a container because of an out-of-memory condition.
        ContainerOomKilled = "ContainerOOMKilled",
        /// The kernel killed a process that belongs to no known pod.
        ProcessOomKilled = "ProcessOOMKilled",
        /// An eviction threshold is met. The kubelet uses the same reason.
        ThresholdMet = "EvictionThresholdMet",
        /// The eviction threshold is no longer met.
        ThresholdCleared = "EvictionThresholdCleared",
    }
}

impl Reason {
    /// Returns the `action` of the event.
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Evicted => "Evict",
            Self::ContainerOomKilled | Self::ProcessOomKilled => "KernelOOMKill",
            Self::ThresholdMet | Self::ThresholdCleared => "Observe",
        }
    }

    /// Returns the `type` of the event.
    pub(super) fn severity(self) -> &'static str {
        match self {
            Self::ThresholdCleared => "Normal",
            _ => "Warning",
        }
    }
}

/// An occurrence that is reported by an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Occurrence {
    /// What happened.
    pub reason: Reason,
    /// The object to which it happened: [`pod_reference`] or [`node_reference`].
    pub regarding: ObjectReference,
    /// The part of the object. Occurrences with the same part and reason form one series.
    pub part: Box<str>,
    /// The time, by the system clock.
    pub at: Timestamp,
    /// The text for users. A series keeps that of its first occurrence, since the API does not allow changes
    /// of it.
    pub note: Box<str>,
    /// The data for programs, with the same restriction.
    pub annotations: BTreeMap<String, String>,
    /// The number of times it happened.
    pub times: u64,
}

eviction_core::named_enum! {
    /// The result of an occurrence.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EventResult {
        /// It was noted and will be written. Every occurrence is counted here, and later in one of the other
        /// results.
        Noted = "noted",
        /// It created an event.
        Created = "created",
        /// It is included in the count of a series.
        Counted = "counted",
        /// It was dropped because there were too many, or because the server did not accept it for too long.
        Dropped = "dropped",
        /// The server rejected it.
        Refused = "refused",
    }
}

/// `reportingController`, a qualified name.
const CONTROLLER: &str = "eviction-agent.io/agent";

/// `NoteLengthLimit`, in bytes.
const LONGEST_NOTE: usize = 1024;

/// `ReportingInstanceLengthLimit`, in bytes.
const LONGEST_INSTANCE: usize = 128;

/// `validation.DNS1123SubdomainMaxLength` of apimachinery.
const LONGEST_NAME: usize = 253;

/// The content type of a patch that changes only the given fields.
const MERGE: &str = "application/merge-patch+json";

/// Creates an event that the agent of `node` reports, for `count` occurrences, the last of them at `last`.
pub(super) fn create(
    node: &str,
    name: &str,
    occurrence: &Occurrence,
    count: u64,
    last: Timestamp,
) -> Request {
    let Occurrence { reason, regarding, part: _, at, note, annotations, times: _ } = occurrence;
    let namespace = namespace(regarding);
    let is_of_pod = regarding.kind.as_deref() == Some("Pod");
    let related = is_of_pod.then(|| ObjectReference { uid: None, ..node_reference(node) });
    let instance = format!("eviction-agent-{node}");
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            annotations: Some(annotations.clone()).filter(|all| !all.is_empty()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(*at)),
        series: (count > 1).then(|| series(count, last)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(clip(&instance, LONGEST_INSTANCE).to_owned()),
        action: Some(reason.action().to_owned()),
        reason: Some(reason.name().to_owned()),
        regarding: Some(regarding.clone()),
        related,
        note: Some(clip(note, LONGEST_NOTE).to_owned()),
        type_: Some(reason.severity().to_owned()),
        ..Event::default()
    };
    Request::post(path(namespace, None), to_json(&event))
}

/// Updates the count of an event.
pub(super) fn update_count(name: &str, occurrence: &Occurrence, count: u64, last: Timestamp) -> Request {
    let patch = json!({"series": series(count, last)});
    Request::patch(path(namespace(&occurrence.regarding), Some(name)), MERGE, to_json(&patch))
}

/// Returns a unique name for an event: the name of its object, the time, and a serial number. For an eviction
/// it has the id of the decision instead, so that an agent that was restarted does not create the event
/// again.
pub(super) fn name(occurrence: &Occurrence, serial: u64) -> String {
    let object_name = occurrence.regarding.name.as_deref().unwrap_or_default();
    let end = match occurrence.reason {
        Reason::Evicted => format!(".{}", occurrence.part),
        _ => format!(".{:x}-{serial:x}", occurrence.at.as_nanosecond().max(0)),
    };
    // The last label must not end with a separator after the cut.
    let begin = clip(object_name, LONGEST_NAME.saturating_sub(end.len())).trim_end_matches(['.', '-']);
    format!("{begin}{end}")
}

/// Returns the reference to a pod.
pub(super) fn pod_reference(pod: &PodName) -> ObjectReference {
    let PodName { uid, namespace, name } = pod;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_string()),
        name: Some(name.to_string()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}

/// Returns the reference to a node. Its uid is its name, as in the kubelet: tools that show a node's events
/// look for it.
pub(super) fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Returns the namespace of events on this object.
fn namespace(regarding: &ObjectReference) -> &str {
    regarding.namespace.as_deref().unwrap_or("default")
}

fn series(count: u64, last: Timestamp) -> EventSeries {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    EventSeries { count, last_observed_time: MicroTime(last) }
}

fn path(namespace: &str, name: Option<&str>) -> String {
    let mut path = String::from("/apis/events.k8s.io/v1/namespaces/");
    push_segment(namespace, &mut path);
    path.push_str("/events");
    if let Some(name) = name {
        path.push('/');
        push_segment(name, &mut path);
    }
    path
}

/// Returns the beginning of a text, of at most `longest` bytes.
fn clip(text: &str, longest: usize) -> &str {
    &text[..text.floor_char_boundary(longest)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use eviction_core::pod::PodName;

    fn body(request: &Request) -> Value {
        serde_json::from_slice(&request.body.as_ref().unwrap().1).unwrap()
    }

    fn at(nanosecond: i64) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(nanosecond)).unwrap()
    }

    fn evicted(name: &str, note: &str) -> Occurrence {
        Occurrence {
            reason: Reason::Evicted,
            regarding: pod_reference(&PodName {
                uid: "u-1".into(),
                namespace: "shop".into(),
                name: name.into(),
            }),
            part: "19a8f3-7".into(),
            at: at(1_767_600_000_000_000_000),
            note: note.into(),
            annotations: [("starved_resource".into(), "memory".into())].into(),
            times: 1,
        }
    }

    #[test]
    fn pod_event_has_the_form_that_the_api_requires() {
        let occurrence = evicted("web", "The node was low on resource: memory. ");
        let request = create("n1", "web.1", &occurrence, 1, occurrence.at);
        assert_eq!(request.path, "/apis/events.k8s.io/v1/namespaces/shop/events");
        let wanted = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "web.1", "namespace": "shop", "annotations": {"starved_resource": "memory"}},
            "eventTime": "2026-01-05T08:00:00.000000Z",
            "reportingController": "eviction-agent.io/agent",
            "reportingInstance": "eviction-agent-n1",
            "action": "Evict",
            "reason": "Evicted",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u-1"},
            "related": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            "note": "The node was low on resource: memory. ",
            "type": "Warning",
        });
        assert_eq!(body(&request), wanted);
    }

    #[test]
    fn a_series_has_a_count_and_the_last_time() {
        let occurrence = evicted("web", "");
        let last = at(1_767_600_001_500_000_999);
        let series = json!({"count": 3, "lastObservedTime": "2026-01-05T08:00:01.500000Z"});
        let created = create("n1", "web.1", &occurrence, 3, last);
        assert_eq!(body(&created)["series"], series);
        let updated = update_count("web.1", &occurrence, 3, last);
        assert_eq!(updated.path, "/apis/events.k8s.io/v1/namespaces/shop/events/web.1");
        assert_eq!(updated.body.as_ref().unwrap().0, "application/merge-patch+json");
        assert_eq!(body(&updated), json!({"series": series}));
        assert_eq!(body(&update_count("web.1", &occurrence, u64::MAX, last))["series"]["count"], i32::MAX);
    }

    #[test]
    fn an_event_on_a_node_is_in_the_namespace_default() {
        let occurrence = Occurrence {
            reason: Reason::ThresholdCleared,
            regarding: node_reference("n1"),
            annotations: BTreeMap::new(),
            ..evicted("", "")
        };
        let event = body(&create("n1", "n1.1", &occurrence, 1, occurrence.at));
        assert_eq!(
            event["regarding"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"})
        );
        assert_eq!(
            (&event["metadata"], &event["type"]),
            (&json!({"name": "n1.1", "namespace": "default"}), &json!("Normal"))
        );
        assert_eq!(event.get("related"), None);
    }

    #[test]
    fn texts_are_cut_to_the_length_limits_of_the_api() {
        let occurrence = evicted("web", &"ü".repeat(600));
        let event = body(&create(&"n".repeat(253), "web.1", &occurrence, 1, occurrence.at));
        assert_eq!(event["note"].as_str().unwrap().len(), 1024);
        assert_eq!(event["reportingInstance"].as_str().unwrap().len(), 128);
    }

    #[test]
    fn eviction_event_name_depends_only_on_pod_and_decision() {
        let later = Occurrence { at: at(7), note: "The pod was evicted.".into(), ..evicted("web", "") };
        assert_eq!(
            (name(&evicted("web", ""), 1), name(&later, 2)),
            ("web.19a8f3-7".into(), "web.19a8f3-7".into())
        );
        let kill =
            |serial| name(&Occurrence { reason: Reason::ContainerOomKilled, ..evicted("web", "") }, serial);
        assert_ne!(kill(1), kill(2));
    }

    proptest! {
        #[test]
        fn names_of_events_are_dns_names(pod in "[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", nanosecond in 0..i64::MAX, serial: u64) {
            prop_assume!(!pod.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')));
            for reason in [Reason::Evicted, Reason::ContainerOomKilled] {
                let name = name(&Occurrence { reason, at: at(nanosecond), ..evicted(&pod, "") }, serial);
                prop_assert!(name.len() <= LONGEST_NAME, "{name}");
                for label in name.split('.') {
                    prop_assert!(!label.is_empty() && !label.starts_with('-') && !label.ends_with('-'), "{name}");
                }
            }
        }
    }
}
