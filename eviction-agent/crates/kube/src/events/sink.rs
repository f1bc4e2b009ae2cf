//! Records Events for evictions, thresholds and OOM kills on the node. They are rendered from the records.

use std::collections::BTreeMap;
use std::sync::Arc;

use eviction_core::oom::OomKill;
use eviction_core::pod::PodName;
use eviction_core::progress::{ApiOperation, ApiResult, KillProgress};
use eviction_core::record::EvictionRecord;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::Recorder;
use super::object::{Occurrence, Reason, node_reference, pod_reference};
use super::oom_kill::oom_event;

/// The maximum number of evictions that are stored. There are never more in flight.
const MAX_EVICTIONS: usize = 512;

/// The annotation with the decision id, as in event lines and recordings.
const DECISION_ANNOTATION: &str = "eviction-agent.io/decision";

const EVICTED_NOTE: &str = "The pod was evicted.";
const TERMINATED_NOTE: &str = "The pod was chosen to be evicted, and is gone.";

/// Receives evictions, thresholds and OOM kills, and records their Events.
#[derive(Debug)]
pub struct EventSink {
    recorder: Arc<Recorder>,
    node: ObjectReference,
    /// Evictions by their decision number, until their Event is recorded and some time longer. A pod counts as
    /// evicted only when it is known to terminate.
    evictions: BTreeMap<u64, Eviction>,
}

#[derive(Debug, Default)]
struct Eviction {
    /// The Event as it was decided. `None` if another agent made the decision, or if its record was dropped.
    decided: Option<Occurrence>,
    is_unknown: bool,
    is_recorded: bool,
}

impl EventSink {
    /// Creates a sink for the Events of this node.
    pub(crate) fn new(recorder: Arc<Recorder>, node: &str) -> Self {
        Self { recorder, node: node_reference(node), evictions: BTreeMap::new() }
    }

    /// Records an OOM kill as an Event of its pod, or of the node.
    pub fn oom_kill(&self, kill: &OomKill, at: Timestamp) {
        self.recorder.record(oom_event(kill, at, &self.node));
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
            self.recorder.record(occurrence);
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
        self.recorder.record(Occurrence {
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

    fn eviction(&mut self, id: u64) -> &mut Eviction {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use eviction_core::progress::Signalled;

    use super::*;
    use crate::metrics::Observer;

    fn pod() -> PodName {
        PodName { uid: "u-1".into(), namespace: "shop".into(), name: "web".into() }
    }

    fn sink() -> EventSink {
        EventSink::new(Arc::new(Recorder::new("n1", Observer::default())), "n1")
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
}
