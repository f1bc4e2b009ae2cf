//! Event lines and metrics of a decision, from its record.

use eviction_core::decision::ProposalState;
use eviction_core::record::{DecisionRecord, EvaluationRecord, EvictionRecord, ThresholdRecord};
use eviction_core::signal::{NodeCondition, Signal};
use eviction_core::units::Quantity;

use super::TelemetryExporter;
use crate::telemetry::event_log::{self, Event, PodRef, ThresholdStatus};
use crate::telemetry::live::lock;
use crate::telemetry::queue::DecisionEvent;
use eviction_node::clock::Instant;

/// The number of ranked pods that a line shows.
const SHOWN: usize = 8;

impl TelemetryExporter {
    /// Publishes a decision. Its record is made once, for all outputs.
    pub(super) fn decision(&mut self, event: &DecisionEvent) {
        let DecisionEvent { decision, first_id, sampled, .. } = event;
        let record = DecisionRecord::of(decision);
        if let Some(recording) = &mut self.recording {
            recording.decision(&record);
        }
        if let (Some(evaluation), Some(live)) = (record.evaluation(), &self.live) {
            lock(live).thresholds.clone_from(&evaluation.thresholds);
        }
        self.export_status(&record);
        let clock = self.clock;
        for change in self.status.update(&record, event.detected_by, |at| clock.shown(at)) {
            match &change {
                Event::Threshold(line) => self.threshold_event(line, *sampled),
                Event::ReadingRejected { signal, reason, .. } => {
                    self.metrics.implausible_readings.with([*signal, *reason]).inc();
                }
                _ => {}
            }
            self.publish(sampled.wall, change);
        }
        let Some(evaluation) = record.evaluation() else { return };
        for (id, eviction) in (*first_id..).zip(&evaluation.evictions) {
            self.count_eviction(event, evaluation, eviction);
            if let Some(events) = &mut self.events {
                events.decided(id, &self.decision_ids.of(id), eviction, self.clock.shown(record.at));
            }
            let line = self.eviction_line(id, event, evaluation, eviction);
            self.publish(record.at, Event::EvictionDecision(Box::new(line)));
        }
    }

    /// Exports which signals are unavailable, which thresholds are met, and which conditions hold.
    fn export_status(&mut self, record: &DecisionRecord) {
        for signal in Signal::ALL {
            let value = i64::from(record.unavailable.contains(&signal));
            self.metrics.signal_unavailable.with([signal.name()]).set(value);
        }
        for condition in NodeCondition::ALL {
            let holds = record.conditions.iter().any(|it| it.condition == condition);
            self.metrics.node_condition.with([condition.name()]).set(i64::from(holds));
        }
        if let Some(proposal) = &record.proposal {
            self.metrics.config_pending.set(i64::from(matches!(proposal, ProposalState::Pending { .. })));
        }
        let Some(evaluation) = record.evaluation() else { return };
        for threshold in &evaluation.thresholds {
            let is_met = threshold.met.is_some();
            // A signal that was never known has no series, because the agent may not run on a node.
            let reading = evaluation.signal(threshold.signal);
            if is_met || reading.is_some_and(|reading| reading.available.is_some()) {
                self.known.insert(threshold.signal);
            }
            if self.known.contains(threshold.signal) {
                let labels = [threshold.signal.name(), threshold.kind()];
                self.metrics.threshold_met.with(labels).set(Some(i64::from(is_met)));
            }
        }
    }

    /// Records a Kubernetes Event for a threshold that is met or cleared.
    fn threshold_event(&self, line: &event_log::ThresholdEvent, sampled: Instant) {
        let is_known = line.state != ThresholdStatus::Unknown;
        if let Some(events) = self.events.as_ref().filter(|_| is_known) {
            let threshold = format!("{}/{}", line.signal, line.threshold);
            let is_met = line.state == ThresholdStatus::Met;
            events.threshold(threshold, is_met, &line.to_string(), self.clock.shown(sampled.wall));
        }
    }

    fn count_eviction(
        &self,
        event: &DecisionEvent,
        evaluation: &EvaluationRecord,
        eviction: &EvictionRecord,
    ) {
        if let Some(latency) = event.latency_ns() {
            #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
            self.metrics.reaction_latency.observe(latency as f64 / 1e9);
        }
        let Some(threshold) = evaluation.threshold_of(eviction) else { return };
        self.metrics.eviction_decisions.with([threshold.signal.name()]).inc();
        let available = evaluation.signal(threshold.signal).and_then(|signal| signal.available);
        let value = threshold.quantity.as_ref().map(Quantity::value);
        if let (Some(value), Some(available)) = (value, available)
            && threshold.is_hard()
            && threshold.signal == Signal::MemoryAvailable
        {
            self.metrics.overshoot.observe(overshoot(value, available));
        }
    }

    fn eviction_line(
        &self,
        id: u64,
        event: &DecisionEvent,
        evaluation: &EvaluationRecord,
        eviction: &EvictionRecord,
    ) -> event_log::EvictionDecision {
        let DecisionEvent { usage, crossed_mono_ns, sampled, decided_mono_ns, .. } = event;
        let threshold = evaluation.threshold_of(eviction);
        let reading = threshold.and_then(|threshold| evaluation.signal(threshold.signal));
        event_log::EvictionDecision {
            id,
            decision_id: self.decision_ids.of(id),
            signal: threshold.map_or("", |threshold| threshold.signal.name()),
            threshold: threshold.map_or("", ThresholdRecord::kind),
            pod: PodRef::from(&eviction.pod),
            pod_uid: eviction.pod.uid.to_string(),
            grace_seconds: eviction.grace_period_seconds,
            eviction_message: eviction.message.clone(),
            annotations: eviction.annotations.clone(),
            value: threshold.and_then(|threshold| threshold.quantity.clone()).unwrap_or_default().to_string(),
            available: reading.and_then(|reading| reading.available),
            usage: usage.map(|usage| usage.usage),
            working_set: usage.map(|usage| usage.working_set),
            detected_by: event.detected_by,
            sample_age_us: decided_mono_ns.saturating_sub(sampled.mono_ns) / 1_000,
            candidates: self.candidates(evaluation),
            candidates_omitted: evaluation.candidates.len().saturating_sub(SHOWN),
            crossed_mono_ns: *crossed_mono_ns,
            sampled_mono_ns: sampled.mono_ns,
            decided_mono_ns: *decided_mono_ns,
            crossed_to_decided_us: event.latency_ns().map(|ns| ns / 1_000),
        }
    }

    fn candidates(&self, evaluation: &EvaluationRecord) -> Vec<event_log::Candidate> {
        let shown = evaluation.candidates.iter().take(SHOWN).map(|candidate| {
            let rates = self.pod_rates.rates(&candidate.pod.namespace, &candidate.pod.name);
            let above_zero = |rate: &f64| *rate > 0.0;
            event_log::Candidate {
                pod: PodRef::from(&candidate.pod),
                usage: candidate.usage,
                bytes_elsewhere: candidate.bytes_elsewhere,
                request: candidate.request.as_ref().map(Quantity::value),
                priority: candidate.priority,
                skipped_reason: candidate.skipped_reason.clone(),
                forks_per_second: rates.map(|rates| rates.forks_per_second).filter(above_zero),
                reclaim_stall_ratio: rates.map(|rates| rates.reclaim_stall).filter(above_zero),
            }
        });
        shown.collect()
    }
}

/// Returns the amount that is missing to the threshold, or 0.
fn overshoot(threshold: i64, available: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
    let beyond = threshold.saturating_sub(available).max(0) as f64;
    beyond
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{Form, Metrics};

    #[test]
    fn overshoot_is_never_negative() {
        let whole = [(100, 30), (100, 100), (100, 101), (i64::MAX, i64::MIN)].map(|(t, a)| overshoot(t, a));
        assert_eq!(whole, [70.0, 0.0, 0.0, i64::MAX as f64]);
    }

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
