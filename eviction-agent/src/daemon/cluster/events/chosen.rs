//! Decisions until it is known that their pods go: only then a pod was evicted.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use crate::telemetry::event_log::{EvictionDecision, EvictionProgress};
use eviction_kube::events::{Occurrence, Reason, Regarding};

/// Decisions that are remembered, and evictions that were told. More are never under way.
const MOST: usize = 256;

/// The decision by its number, as lines, reports and events have it.
const DECISION: &str = "eviction-agent.io/decision";

/// Outcomes that say that the pod goes: somebody has sent a signal, or the API server has agreed.
const GOES: [&str; 3] = ["accepted", "signalled", "killed"];

/// Outcomes after which it does not.
const ENDS: [&str; 2] = ["rejected", "abandoned"];

/// The request may have been carried out: nobody has heard the answer.
const UNHEARD: &str = "unknown";

/// Nobody needs to be asked any more.
const IS_GONE: [&str; 2] = ["terminated", "replaced"];

const EVICTED: &str = "The pod was evicted.";
const CHOSEN: &str = "The pod was chosen to be evicted, and is gone.";

#[derive(Debug, Default)]
pub(super) struct Chosen {
    decided: VecDeque<(u64, Occurrence)>,
    told: VecDeque<u64>,
    /// Whose request may have been carried out.
    unheard: VecDeque<u64>,
}

impl Chosen {
    /// A pod was chosen: what is to be told of it, should it go.
    pub(super) fn decided(&mut self, decision: &EvictionDecision, at: Timestamp) {
        let pod = decision.pod.with_uid(&decision.pod_uid);
        let told = decision.annotations.iter().flatten();
        let told = told.map(|(key, value)| (key.as_str().into(), value.as_str().into()));
        let named: (Box<str>, Box<str>) = (DECISION.into(), decision.decision_id.as_str().into());
        let occurrence = Occurrence {
            reason: Reason::Evicted,
            regarding: Regarding::Pod(pod),
            part: decision.decision_id.as_str().into(),
            at,
            note: decision.eviction_message.as_str().into(),
            annotations: told.chain([named]).collect(),
            times: 1,
        };
        if self.decided.len() >= MOST {
            self.decided.pop_front();
        }
        self.decided.push_back((decision.id, occurrence));
    }

    /// What is to be told of this step of an eviction: once for each, when the pod goes.
    pub(super) fn went(&mut self, eviction: &EvictionProgress, at: Timestamp) -> Option<Occurrence> {
        let EvictionProgress { id, pod, pod_uid, result: outcome, is_beside, .. } = eviction;
        if *is_beside {
            return None;
        }
        if ENDS.contains(outcome) {
            self.take(*id);
            return None;
        }
        if *outcome == UNHEARD && !self.unheard.contains(id) {
            remember(&mut self.unheard, *id);
        }
        let is_gone = IS_GONE.contains(outcome);
        if !(is_gone || GOES.contains(outcome)) || self.told.contains(id) {
            return None;
        }
        let decided = self.take(*id);
        if is_gone && decided.is_some() && !self.unheard.contains(id) {
            // It went before it was asked for.
            return None;
        }
        let occurrence = match decided {
            Some(occurrence) => occurrence,
            // What was decided was not told, for want of room, or another agent decided it: that the pod goes is
            // known all the same. Has that one told it, the event is there, and has this name.
            None => Occurrence {
                reason: Reason::Evicted,
                regarding: Regarding::Pod(pod.with_uid(pod_uid)),
                part: eviction.decision_id.as_str().into(),
                at,
                note: if is_gone { CHOSEN } else { EVICTED }.into(),
                annotations: BTreeMap::from([(DECISION.into(), eviction.decision_id.as_str().into())]),
                times: 1,
            },
        };
        remember(&mut self.told, *id);
        Some(occurrence)
    }

    fn take(&mut self, id: u64) -> Option<Occurrence> {
        let place = self.decided.iter().position(|(decided, _)| *decided == id)?;
        self.decided.remove(place).map(|(_, occurrence)| occurrence)
    }
}

fn remember(ids: &mut VecDeque<u64>, id: u64) {
    if ids.len() >= MOST {
        ids.pop_front();
    }
    ids.push_back(id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::event_log::PodRef;

    fn decision(id: u64) -> EvictionDecision {
        EvictionDecision {
            id,
            decision_id: format!("19a8f3-{id}"),
            signal: "memory.available",
            threshold: "hard",
            pod: PodRef::new("shop", "web"),
            pod_uid: "u-1".into(),
            grace_seconds: 1,
            eviction_message: "The node was low on resource: memory. ".into(),
            annotations: Some(BTreeMap::from([("starved_resource".to_owned(), "memory".to_owned())])),
            value: "100Mi".into(),
            available: None,
            usage: None,
            working_set: None,
            detected_by: "timer".into(),
            sample_age_us: None,
            candidates: Vec::new(),
            candidates_omitted: 0,
            crossed_mono_ns: None,
            sampled_mono_ns: 0,
            decided_mono_ns: 0,
            crossed_to_decided_us: None,
        }
    }

    fn step(id: u64, result: &'static str) -> EvictionProgress {
        EvictionProgress {
            id,
            decision_id: format!("19a8f3-{id}"),
            pod: PodRef::new("shop", "web"),
            pod_uid: "u-1".into(),
            result,
            processes: None,
            reason: None,
            mono_ns: 0,
            since_decision_us: 0,
            is_beside: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_eviction_is_told_once_when_the_pod_goes_and_as_it_was_decided() {
        let mut chosen = Chosen::default();
        chosen.decided(&decision(7), at(1));
        for outcome in ["pdb_denied", "throttled", "unknown", "not_sent", "dry_run"] {
            assert_eq!(chosen.went(&step(7, outcome), at(2)), None, "{outcome}");
        }
        let told = chosen.went(&step(7, "accepted"), at(3)).unwrap();
        assert_eq!(
            (told.reason, told.at, &*told.note),
            (Reason::Evicted, at(1), "The node was low on resource: memory. ")
        );
        let annotations: Vec<_> = told.annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(annotations, [(DECISION, "19a8f3-7"), ("starved_resource", "memory")]);
        for outcome in ["killed", "accepted", "terminated"] {
            assert_eq!(chosen.went(&step(7, outcome), at(4)), None, "{outcome}");
        }
    }

    #[test]
    fn a_pod_that_is_gone_has_its_event_if_the_answer_was_not_heard() {
        let mut chosen = Chosen::default();
        (7..9).for_each(|id| chosen.decided(&decision(id), at(1)));
        assert_eq!(chosen.went(&step(7, "unknown"), at(2)), None);
        let told = chosen.went(&step(7, "terminated"), at(3)).unwrap();
        assert_eq!((&*told.note, told.at), ("The node was low on resource: memory. ", at(1)));
        assert_eq!(chosen.went(&step(7, "terminated"), at(4)), None);
        let beside = |outcome| EvictionProgress { is_beside: true, ..step(8, outcome) };
        assert_eq!(chosen.went(&beside("unknown"), at(4)), None);
        assert_eq!(chosen.went(&beside("terminated"), at(4)), None);
        assert_eq!(chosen.went(&step(8, "terminated"), at(4)), None, "it went by itself");
        assert!(chosen.decided.is_empty());
        let recalled = chosen.went(&step(3, "terminated"), at(5)).unwrap();
        assert_eq!((&*recalled.note, recalled.at), (CHOSEN, at(5)), "another agent has decided that");
    }

    #[test]
    fn what_was_refused_is_not_told() {
        let mut chosen = Chosen::default();
        chosen.decided(&decision(7), at(1));
        assert_eq!(chosen.went(&step(7, "rejected"), at(2)), None);
        assert!(chosen.decided.is_empty());
    }

    #[test]
    fn a_pod_that_goes_by_a_decision_that_was_not_told_has_its_event() {
        let told = Chosen::default().went(&step(9, "signalled"), at(2)).unwrap();
        assert_eq!((&*told.note, told.at), ("The pod was evicted.", at(2)));
        assert_eq!(&*told.annotations[DECISION], "19a8f3-9");
    }

    #[test]
    fn decisions_that_come_to_nothing_are_forgotten() {
        let mut chosen = Chosen::default();
        (0..10_000).for_each(|id| chosen.decided(&decision(id), at(1)));
        (0..10_000).for_each(|id| drop(chosen.went(&step(id, "killed"), at(1))));
        assert!(chosen.decided.len() <= MOST && chosen.told.len() <= MOST);
    }
}
