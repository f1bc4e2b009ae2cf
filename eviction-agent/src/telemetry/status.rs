//! Events about what the engine reports beside observations: signals that are unavailable, rejected
//! readings, and changed configurations.

use crate::telemetry::metrics::{ImplausibleLabels, Metrics, SignalLabels};
use eviction_core::decision::Decision;
use eviction_core::report::ProposalReport;
use eviction_core::signal::{Signal, SignalSet};
use eviction_core::signal_filter::{Implausible, RejectedReading};

use crate::daemon::clock::Clock;
use crate::telemetry::event_log::{self, ConfigChange, Event, PodRef, ReadingRejected, SignalUnavailable};

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct EngineStatus {
    blind: SignalSet,
    refused: SignalSet,
}

/// Signals that standalone mode and a cluster both have; disks are not watched.
const SIGNALS: [Signal; 3] =
    [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable, Signal::PidAvailable];

impl EngineStatus {
    /// Makes the series of the signals that are watched.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        for eviction_signal in SIGNALS.map(Signal::name) {
            metrics.signal_unavailable.get_or_create(&SignalLabels { eviction_signal });
            for reason in Implausible::NAMES {
                metrics.implausible_readings.get_or_create(&ImplausibleLabels { eviction_signal, reason });
            }
        }
        Self::default()
    }

    /// What a decision has to say that the one before had not.
    pub(crate) fn take(&mut self, decision: &Decision, metrics: &Metrics, clock: &Clock) -> Vec<Event> {
        let mut events = Vec::new();
        for signal in Signal::ALL {
            let (is, was) = (decision.blind.contains(signal), self.blind.contains(signal));
            if is != was {
                let labels = SignalLabels { eviction_signal: signal.name() };
                metrics.signal_unavailable.get_or_create(&labels).set(i64::from(is));
                let state = if is { "unavailable" } else { "available" };
                events.push(Event::SignalUnavailable(SignalUnavailable { signal: signal.name(), state }));
            }
        }
        self.blind = decision.blind;
        if let Some(pass) = decision.pass() {
            let mut now = SignalSet::EMPTY;
            for refused in &pass.sight.refused {
                now.insert(refused.signal);
                if !self.refused.contains(refused.signal) {
                    events.push(refusal(refused, metrics));
                }
            }
            self.refused = now;
        }
        if let Some(proposal) = ProposalReport::of_decision(decision) {
            metrics.config_pending.set(i64::from(matches!(proposal, ProposalReport::Waits { .. })));
            events.push(Event::ConfigChange(configuration(proposal, clock)));
        }
        events
    }
}

fn refusal(refused: &RejectedReading, metrics: &Metrics) -> Event {
    let RejectedReading { signal, available, capacity, why } = *refused;
    let labels = ImplausibleLabels { eviction_signal: signal.name(), reason: why.name() };
    metrics.implausible_readings.get_or_create(&labels).inc();
    Event::ReadingRejected(ReadingRejected { signal: signal.name(), reason: why.name(), available, capacity })
}

fn configuration(proposal: ProposalReport, clock: &Clock) -> ConfigChange {
    let (state, until, would_evict) = match proposal {
        ProposalReport::Unchanged => ("unchanged", None, Vec::new()),
        ProposalReport::TookEffect => ("applied", None, Vec::new()),
        ProposalReport::Waits { since: _, until, would_evict, would_reclaim: _ } => {
            let names = would_evict.iter().map(|pod| PodRef::new(&pod.namespace, &pod.name));
            ("pending", until.map(|until| clock.shown(until)), names.collect())
        }
    };
    let (would_evict, would_evict_omitted) = event_log::bounded(would_evict.into_iter());
    ConfigChange { state, until, would_evict, would_evict_omitted, errors: Vec::new(), errors_omitted: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_watched_signals_exist_before_their_first_event() {
        let metrics = Metrics::new("0", "0");
        let _watch = EngineStatus::new(&metrics);
        let text = metrics.encode().unwrap();
        for signal in SIGNALS.map(Signal::name) {
            let labels = format!("eviction_signal=\"{signal}\"");
            assert!(text.contains(&format!("eviction_agent_signal_unavailable{{{labels}}} 0\n")), "{text}");
            for reason in ["negative_capacity", "capacity_changed", "suddenly_nothing"] {
                let line =
                    format!("eviction_agent_implausible_readings_total{{{labels},reason=\"{reason}\"}} 0\n");
                assert!(text.contains(&line), "{line}: {text}");
            }
        }
        assert!(!text.contains("signal_unavailable{eviction_signal=\"nodefs"), "disks are not watched");
    }
}
