//! What is told of what the engine sees beside observations: blindness, readings that it did
//! not believe, and changed configurations.

use crate::core::decision::Decision;
use crate::core::report::ProposalReport;
use crate::core::sight::Refused;
use crate::core::signal::{Signal, SignalSet};
use crate::metrics::{Metrics, RefusedLabels, SignalLabels};

use super::clock::Clock;
use super::event::{Blind, Configuration, Event, Refusal};

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
                metrics.blind.get_or_create(&labels).set(i64::from(is));
                let state = if is { "blind" } else { "seen" };
                events.push(Event::Blind(Blind { signal: signal.name(), state }));
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
            metrics.configuration_pending.set(i64::from(matches!(proposal, ProposalReport::Waits { .. })));
            events.push(Event::Configuration(configuration(proposal, clock)));
        }
        events
    }
}

fn refusal(refused: &Refused, metrics: &Metrics) -> Event {
    let Refused { signal, available, capacity, why } = *refused;
    let labels = RefusedLabels { eviction_signal: signal.name(), reason: why.name() };
    metrics.refused.get_or_create(&labels).inc();
    Event::Refused(Refusal { signal: signal.name(), reason: why.name(), available, capacity })
}

fn configuration(proposal: ProposalReport, clock: &Clock) -> Configuration {
    let (state, until, would_evict) = match proposal {
        ProposalReport::Unchanged => ("unchanged", None, Vec::new()),
        ProposalReport::TookEffect => ("took_effect", None, Vec::new()),
        ProposalReport::Waits { since: _, until, would_evict, would_reclaim: _ } => {
            let names = would_evict.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name));
            ("waits", until.map(|until| clock.shown(until)), names.collect())
        }
    };
    Configuration { state, until, would_evict, errors: Vec::new() }
}
