//! Event lines and metrics of what a decision says beside its evaluation: signals that are unavailable,
//! rejected readings, and changed configurations.

use crate::telemetry::metrics::Metrics;
use eviction_core::record::{DecisionRecord, ProposalRecord};
use eviction_core::signal::Signal;
use eviction_core::signal_filter::RejectedReading;

use crate::telemetry::event_log::{self, ConfigChange, Event, PodRef, ReadingRejected, SignalUnavailable};
use eviction_node::clock::Clock;

/// What was published last.
#[derive(Debug, Default)]
pub(crate) struct EngineStatus {
    unavailable: Vec<Signal>,
    rejected: Vec<Signal>,
}

impl EngineStatus {
    /// The events of a decision that the one before did not have.
    pub(crate) fn update(&mut self, record: &DecisionRecord, metrics: &Metrics, clock: &Clock) -> Vec<Event> {
        let mut events = Vec::new();
        for signal in Signal::ALL {
            let is_unavailable = record.unavailable.contains(&signal);
            if is_unavailable != self.unavailable.contains(&signal) {
                metrics.signal_unavailable.with([signal.name()]).set(i64::from(is_unavailable));
                let state = if is_unavailable { "unavailable" } else { "available" };
                events.push(Event::SignalUnavailable(SignalUnavailable { signal: signal.name(), state }));
            }
        }
        self.unavailable.clone_from(&record.unavailable);
        if let Some(evaluation) = record.evaluation() {
            let is_new = |reading: &&RejectedReading| !self.rejected.contains(&reading.signal);
            let new = evaluation.rejected.iter().filter(is_new);
            events.extend(new.map(|reading| rejected(reading, metrics)));
            self.rejected = evaluation.rejected.iter().map(|reading| reading.signal).collect();
        }
        if let Some(proposal) = &record.proposal {
            metrics.config_pending.set(i64::from(matches!(proposal, ProposalRecord::Pending { .. })));
            events.push(Event::ConfigChange(config_change(proposal, clock)));
        }
        events
    }
}

fn rejected(reading: &RejectedReading, metrics: &Metrics) -> Event {
    let RejectedReading { signal, available, capacity, why } = *reading;
    metrics.implausible_readings.with([signal.name(), why.name()]).inc();
    Event::ReadingRejected(ReadingRejected { signal: signal.name(), reason: why.name(), available, capacity })
}

fn config_change(proposal: &ProposalRecord, clock: &Clock) -> ConfigChange {
    let (state, until, would_evict) = match proposal {
        ProposalRecord::Unchanged => ("unchanged", None, Vec::new()),
        ProposalRecord::Applied => ("applied", None, Vec::new()),
        ProposalRecord::Pending { since: _, until, would_evict, would_reclaim: _ } => {
            let names = would_evict.iter().map(|pod| PodRef::new(&pod.namespace, &pod.name));
            ("pending", until.map(|until| clock.shown(until)), names.collect())
        }
    };
    let (would_evict, would_evict_omitted) = event_log::bounded(would_evict.into_iter());
    ConfigChange { state, until, would_evict, would_evict_omitted, ..ConfigChange::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Form;

    #[test]
    fn series_of_signals_exist_before_their_first_event() {
        let metrics = Metrics::new("0", "0");
        let text = metrics.encode(Form::OpenMetrics).unwrap();
        for signal in Signal::ALL.map(Signal::name) {
            let labels = format!("eviction_signal=\"{signal}\"");
            assert!(text.contains(&format!("eviction_agent_signal_unavailable{{{labels}}} 0\n")), "{text}");
            for reason in ["negative_capacity", "capacity_changed", "suddenly_nothing"] {
                let line =
                    format!("eviction_agent_implausible_readings_total{{{labels},reason=\"{reason}\"}} 0\n");
                assert!(text.contains(&line), "{line}: {text}");
            }
        }
    }
}
