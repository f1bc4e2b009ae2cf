//! Events of the API, `events.k8s.io/v1`, on pods and on the node: of evictions, thresholds and OOM kills, with few
//! requests.
//!
//! Equal occurrences form one series: the first creates an event, and later ones update its count. The number
//! of requests and of waiting occurrences is limited. Occurrences beyond the limit are dropped and counted.

mod correlator;
mod object;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eviction_core::oom::OomKill;
use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress};
use eviction_core::record::EvictionRecord;
use eviction_core::time::nanos;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backoff::{Backoff, now_ns};
use crate::client::{Client, lock};
use crate::metrics::Observer;
use correlator::Correlator;
use object::{Occurrence, node_reference, pod_reference};

pub use object::{EventResult, Reason};

/// The pause after a failure: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The maximum number of evictions that are stored. There are never more in flight.
const MAX_EVICTIONS: usize = 512;

/// The annotation with the decision id, as in event lines and recordings.
const DECISION_ANNOTATION: &str = "eviction-agent.io/decision";

const EVICTED_NOTE: &str = "The pod was evicted.";
const TERMINATED_NOTE: &str = "The pod was chosen to be evicted, and is gone.";

/// The prefix of the names of annotations of OOM kills.
const OOM_ANNOTATION_PREFIX: &str = "eviction-agent.io/";

/// Receives evictions, thresholds and OOM kills, and records their Events.
#[derive(Debug)]
pub struct EventSink {
    /// The occurrences that are not written yet, and a notification when one was added.
    occurrences: Arc<(Mutex<Correlator>, Notify)>,
    node: ObjectReference,
    /// Evictions by their decision number, until their Event is recorded and some time longer. A pod counts as
    /// evicted only when it is known to terminate.
    evictions: BTreeMap<u64, EvictionEvent>,
}

/// The state of the Event of an eviction.
#[derive(Debug, Default)]
struct EvictionEvent {
    /// The Event as it was decided. `None` if another agent made the decision, or if its record was dropped.
    decided: Option<Occurrence>,
    is_unknown: bool,
    is_recorded: bool,
}

impl EventSink {
    /// Creates a sink for the Events of this node and its pods. The observer counts the result of each occurrence.
    pub(crate) fn new(node: &str, observer: Observer) -> Self {
        let correlator = Mutex::new(Correlator::new(node, observer));
        let occurrences = Arc::new((correlator, Notify::new()));
        Self { occurrences, node: node_reference(node), evictions: BTreeMap::new() }
    }

    /// Writes the occurrences, one request at a time, forever. Needs a tokio runtime.
    pub(crate) fn write(&self, client: Client) -> impl Future<Output = Infallible> + use<> {
        let occurrences = Arc::clone(&self.occurrences);
        async move {
            let (correlator, added) = &*occurrences;
            let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
            loop {
                let next = lock(correlator).next(now_ns());
                match next {
                    Ok((operation, request)) => {
                        let (result, _body) = client.call(operation, request).await;
                        let pause_ns = nanos(backoff.pause());
                        if !lock(correlator).responded(&result, pause_ns, now_ns()) {
                            backoff.reset();
                        }
                    }
                    Err(until_ns) => {
                        let pause = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
                        // Ends early when an occurrence is added.
                        let _elapsed = timeout(pause, added.notified()).await;
                    }
                }
            }
        }
    }

    /// Adds an occurrence. Waits only for other callers of this function.
    fn record(&self, occurrence: Occurrence) {
        let (correlator, added) = &*self.occurrences;
        lock(correlator).add(occurrence, now_ns());
        added.notify_one();
    }

    /// Records an OOM kill as an Event of its pod, or of the node.
    pub fn oom_kill(&self, kill: &OomKill, at: Timestamp) {
        self.record(oom_event(kill, at, &self.node));
    }

    /// Stores a decision. Its Event is recorded when the pod terminates.
    pub fn decided(&mut self, id: u64, decision_id: &str, eviction: &EvictionRecord, at: Timestamp) {
        let mut occurrence = evicted(&eviction.pod, decision_id, &eviction.message, at);
        let annotations = eviction.annotations.iter().flatten();
        occurrence.annotations.extend(annotations.map(|(key, text)| ((*key).to_owned(), text.clone())));
        self.eviction(id).decided = Some(occurrence);
    }

    /// Handles the progress of an eviction.
    pub fn progressed(
        &mut self,
        (id, decision_id): (u64, &str),
        pod: &PodName,
        progress: &KillProgress,
        at: Timestamp,
    ) {
        if let Some(occurrence) = self.event_of((id, decision_id), pod, progress, at) {
            self.record(occurrence);
        }
    }

    /// Forgets an eviction that the executor does not start or has abandoned, unless its Event is recorded.
    pub fn rejected(&mut self, id: u64) {
        if self.evictions.get(&id).is_some_and(|eviction| !eviction.is_recorded) {
            self.evictions.remove(&id);
        }
    }

    /// Records an Event of the node: a threshold, such as `memory.available/hard`, is met, or no longer met.
    pub fn threshold(&self, threshold: String, is_met: bool, note: &str, at: Timestamp) {
        self.record(Occurrence {
            reason: if is_met { Reason::ThresholdMet } else { Reason::ThresholdCleared },
            regarding: self.node.clone(),
            part: threshold.into(),
            at,
            note: note.into(),
            annotations: BTreeMap::new(),
            times: 1,
        });
    }

    /// Returns the Event for this step: one for each eviction, when the pod terminates.
    fn event_of(
        &mut self,
        (id, decision_id): (u64, &str),
        pod: &PodName,
        progress: &KillProgress,
        at: Timestamp,
    ) -> Option<Occurrence> {
        let is_terminated = match progress {
            KillProgress::Answered { operation, is_dry, .. }
                if *is_dry || *operation == ApiOperation::Condition =>
            {
                return None;
            }
            // The pod is terminating: a signal was sent, or the API server has accepted the eviction.
            KillProgress::TermSent(_)
            | KillProgress::KillSent { .. }
            | KillProgress::Answered { answered: ApiResult::Accepted, .. } => false,
            KillProgress::Terminated { .. }
            | KillProgress::Answered { answered: ApiResult::Terminated | ApiResult::Replaced, .. } => true,
            KillProgress::Abandoned | KillProgress::Answered { answered: ApiResult::Rejected { .. }, .. } => {
                self.rejected(id);
                return None;
            }
            KillProgress::Answered { answered: ApiResult::Unknown { .. }, .. } => {
                self.eviction(id).is_unknown = true;
                return None;
            }
            KillProgress::Answered { .. }
            | KillProgress::WouldSignal { .. }
            | KillProgress::Error { .. }
            | KillProgress::ProcessesRemaining { .. } => return None,
        };
        let eviction = self.eviction(id);
        if std::mem::replace(&mut eviction.is_recorded, true) {
            return None;
        }
        match eviction.decided.take() {
            // The pod terminated before the request.
            Some(_) if is_terminated && !eviction.is_unknown => None,
            Some(occurrence) => Some(occurrence),
            // The pod terminates anyway. If another agent has recorded the Event, it already exists with this
            // name.
            None => Some(evicted(
                pod,
                decision_id,
                if is_terminated { TERMINATED_NOTE } else { EVICTED_NOTE },
                at,
            )),
        }
    }

    fn eviction(&mut self, id: u64) -> &mut EvictionEvent {
        if self.evictions.len() >= MAX_EVICTIONS && !self.evictions.contains_key(&id) {
            self.evictions.pop_first();
        }
        self.evictions.entry(id).or_default()
    }
}

fn evicted(pod: &PodName, decision_id: &str, note: &str, at: Timestamp) -> Occurrence {
    Occurrence {
        reason: Reason::Evicted,
        regarding: pod_reference(pod),
        part: decision_id.into(),
        at,
        note: note.into(),
        annotations: BTreeMap::from([(DECISION_ANNOTATION.into(), decision_id.into())]),
        times: 1,
    }
}

/// Returns the Event of an OOM kill on its pod, or on the node if the pod is not known. Kills of one
/// container with the same victim role and limit scope form one series.
fn oom_event(kill: &OomKill, at: Timestamp, node: &ObjectReference) -> Occurrence {
    let pod = kill.pod.as_ref().zip(kill.pod_uid.as_deref()).map(|(pod, uid)| pod.with_uid(uid));
    let (reason, regarding, location) = match pod {
        Some(pod) => (Reason::ContainerOomKilled, pod_reference(&pod), kill.container.as_deref()),
        None => (Reason::ProcessOomKilled, node.clone(), kill.cgroup.as_deref()),
    };
    let part = format!("{}/{}/{}", location.unwrap_or_default(), kill.limit_scope.name(), kill.victim.name());
    Occurrence {
        reason,
        regarding,
        part: part.into(),
        at,
        note: kill.to_string().into(),
        annotations: annotations(kill),
        times: kill.unattributed.unwrap_or(1),
    }
}

/// Returns all values of an OOM kill as annotations for programs, with bytes as full numbers.
fn annotations(kill: &OomKill) -> BTreeMap<String, String> {
    let number = |number: Option<u64>| number.map(|number| number.to_string().into());
    let values = [
        ("container", kill.container.clone()),
        ("container-id", kill.container_id.clone()),
        ("victim", Some(kill.victim.name().into())),
        ("process", Some(kill.comm.clone()).filter(|comm| !comm.is_empty())),
        ("pid", number((kill.pid != 0).then(|| kill.pid.into()))),
        ("limit-scope", Some(kill.limit_scope.name().into())),
        ("limit-scope-inferred", kill.inferred.then(|| "true".into())),
        ("limit-cgroup", kill.limit_cgroup.clone()),
        ("usage", number(kill.usage)),
        ("limit", number(kill.limit)),
        ("anon", number(kill.anon)),
        ("file", number(kill.file)),
        ("shmem", number(kill.shmem)),
        ("oom-group-kills", number(kill.group.as_ref().map(|group| group.kills))),
    ];
    let known = values
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{OOM_ANNOTATION_PREFIX}{name}"), value?.into())));
    known.collect()
}

#[cfg(test)]
mod tests {
    use eviction_core::oom::{LimitScope, OomVictimRole};
    use eviction_core::pod::PodRef;
    use eviction_core::progress::Signalled;

    use super::*;

    fn pod() -> PodName {
        PodName { uid: "u-1".into(), namespace: "shop".into(), name: "web".into() }
    }

    fn sink() -> EventSink {
        EventSink::new("n1", Observer::default())
    }

    fn decided(sink: &mut EventSink, id: u64) {
        let eviction = EvictionRecord {
            pod: pod(),
            signal: "memory.available",
            hard: Some(true),
            grace_period_seconds: 1,
            shortens_grace: false,
            ignores_budget: false,
            message: "The node was low on resource: memory. ".into(),
            annotations: Some(BTreeMap::from([("starved_resource", "memory".to_owned())])),
        };
        sink.decided(id, &format!("19a8f3-{id}"), &eviction, at(1));
    }

    fn answered(answered: ApiResult) -> KillProgress {
        KillProgress::Answered { operation: ApiOperation::Eviction, answered, is_dry: false }
    }

    fn step(sink: &mut EventSink, id: u64, progress: &KillProgress, second: i64) -> Option<Occurrence> {
        sink.event_of((id, &format!("19a8f3-{id}")), &pod(), progress, at(second))
    }

    fn killed() -> KillProgress {
        KillProgress::KillSent { signalled: Signalled::default(), grown: None }
    }

    const TERMINATED: KillProgress = KillProgress::Terminated { killed: 0, unreaped: None };

    fn unknown() -> KillProgress {
        answered(ApiResult::Unknown { why: "".into() })
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn eviction_is_recorded_once_when_the_request_is_accepted() {
        let mut sink = sink();
        decided(&mut sink, 7);
        let why = || "".into();
        for result in [
            ApiResult::PdbDenied { why: why() },
            ApiResult::Throttled { pause: Duration::ZERO },
            ApiResult::Unknown { why: why() },
            ApiResult::NotSent { why: why() },
        ] {
            assert_eq!(step(&mut sink, 7, &answered(result), 2), None);
        }
        let dry =
            |is_dry, operation| KillProgress::Answered { operation, answered: ApiResult::Accepted, is_dry };
        assert_eq!(step(&mut sink, 7, &dry(true, ApiOperation::Eviction), 2), None);
        assert_eq!(step(&mut sink, 7, &dry(false, ApiOperation::Condition), 2), None);
        let occurrence = step(&mut sink, 7, &answered(ApiResult::Accepted), 3).unwrap();
        assert_eq!(
            (occurrence.reason, occurrence.at, &*occurrence.note),
            (Reason::Evicted, at(1), "The node was low on resource: memory. ")
        );
        let annotations: Vec<_> =
            occurrence.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(annotations, [(DECISION_ANNOTATION, "19a8f3-7"), ("starved_resource", "memory")]);
        for progress in [killed(), answered(ApiResult::Accepted), TERMINATED] {
            assert_eq!(step(&mut sink, 7, &progress, 4), None, "{progress:?}");
        }
    }

    #[test]
    fn terminated_pod_is_recorded_if_the_response_is_unknown() {
        let mut sink = sink();
        (7..9).for_each(|id| decided(&mut sink, id));
        assert_eq!(step(&mut sink, 7, &unknown(), 2), None);
        let occurrence = step(&mut sink, 7, &TERMINATED, 3).unwrap();
        assert_eq!((&*occurrence.note, occurrence.at), ("The node was low on resource: memory. ", at(1)));
        assert_eq!(step(&mut sink, 7, &TERMINATED, 4), None);
        for answered in [ApiResult::Unknown { why: "".into() }, ApiResult::Terminated] {
            let progress =
                KillProgress::Answered { operation: ApiOperation::Condition, answered, is_dry: false };
            assert_eq!(step(&mut sink, 8, &progress, 4), None);
        }
        assert_eq!(step(&mut sink, 8, &TERMINATED, 4), None, "it went by itself");
        let restored = step(&mut sink, 3, &answered(ApiResult::Replaced), 5).unwrap();
        assert_eq!(
            (&*restored.note, restored.at),
            (TERMINATED_NOTE, at(5)),
            "another agent has decided that"
        );
    }

    #[test]
    fn rejected_or_abandoned_eviction_is_not_recorded() {
        let mut sink = sink();
        for progress in
            [answered(ApiResult::Rejected { status: 403, why: "".into() }), KillProgress::Abandoned]
        {
            decided(&mut sink, 7);
            assert_eq!(step(&mut sink, 7, &progress, 2), None);
            assert!(sink.evictions.is_empty());
        }
    }

    #[test]
    fn eviction_without_a_known_decision_is_recorded() {
        let progress = KillProgress::TermSent(Signalled::default());
        let occurrence = step(&mut sink(), 9, &progress, 2).unwrap();
        assert_eq!((&*occurrence.note, occurrence.at), ("The pod was evicted.", at(2)));
        assert_eq!(&*occurrence.annotations[DECISION_ANNOTATION], "19a8f3-9");
    }

    #[test]
    fn number_of_stored_evictions_is_limited() {
        let mut sink = sink();
        (0..10_000).for_each(|id| decided(&mut sink, id));
        (0..10_000).for_each(|id| drop(step(&mut sink, id, &killed(), 1)));
        assert!(sink.evictions.len() <= MAX_EVICTIONS);
    }

    fn oom_kill() -> OomKill {
        OomKill {
            pid: 42,
            comm: "java".into(),
            container: Some("app".into()),
            pod: Some(PodRef::new("shop", "web")),
            pod_uid: Some("u-1".into()),
            limit_scope: LimitScope::Container,
            victim: OomVictimRole::Init,
            usage: Some(1 << 26),
            limit: Some(1 << 26),
            anon: Some(1 << 25),
            file: Some(0),
            shmem: Some(4096),
            ..OomKill::default()
        }
    }

    fn node() -> ObjectReference {
        node_reference("n1")
    }

    #[test]
    fn oom_kill_is_an_event_of_its_pod_with_all_values() {
        let event = oom_event(&oom_kill(), Timestamp::UNIX_EPOCH, &node());
        assert_eq!(event.reason, Reason::ContainerOomKilled);
        assert_eq!(event.regarding, pod_reference(&PodRef::new("shop", "web").with_uid("u-1")));
        assert_eq!(
            &*event.note,
            "kernel OOM kill of java (pid 42, init process) in container app of shop/web: limit of the container, 64Mi of 64Mi; victim: anon 32Mi, file 0B, shmem 4Ki; not an eviction"
        );
        let annotations: Vec<_> = event
            .annotations
            .iter()
            .map(|(name, value)| (&name[OOM_ANNOTATION_PREFIX.len()..], value.as_str()))
            .collect();
        let wanted = [
            ("anon", "33554432"),
            ("container", "app"),
            ("file", "0"),
            ("limit", "67108864"),
            ("limit-scope", "container"),
            ("pid", "42"),
            ("process", "java"),
            ("shmem", "4096"),
            ("usage", "67108864"),
            ("victim", "init"),
        ];
        assert_eq!(annotations, wanted);
    }

    #[test]
    fn oom_kills_with_the_same_role_and_scope_form_one_series() {
        let part = |kill: OomKill| oom_event(&kill, Timestamp::UNIX_EPOCH, &node()).part;
        assert_eq!(part(oom_kill()), part(OomKill { pid: 43, usage: None, ..oom_kill() }));
        assert_ne!(part(oom_kill()), part(OomKill { victim: OomVictimRole::Child, ..oom_kill() }));
        assert_ne!(part(oom_kill()), part(OomKill { limit_scope: LimitScope::Pod, ..oom_kill() }));
    }

    #[test]
    fn oom_kill_outside_known_pods_is_an_event_of_the_node() {
        for kill in [
            OomKill { pod: None, cgroup: Some("/system.slice".into()), ..oom_kill() },
            OomKill { pod_uid: None, unattributed: Some(3), ..oom_kill() },
        ] {
            let event = oom_event(&kill, Timestamp::UNIX_EPOCH, &node());
            assert_eq!((event.reason, &event.regarding), (Reason::ProcessOomKilled, &node()));
            assert_eq!(event.times, kill.unattributed.unwrap_or(1));
        }
    }
}
