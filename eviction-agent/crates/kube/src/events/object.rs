//! Events as the API takes them.
//!
//! `pkg/apis/core/validation/events.go: ValidateEventCreate` of Kubernetes has what is valid:
//! `eventTime` with exactly six digits after the point, notes of up to 1,024 bytes, and of a series
//! a count of at least two. Later nothing but the series may change.

use std::collections::BTreeMap;
use std::time::Duration;

use eviction_core::pod::PodName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;

use crate::request::{Request, segment, to_json};

eviction_core::named_enum! {
    /// What happened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// A pod was evicted: the kubelet's word for it.
        Evicted = "Evicted",
        /// The kernel killed a process of a container for want of memory.
        ContainerOomKilled = "ContainerOOMKilled",
        /// The kernel killed a process that is of no known pod.
        ProcessOomKilled = "ProcessOOMKilled",
        /// An eviction threshold is met: the kubelet's word for it.
        ThresholdMet = "EvictionThresholdMet",
        /// It is so no more.
        ThresholdCleared = "EvictionThresholdCleared",
    }
}

impl Reason {
    /// `action` of the event.
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Evicted => "Evict",
            Self::ContainerOomKilled | Self::ProcessOomKilled => "KernelOOMKill",
            Self::ThresholdMet | Self::ThresholdCleared => "Observe",
        }
    }

    /// `type` of the event.
    pub(super) fn severity(self) -> &'static str {
        match self {
            Self::ThresholdCleared => "Normal",
            _ => "Warning",
        }
    }
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Regarding {
    /// A pod.
    Pod(PodName),
    /// The node of that name.
    Node(Box<str>),
}

impl Regarding {
    /// What is unique to it.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Pod(pod) => &pod.uid,
            Self::Node(name) => name,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Occurrence {
    /// What.
    pub reason: Reason,
    /// To what.
    pub regarding: Regarding,
    /// To which part of it: what is of the same part, for the same reason, is one series.
    pub part: Box<str>,
    /// When, by the system's clock.
    pub at: Timestamp,
    /// For people; of a series the first one's stays, since the API lets it not be changed.
    pub note: Box<str>,
    /// For programs, likewise.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// How often it happened at once.
    pub times: u64,
}

eviction_core::named_enum! {
    /// What became of an occurrence.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EventResult {
        /// It is to be written. Every occurrence is counted here, and in one of the others once that is known.
        Noted = "noted",
        /// It made an event.
        Created = "created",
        /// It is in the count of a series.
        Counted = "counted",
        /// There was no room for it, or for too long no server that would take it.
        Dropped = "dropped",
        /// The server does not accept it.
        Refused = "refused",
    }
}

/// `reportingController`, a qualified name.
const CONTROLLER: &str = "eviction-agent.io/agent";

/// `NoteLengthLimit`, bytes.
const LONGEST_NOTE: usize = 1024;

/// `ReportingInstanceLengthLimit`, bytes.
const LONGEST_INSTANCE: usize = 128;

/// `validation.DNS1123SubdomainMaxLength` of apimachinery.
const LONGEST_NAME: usize = 253;

/// Events of what has no namespace are in this one.
const NO_NAMESPACE: &str = "default";

/// Changes what is given and leaves the rest.
const MERGE: &str = "application/merge-patch+json";

/// How long a response may take. An Event is not urgent.
const WITHIN: Duration = Duration::from_secs(10);

/// Who reports Events, and from where.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    node: Box<str>,
    instance: Box<str>,
}

impl Reporter {
    pub(super) fn new(node: &str) -> Self {
        let instance = format!("eviction-agent-{node}");
        Self { node: node.into(), instance: clip(&instance, LONGEST_INSTANCE).into() }
    }

    /// Makes an event that stands for so many occurrences, the last of which was then.
    pub(super) fn create(&self, name: &str, what: &Occurrence, count: u64, last: Timestamp) -> Request {
        let Occurrence { reason, regarding, part: _, at, note, annotations, times: _ } = what;
        let namespace = namespace(regarding);
        let (regarding, related) = match regarding {
            Regarding::Pod(pod) => (of_pod(pod), Some(of_node(&self.node, None))),
            // As the kubelet does: what shows a node's events looks for its name as a uid.
            Regarding::Node(name) => (of_node(name, Some(name)), None),
        };
        let annotations = annotations.iter().map(|(key, text)| (key.to_string(), text.to_string()));
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                annotations: Some(annotations.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(*at)),
            series: (count > 1).then(|| series(count, last)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            action: Some(reason.action().to_owned()),
            reason: Some(reason.name().to_owned()),
            regarding: Some(regarding),
            related,
            note: Some(clip(note, LONGEST_NOTE).to_owned()),
            type_: Some(reason.severity().to_owned()),
            ..Event::default()
        };
        Request::post(path(namespace, None), to_json(&event)).within(WITHIN)
    }
}

/// Raises the count of an event.
pub(super) fn raise(name: &str, what: &Occurrence, count: u64, last: Timestamp) -> Request {
    let patch = json!({"series": series(count, last)});
    Request::patch(path(namespace(&what.regarding), Some(name)), MERGE, to_json(&patch)).within(WITHIN)
}

/// A name that no other event has: that of its object, the time, and a number of ours. An eviction's
/// is that of its decision instead: an agent that was started anew does not create it again.
pub(super) fn name(what: &Occurrence, serial: u64) -> String {
    let of = match &what.regarding {
        Regarding::Pod(pod) => &*pod.name,
        Regarding::Node(name) => &**name,
    };
    let end = match what.reason {
        Reason::Evicted => format!(".{}", what.part),
        _ => format!(".{:x}-{serial:x}", what.at.as_nanosecond().max(0)),
    };
    // A label must not end with what is left of a longer one.
    let begin = clip(of, LONGEST_NAME.saturating_sub(end.len())).trim_end_matches(['.', '-']);
    format!("{begin}{end}")
}

fn of_pod(pod: &PodName) -> ObjectReference {
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

fn of_node(name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

fn namespace(regarding: &Regarding) -> &str {
    match regarding {
        Regarding::Pod(pod) => &pod.namespace,
        Regarding::Node(_) => NO_NAMESPACE,
    }
}

fn series(count: u64, last: Timestamp) -> EventSeries {
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    EventSeries { count, last_observed_time: MicroTime(last) }
}

fn path(namespace: &str, name: Option<&str>) -> String {
    let mut path = String::from("/apis/events.k8s.io/v1/namespaces/");
    segment(namespace, &mut path);
    path.push_str("/events");
    if let Some(name) = name {
        path.push('/');
        segment(name, &mut path);
    }
    path
}

/// As much of a text as there is room for.
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
            regarding: Regarding::Pod(PodName {
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
    fn an_event_on_a_pod_is_as_the_api_wants_it() {
        let what = evicted("web", "The node was low on resource: memory. ");
        let request = Reporter::new("n1").create("web.1", &what, 1, what.at);
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
        let what = evicted("web", "");
        let last = at(1_767_600_001_500_000_999);
        let series = json!({"count": 3, "lastObservedTime": "2026-01-05T08:00:01.500000Z"});
        let made = Reporter::new("n1").create("web.1", &what, 3, last);
        assert_eq!(body(&made)["series"], series);
        let raised = raise("web.1", &what, 3, last);
        assert_eq!(raised.path, "/apis/events.k8s.io/v1/namespaces/shop/events/web.1");
        assert_eq!(raised.body.as_ref().unwrap().0, "application/merge-patch+json");
        assert_eq!(body(&raised), json!({"series": series}));
        assert_eq!(body(&raise("web.1", &what, u64::MAX, last))["series"]["count"], i32::MAX);
    }

    #[test]
    fn an_event_on_a_node_is_in_the_namespace_default() {
        let what = Occurrence {
            reason: Reason::ThresholdCleared,
            regarding: Regarding::Node("n1".into()),
            annotations: BTreeMap::new(),
            ..evicted("", "")
        };
        let event = body(&Reporter::new("n1").create("n1.1", &what, 1, what.at));
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
    fn texts_are_no_longer_than_the_api_takes() {
        let what = evicted("web", &"ü".repeat(600));
        let event = body(&Reporter::new(&"n".repeat(253)).create("web.1", &what, 1, what.at));
        assert_eq!(event["note"].as_str().unwrap().len(), 1024);
        assert_eq!(event["reportingInstance"].as_str().unwrap().len(), 128);
    }

    #[test]
    fn an_eviction_has_one_name_whoever_tells_it() {
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
