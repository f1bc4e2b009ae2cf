//! A report of the last minutes of a running agent, from the responses of its local API.

use std::collections::BTreeMap;

use eviction_core::time::Timestamp;
use jiff::SignedDuration;
use serde::Deserialize as _;
use serde_json::Value;

use super::{CandidateReport, DecisionReport, EventReport, PodReport, Report, Signals, add_signals};
use crate::telemetry::live::EventCursor;
use crate::telemetry::live::state::{NodeState, PodState};

/// The time for which points are kept.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// The intervals of the points of signals and pods, in milliseconds.
const SIGNAL_MS: i64 = 2000;
const POD_MS: i64 = 4000;

/// The report of a running agent so far.
#[derive(Clone, Debug)]
pub struct LiveReport {
    report: Report,
    signals: Signals,
    pods: BTreeMap<String, PodReport>,
    cursor: EventCursor,
}

impl LiveReport {
    /// Starts a report with a response of `/v1/state`.
    pub fn new(state: &NodeState) -> Self {
        let source = state.node.clone().unwrap_or_else(|| "this node".to_owned());
        let report = Report { live: true, ..Report::new(source, state.at, state.at) };
        Self { report, signals: Signals::new(), pods: BTreeMap::new(), cursor: EventCursor::default() }
    }

    /// Returns the last received event line.
    pub fn cursor(&self) -> EventCursor {
        self.cursor
    }

    /// Adds responses of `/v1/state` and `/v1/events`.
    pub fn take(&mut self, state: &NodeState, events: &str) {
        let begin = state.at.checked_sub(WINDOW).unwrap_or(Timestamp::MIN);
        self.report.to = state.at;
        self.report.from = self.report.from.max(begin);
        add_signals(&mut self.signals, state.at, &state.signals, SIGNAL_MS, begin);
        state.pods.iter().for_each(|pod| self.pod(state.pods_at.unwrap_or(state.at), pod));
        for pod in self.pods.values_mut() {
            pod.usage.remove_before(begin);
            pod.peak = pod.usage.most().unwrap_or_default();
        }
        self.pods.retain(|_, pod| !pod.usage.is_empty());
        self.report.set_ranking(&state.pods, state.pods_omitted);
        events.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|line| self.event(&line));
        self.report.bound_events();
        self.report.bound_decisions();
    }

    fn pod(&mut self, at: Timestamp, pod: &PodState) {
        let report = self.pods.entry(pod.pod_uid.clone()).or_default();
        (report.namespace, report.pod) = (pod.namespace.clone(), pod.pod.clone());
        (report.pod_uid, report.qos) = (pod.pod_uid.clone(), pod.qos.clone());
        (report.priority, report.request) = (pod.priority, pod.request);
        if let Some(usage) = pod.usage {
            report.usage.push(at, usage, POD_MS, i64::max);
            report.last = usage;
        }
    }

    fn event(&mut self, line: &Value) {
        let Ok(event) = EventReport::deserialize(line) else { return };
        self.cursor.advance(line);
        if event.event == "eviction_decision" {
            let uid = line["pod_uid"].as_str().unwrap_or_default();
            if let Some(pod) = self.pods.get_mut(uid) {
                pod.evicted = Some(event.at);
            }
            self.report.decisions.push(decision(event.at, line));
        }
        self.report.event(event);
    }

    /// Returns the current report.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        report.signals = self.signals.values().cloned().collect();
        report.set_pods(self.pods.values().cloned());
        report
    }
}

/// Returns a decision from its event line, which lists the first pods of the eviction order.
fn decision(at: Timestamp, line: &Value) -> DecisionReport {
    let text = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let candidates = line["candidates"].as_array().into_iter().flatten().map(|it| {
        let is_it = it["namespace"] == line["namespace"] && it["pod"] == line["pod"];
        let result = if is_it { "evicted".to_owned() } else { text(it, "skipped_reason") };
        CandidateReport {
            namespace: text(it, "namespace"),
            pod: text(it, "pod"),
            priority: it["priority"].as_i64().and_then(|it| i32::try_from(it).ok()).unwrap_or_default(),
            usage: it["usage"].as_i64(),
            request: it["request"].as_i64().map(|it| it.to_string()),
            result,
        }
    });
    DecisionReport {
        at,
        title: text(line, "message"),
        evicted: vec![format!("{}/{}", text(line, "namespace"), text(line, "pod"))],
        candidates: candidates.collect(),
        candidates_omitted: line["candidates_omitted"]
            .as_u64()
            .map_or(0, |it| usize::try_from(it).unwrap_or(0)),
        explanation: String::new(),
    }
}
