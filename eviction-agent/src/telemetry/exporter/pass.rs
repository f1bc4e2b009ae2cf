//! What is said of a look that the pipeline went through, and of what it decided.

use crate::telemetry::metrics::{ConditionLabels, SignalLabels, ThresholdLabels};
use eviction_core::decision::{Action, Decision, Evaluation, ProposalState};
use eviction_core::message;
use eviction_core::pressure::CONDITIONS;
use eviction_core::report::CandidateReport;
use eviction_core::signal::{NodeCondition, Signal};
use eviction_core::units::Quantity;

use super::TelemetryExporter;
use crate::daemon::clock::Instant;
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::queue::DecisionEvent;

/// How many of the ranked pods a line shows.
const SHOWN: usize = 8;

impl TelemetryExporter {
    pub(super) fn pass(&mut self, note: &DecisionEvent) {
        let DecisionEvent {
            decision,
            first_id,
            seen,
            seen_by,
            crossed_mono_ns,
            looked,
            decided_mono_ns,
            before,
            copied: _,
        } = note;
        let (first_id, seen, seen_by, looked) = (*first_id, *seen, *seen_by, *looked);
        let (crossed_mono_ns, decided_mono_ns) = (*crossed_mono_ns, *decided_mono_ns);
        if let Some(pass) = decision.pass() {
            self.thresholds(pass, seen_by, looked);
        }
        if let Some(ProposalState::TookEffect) = decision.proposal {
            self.took_effect.notify_one();
        }
        for event in self.watch.take(decision, &self.metrics, &self.clock) {
            self.say(looked.wall, event);
        }
        let hold = decision.conditions.iter().map(|raised| raised.condition).collect();
        self.conditions(hold, decision.unknown_conditions().collect(), looked);
        if let (Some(recorder), Some(before)) = (&self.recorder, before) {
            recorder.take(&self.names.of(first_id), before, decision);
        }
        let Some(pass) = decision.pass() else { return };
        let late = crossed_mono_ns.map(|crossed| decided_mono_ns.saturating_sub(crossed));
        let evictions = decision.actions.iter().filter_map(|action| match action {
            Action::Evict(eviction) | Action::ShortenGrace(eviction) => Some(eviction),
            Action::RecordEvent(_) | Action::Reclaim(_) => None,
        });
        for (id, eviction) in (first_id..).zip(evictions) {
            let Some(known) = pass.pods.get(eviction.place) else { continue };
            let text = message::eviction(pass, eviction);
            let line = pass.line_of(eviction.cause);
            let signal = line.map(|line| line.threshold.signal);
            if let Some(late) = late {
                #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
                self.metrics.reaction_latency.observe(late as f64 / 1e9);
            }
            if let Some(signal) = signal {
                self.metrics
                    .eviction_decisions
                    .get_or_create(&SignalLabels { eviction_signal: signal.name() })
                    .inc();
            }
            let observed = signal.and_then(|signal| pass.seen.get(signal));
            let capacity = observed.map_or(0, |seen| seen.capacity);
            if let (Some(line), Some(seen)) = (line, observed)
                && line.threshold.is_hard()
                && line.threshold.signal == Signal::MemoryAvailable
            {
                let beyond = overshoot(line.threshold.value.quantity(capacity).value(), seen.available);
                self.metrics.overshoot.observe(beyond);
            }
            self.say(
                decision.at,
                Event::EvictionDecision(Box::new(event_log::EvictionDecision {
                    id,
                    decision_id: self.names.of(id),
                    signal: signal.map_or("", Signal::name),
                    threshold: line.map_or("", |line| hard_or_soft(line.threshold.is_hard())),
                    pod: event_log::PodRef::new(&known.pod.namespace, &known.pod.name),
                    pod_uid: known.pod.uid.to_string(),
                    grace_seconds: eviction.grace_period_seconds,
                    eviction_message: text.message,
                    annotations: text
                        .annotations
                        .map(|all| all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
                    value: line
                        .map_or_else(String::new, |line| line.threshold.value.quantity(capacity).to_string()),
                    available: observed.map(|seen| seen.available),
                    usage: seen.map(|seen| seen.usage),
                    working_set: seen.map(|seen| seen.working_set),
                    detected_by: seen_by.to_owned(),
                    sample_age_us: Some(micros(decided_mono_ns.saturating_sub(looked.mono_ns))),
                    candidates_omitted: pass.ranked.len().saturating_sub(SHOWN),
                    candidates: self.candidates(decision),
                    crossed_mono_ns,
                    sampled_mono_ns: looked.mono_ns,
                    decided_mono_ns,
                    crossed_to_decided_us: late.map(micros),
                })),
            );
        }
    }

    fn thresholds(&mut self, pass: &Evaluation, seen_by: &'static str, looked: Instant) {
        let now: Vec<u8> = pass.met.iter().map(|met| met.line).collect();
        let mut lost = Vec::new();
        for (place, line) in (0..).zip(pass.lines.iter()) {
            let (is, was) = (now.contains(&place), self.met.contains(&place));
            let threshold = &line.threshold;
            let seen = pass.seen.get(threshold.signal);
            // Of what was never known it is not said that all is well: disks are not watched.
            if is || seen.is_some() {
                self.known.insert(threshold.signal);
            }
            if self.known.contains(threshold.signal) {
                let labels = ThresholdLabels {
                    eviction_signal: threshold.signal.name(),
                    threshold: hard_or_soft(threshold.is_hard()),
                };
                self.metrics.threshold_met.get_or_create(&labels).set(Some(i64::from(is)));
            }
            let before = State::of(was, !self.lost.contains(&place));
            let state = before.next(is, seen.is_some());
            if state == State::Unknown {
                lost.push(place);
            }
            if state == before {
                continue;
            }
            let event = event_log::Threshold {
                signal: threshold.signal.name(),
                threshold: hard_or_soft(threshold.is_hard()),
                state: state.name(),
                value: threshold.value.quantity(seen.map_or(0, |seen| seen.capacity)).to_string(),
                available: seen.map(|seen| seen.available),
                capacity: seen.map(|seen| seen.capacity),
                detected_by: seen_by.to_owned(),
            };
            self.say(looked.wall, Event::Threshold(event));
        }
        self.met = now;
        self.lost = lost;
    }

    fn conditions(&mut self, now: Vec<NodeCondition>, unknown: Vec<NodeCondition>, looked: Instant) {
        let status = |holds: bool, unknown: bool| match (holds, unknown) {
            (true, _) => "True",
            (false, true) => "Unknown",
            (false, false) => "False",
        };
        for condition in CONDITIONS {
            let holds = now.contains(&condition);
            self.metrics
                .node_condition
                .get_or_create(&ConditionLabels { condition: condition.name() })
                .set(i64::from(holds));
            let before =
                status(self.conditions.contains(&condition), self.unknown_conditions.contains(&condition));
            let status = status(holds, unknown.contains(&condition));
            if status != before {
                self.say(
                    looked.wall,
                    Event::Condition(event_log::Condition { condition: condition.name(), status }),
                );
            }
        }
        self.conditions = now;
        self.unknown_conditions = unknown;
    }

    fn candidates(&self, decision: &Decision) -> Vec<event_log::Candidate> {
        let shown = CandidateReport::first(decision, SHOWN).into_iter().map(|candidate| {
            let rates = self.tallies.rates(&candidate.pod.namespace, &candidate.pod.name);
            let above_zero = |rate: &f64| *rate > 0.0;
            event_log::Candidate {
                pod: event_log::PodRef::new(&candidate.pod.namespace, &candidate.pod.name),
                usage: candidate.usage,
                request: candidate.request.and_then(|text| Some(Quantity::parse(&text).ok()?.value())),
                priority: candidate.priority,
                skipped_reason: candidate.passed_over,
                forks_per_second: rates.map(|rates| rates.forks_per_second).filter(above_zero),
                reclaim_stall_ratio: rates.map(|rates| rates.reclaim_stall).filter(above_zero),
            }
        });
        shown.collect()
    }
}

/// What was last reported of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Cleared,
    Met,
    /// It was met when its signal became unknown.
    Unknown,
}

impl State {
    fn of(is_met: bool, is_known: bool) -> Self {
        match (is_met, is_known) {
            (true, _) => Self::Met,
            (false, true) => Self::Cleared,
            (false, false) => Self::Unknown,
        }
    }

    /// A threshold that is no longer met is cleared only if its signal is known.
    fn next(self, is_met: bool, is_known: bool) -> Self {
        match (self, is_met, is_known) {
            (_, true, _) => Self::Met,
            (_, false, true) | (Self::Cleared, false, false) => Self::Cleared,
            (Self::Met | Self::Unknown, false, false) => Self::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cleared => "cleared",
            Self::Met => "met",
            Self::Unknown => "unknown",
        }
    }
}

/// By how much less there is than the threshold asks for.
fn overshoot(threshold: i64, available: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a histogram's value")]
    let beyond = threshold.saturating_sub(available).max(0) as f64;
    beyond
}

fn hard_or_soft(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

pub(super) fn micros(ns: u64) -> u64 {
    ns / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoot_is_never_negative() {
        let whole = [(100, 30), (100, 100), (100, 101), (i64::MAX, i64::MIN)].map(|(t, a)| overshoot(t, a));
        assert_eq!(whole, [70.0, 0.0, 0.0, i64::MAX as f64]);
    }

    #[test]
    fn a_threshold_whose_signal_becomes_unknown_is_not_cleared() {
        use State::{Cleared, Met, Unknown};
        assert_eq!(Met.next(false, false), Unknown);
        assert_eq!(Unknown.next(false, false), Unknown);
        assert_eq!(Unknown.next(false, true), Cleared);
        assert_eq!(Unknown.next(true, true), Met);
        assert_eq!(Met.next(false, true), Cleared);
        assert_eq!(Cleared.next(false, false), Cleared, "nothing was met");
        assert_eq!(State::of(false, false), Unknown);
    }
}
