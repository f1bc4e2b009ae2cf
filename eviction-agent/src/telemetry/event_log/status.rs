//! The events of what a decision changed: thresholds, node conditions, unavailable signals, rejected readings, and the
//! configuration.

use std::collections::BTreeMap;

use eviction_core::decision::ProposalState;
use eviction_core::record::{DecisionRecord, EvaluationRecord};
use eviction_core::signal::{NodeCondition, Signal};
use eviction_core::signal_filter::RejectedReading;
use jiff::Timestamp;
use serde::Serialize;

use super::{ConfigChange, Event, PodRef, ThresholdEvent, bounded};

/// What the events so far have reported.
#[derive(Debug, Default)]
pub(crate) struct ReportedStatus {
    /// The status of each threshold, by its signal and whether it is hard.
    thresholds: BTreeMap<(Signal, bool), ThresholdStatus>,
    conditions: BTreeMap<NodeCondition, &'static str>,
    unavailable: Vec<Signal>,
    /// The signals whose last reading was rejected.
    rejected: Vec<Signal>,
}

impl ReportedStatus {
    /// Returns the events of what changed since the previous decision. `shown` converts a time to that of the system
    /// clock.
    pub(crate) fn update(
        &mut self,
        record: &DecisionRecord,
        detected_by: &'static str,
        shown: impl Fn(Timestamp) -> Timestamp,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(evaluation) = record.evaluation() {
            self.update_thresholds(evaluation, detected_by, &mut events);
        }
        for signal in Signal::ALL {
            let is_unavailable = record.unavailable.contains(&signal);
            if is_unavailable != self.unavailable.contains(&signal) {
                let state = if is_unavailable { "unavailable" } else { "available" };
                events.push(Event::SignalUnavailable { signal: signal.name(), state });
            }
        }
        self.unavailable.clone_from(&record.unavailable);
        if let Some(evaluation) = record.evaluation() {
            let begun = evaluation.rejected.iter().filter(|it| !self.rejected.contains(&it.signal));
            events.extend(begun.map(|&RejectedReading { signal, available, capacity, reason }| {
                let (signal, reason) = (signal.name(), reason.name());
                Event::ReadingRejected { signal, reason, available, capacity }
            }));
            self.rejected = evaluation.rejected.iter().map(|reading| reading.signal).collect();
        }
        events.extend(record.proposal.as_ref().map(|it| Event::ConfigChange(config_change(it, shown))));
        for condition in NodeCondition::ALL {
            let status = match record.conditions.iter().any(|it| it.condition == condition) {
                true => "True",
                false if record.unknown_conditions.contains(&condition) => "Unknown",
                false => "False",
            };
            if self.conditions.insert(condition, status).unwrap_or("False") != status {
                events.push(Event::Condition { condition: condition.name(), status });
            }
        }
        events
    }

    fn update_thresholds(
        &mut self,
        evaluation: &EvaluationRecord,
        detected_by: &'static str,
        events: &mut Vec<Event>,
    ) {
        let before = std::mem::take(&mut self.thresholds);
        for threshold in &evaluation.thresholds {
            let key = (threshold.signal, threshold.is_hard());
            let before = before.get(&key).copied().unwrap_or_default();
            let reading = evaluation.signal(threshold.signal);
            let is_known = reading.is_some_and(|reading| reading.available.is_some());
            let state = before.next(threshold.met.is_some(), is_known);
            self.thresholds.insert(key, state);
            if state != before {
                let event = ThresholdEvent::of(threshold, evaluation, state, detected_by);
                events.push(Event::Threshold(event));
            }
        }
    }
}

fn config_change(proposal: &ProposalState, shown: impl Fn(Timestamp) -> Timestamp) -> ConfigChange {
    let (state, until, would_evict) = match proposal {
        ProposalState::Unchanged => ("unchanged", None, &[][..]),
        ProposalState::Applied => ("applied", None, &[][..]),
        ProposalState::Pending { since: _, until, would_evict, would_reclaim: _ } => {
            ("pending", until.map(shown), &would_evict[..])
        }
    };
    let (would_evict, would_evict_omitted) = bounded(would_evict.iter().map(PodRef::from));
    ConfigChange { state, until, would_evict, would_evict_omitted, ..ConfigChange::default() }
}

eviction_core::named_enum! {
    /// The last reported status of a threshold.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ThresholdStatus {
        /// The threshold is not met.
        #[default]
        Cleared = "cleared",
        /// The threshold is met.
        Met = "met",
        /// The threshold was met when its signal became unknown.
        Unknown = "unknown",
    }
}

impl ThresholdStatus {
    /// Returns the next status. A threshold that is no longer met is cleared only if its signal is known.
    fn next(self, is_met: bool, is_known: bool) -> Self {
        match (self, is_met, is_known) {
            (_, true, _) => Self::Met,
            (_, false, true) | (Self::Cleared, false, false) => Self::Cleared,
            (Self::Met | Self::Unknown, false, false) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_whose_signal_becomes_unknown_is_not_cleared() {
        use ThresholdStatus::{Cleared, Met, Unknown};
        assert_eq!(Met.next(false, false), Unknown);
        assert_eq!(Unknown.next(false, false), Unknown);
        assert_eq!(Unknown.next(false, true), Cleared);
        assert_eq!(Unknown.next(true, true), Met);
        assert_eq!(Met.next(false, true), Cleared);
        assert_eq!(Cleared.next(false, false), Cleared, "nothing was met");
    }
}
