//! What the agent prints, told to the cluster as well: the lines that people look for with
//! `kubectl describe` become events of the API.
//!
//! It runs on the slow side and takes the lines as they are printed.

mod chosen;
mod said;

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::telemetry::event_log::Event;
use crate::telemetry::metrics::{EventLabels, Metrics};
use chosen::Chosen;
use eviction_kube::events::{Fate, Reason, Recorder, Regarding};

/// Hears the lines that are printed.
#[derive(Debug)]
pub(crate) struct EventTap {
    recorder: Recorder,
    node: Regarding,
    chosen: Mutex<Chosen>,
}

impl EventTap {
    pub(super) fn new(recorder: Recorder, node: &str) -> Self {
        Self { recorder, node: Regarding::Node(node.into()), chosen: Mutex::default() }
    }

    /// Notes what the API server is to hear of it. Waits for nothing.
    pub(crate) fn hear(&self, at: Timestamp, event: &Event) {
        let occurrence = match event {
            Event::EvictionDecision(decision) => {
                self.chosen.lock().unwrap_or_else(PoisonError::into_inner).decided(decision, at);
                None
            }
            Event::EvictionProgress(eviction) => {
                self.chosen.lock().unwrap_or_else(PoisonError::into_inner).went(eviction, at)
            }
            Event::OomKill(kill) => Some(said::of_kill(kill, at, &self.node)),
            Event::Threshold(threshold) => said::of_threshold(threshold, at, &self.node),
            _ => None,
        };
        if let Some(occurrence) = occurrence {
            self.recorder.note(occurrence);
        }
    }
}

/// RequestCounts what becomes of each occurrence.
pub(super) fn tally(metrics: Arc<Metrics>) -> impl Fn(Reason, Fate, u64) + Send + 'static {
    for (reason, fate) in Reason::ALL.into_iter().flat_map(|reason| Fate::ALL.map(|fate| (reason, fate))) {
        let labels = EventLabels { reason: reason.name(), result: fate.name() };
        metrics.kube_events.get_or_create(&labels);
    }
    move |reason, fate, times| {
        let labels = EventLabels { reason: reason.name(), result: fate.name() };
        metrics.kube_events.get_or_create(&labels).inc_by(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_and_result_is_counted_from_0() {
        let metrics = Arc::new(Metrics::new("0", "0"));
        let count = tally(Arc::clone(&metrics));
        assert_eq!(metrics.kube_events.len(), Reason::ALL.len() * Fate::ALL.len());
        count(Reason::Evicted, Fate::Created, 2);
        let of = |result| metrics.kube_events.get_or_create(&EventLabels { reason: "Evicted", result }).get();
        assert_eq!((of("created"), of("refused")), (2, 0));
    }
}
