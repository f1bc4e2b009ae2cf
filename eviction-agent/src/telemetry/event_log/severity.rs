//! How urgent an event is.

use serde::Serialize;

use super::Event;
use eviction_core::oom::TerminationCause;

/// The severity of a line, as log collectors have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Of use only while looking for a fault.
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

/// Results of evictions that come to an end without one.
const PASSED: [&str; 6] = ["dry_run", "signalled", "killed", "accepted", "terminated", "replaced"];

impl Event {
    /// How urgent it is.
    pub fn severity(&self) -> Severity {
        use Severity::{Debug, Error, Info, Warning};
        let or_info = |is: bool, severity: Severity| if is { severity } else { Info };
        match self {
            Self::Started(_) | Self::Stopped(_) => Info,
            Self::Pods(pods) => or_info(pods.error.is_some() || !pods.undecodable.is_empty(), Warning),
            Self::Threshold(threshold) => or_info(threshold.state != "cleared", Warning),
            Self::Condition(condition) => or_info(condition.status != "False", Warning),
            Self::EvictionProgress(progress) if FAILED.contains(&progress.result) => Error,
            Self::EvictionProgress(progress) => or_info(!PASSED.contains(&progress.result), Warning),
            Self::ContainerTerminated(terminated) => {
                or_info(terminated.cause() != TerminationCause::Other, Warning)
            }
            Self::SignalReadError(_) => Error,
            Self::SignalUnavailable(signal) => or_info(signal.state == "unavailable", Error),
            Self::ConfigChange(change) => match change.state {
                "invalid" => Error,
                "pending" => Warning,
                "unchanged" => Debug,
                _ => Info,
            },
            Self::MemoryLimit(limit) => or_info(limit.state == "near", Warning),
            Self::NodeReclaim(reclaim) => or_info(["failed", "timed_out"].contains(&reclaim.result), Warning),
            Self::PodFreeze(freeze) if freeze.state == "failed" => Error,
            Self::PodFreeze(freeze) => or_info(freeze.state == "frozen", Warning),
            Self::KubeApi(api) => or_info(api.state == "unreachable", Error),
            Self::Backend(_)
            | Self::EvictionDecision(_)
            | Self::KernelKill(_)
            | Self::OomKill(_)
            | Self::ContainerStatusMismatch(_)
            | Self::ReadingRejected(_)
            | Self::BpfEventsLost(_)
            | Self::TaskAlarm(_) => Warning,
        }
    }
}
