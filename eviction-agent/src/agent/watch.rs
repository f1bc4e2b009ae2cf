//! Events about what the engine reports beside observations: signals that are unavailable, rejected
//! readings, and changed configurations.

use crate::core::decision::Decision;
use crate::core::report::ProposalReport;
use crate::core::sight::Refused;
use crate::core::signal::{Signal, SignalSet};
use crate::metrics::{ImplausibleLabels, Metrics, SignalLabels};

use super::clock::Clock;
use super::event::{self, ConfigChange, Event, PodRef, ReadingRejected, SignalUnavailable};

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    blind: SignalSet,
    refused: SignalSet,
}

impl Watch {
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

fn refusal(refused: &Refused, metrics: &Metrics) -> Event {
    let Refused { signal, available, capacity, why } = *refused;
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
    let (would_evict, would_evict_omitted) = event::bounded(would_evict.into_iter());
    ConfigChange { state, until, would_evict, would_evict_omitted, errors: Vec::new(), errors_omitted: 0 }
}
