//! An event line: an event with its time, its node and its severity.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::{Event, ThresholdStatus};
use eviction_core::oom::TerminationCause;

/// The version of the JSON format. It is increased when a field is renamed or removed, or changes
/// its meaning.
const SCHEMA_VERSION: u32 = 1;

/// An event line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The time of the event. It is never before the time of the previous line, unless the system
    /// clock is set.
    pub at: Timestamp,
    schema_version: u32,
    /// The severity of the event.
    pub severity: Severity,
    /// The name of the node object, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The event as text.
    pub message: String,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

impl Line {
    /// Returns the line of an event.
    pub fn new(at: Timestamp, node: Option<String>, event: Event) -> Self {
        let (severity, message) = (event.severity(), event.to_string());
        Self { at, schema_version: SCHEMA_VERSION, severity, node, message, event }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} {}", self.at, self.message)
    }
}

/// The severity of a line, with the usual levels of log collectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Useful only for troubleshooting.
    Debug,
    /// Normal operation.
    Info,
    /// The node, a pod or the agent is under pressure or degraded.
    Warning,
    /// The agent cannot do a part of its work.
    Error,
}

/// Results of evictions that need an operator.
const FAILED: [&str; 4] = ["error", "processes_remaining", "forbidden", "unauthorized"];

/// Results of evictions that need no operator.
const PASSED: [&str; 6] = ["dry_run", "signalled", "killed", "accepted", "terminated", "replaced"];

impl Event {
    /// Returns the severity of the event.
    pub fn severity(&self) -> Severity {
        use Severity::{Debug, Error, Info, Warning};
        let or_info = |is: bool, severity: Severity| if is { severity } else { Info };
        match self {
            Self::Started(_) | Self::Stopped { .. } => Info,
            Self::Pods(pods) => or_info(pods.error.is_some() || !pods.undecodable.is_empty(), Warning),
            Self::Threshold(threshold) => or_info(threshold.state != ThresholdStatus::Cleared, Warning),
            Self::Condition { status, .. } => or_info(*status != "False", Warning),
            Self::EvictionProgress(progress) if FAILED.contains(&progress.result) => Error,
            Self::EvictionProgress(progress) => or_info(!PASSED.contains(&progress.result), Warning),
            Self::ContainerTerminated(terminated) => {
                or_info(terminated.cause != TerminationCause::Other, Warning)
            }
            Self::SignalReadError { .. } => Error,
            Self::SignalUnavailable { state, .. } => or_info(*state == "unavailable", Error),
            Self::ConfigChange(change) => match change.state {
                "invalid" => Error,
                "pending" => Warning,
                "unchanged" => Debug,
                _ => Info,
            },
            Self::MemoryLimit(limit) => or_info(limit.state == "near", Warning),
            Self::NodeReclaim(reclaim) => or_info(["failed", "timed_out"].contains(&reclaim.result), Warning),
            Self::PodFreeze { state: "failed", .. } => Error,
            Self::PodFreeze { state, .. } => or_info(*state == "frozen", Warning),
            Self::KubeApi { state } => or_info(*state == "unreachable", Error),
            Self::Backend(_)
            | Self::EvictionDecision(_)
            | Self::KernelKill(_)
            | Self::OomKill(_)
            | Self::ContainerStatusMismatch(_)
            | Self::ReadingRejected { .. }
            | Self::BpfEventsLost { .. }
            | Self::TaskAlarm(_) => Warning,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::event_log::{EvictionProgress, PodRef};

    #[test]
    fn json_has_the_fields_of_every_line_and_those_of_its_event() {
        let event = EvictionProgress {
            id: 7,
            decision_id: "19a8f3-7".into(),
            pod: PodRef::new("shop", "web"),
            pod_uid: "u-1".into(),
            result: "terminated",
            processes: None,
            reason: None,
            mono_ns: 1,
            since_decision_us: 2_500,
        };
        let line = Line::new(Timestamp::UNIX_EPOCH, Some("worker-1".into()), Event::EvictionProgress(event));
        let wanted = serde_json::json!({
            "at": "1970-01-01T00:00:00Z", "schema_version": 1, "severity": "info", "node": "worker-1",
            "message": "eviction 7 of shop/web: terminated (2.50 ms after the decision)",
            "event": "eviction_progress", "id": 7, "decision_id": "19a8f3-7", "namespace": "shop",
            "pod": "web", "pod_uid": "u-1", "result": "terminated", "mono_ns": 1, "since_decision_us": 2500,
        });
        assert_eq!(serde_json::to_value(&line).unwrap(), wanted);
        assert_eq!(
            line.to_string(),
            format!("1970-01-01T00:00:00.000Z {}", wanted["message"].as_str().unwrap())
        );
        let line = Line::new(line.at, None, Event::Stopped { reason: "SIGTERM".into() });
        assert_eq!(serde_json::to_value(&line).unwrap().get("node"), None, "it is not known");
    }

    #[test]
    fn signal_read_error_is_an_error_and_a_stop_is_info() {
        let error = Event::SignalReadError { signal: "memory.available", error: "x".into() };
        assert_eq!(error.severity(), Severity::Error);
        assert_eq!(Event::Stopped { reason: "SIGTERM".into() }.severity(), Severity::Info);
    }
}
