//! What the control loop sends to telemetry, through a bounded queue.
//!
//! When the queue is full, an event is dropped and counted: the control loop never waits, neither for room nor for a
//! lock.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::metrics::Metrics;
use eviction_core::decision::Decision;
use eviction_core::pod::PodName;
use eviction_core::progress::{KillRejection, KillUpdate};
use eviction_core::reading::UnknownReason;
use eviction_core::record::PodSample;
use eviction_core::signal::Signal;
use eviction_core::time::Timestamp;

use crate::error::Failure;
use crate::spsc::{Receiver, Sender, channel};
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::pod_rates::PodTaskDelta;
use eviction_node::clock::{Clock, Instant};
use eviction_node::sampler::MemoryUsage;

/// Some seconds of the busiest node; each is a few hundred bytes.
const QUEUE: usize = 1024;

/// Decisions and samples of pods that wait, at most: each has the values of all pods.
const DECISIONS: usize = 16;

/// What is to be published or counted.
#[derive(Debug)]
pub(crate) enum TelemetryEvent {
    /// A decision in which something changed: thresholds, conditions, or a pod was selected.
    Decision(Box<DecisionEvent>),
    /// A step of an eviction.
    Progress(EvictionUpdate),
    /// An event that is published as it is, with the metrics that belong to it.
    Event(Box<Event>, Timestamp),
    /// A signal cannot be read, for this reason.
    Unknown(Signal, UnknownReason, Timestamp),
    /// Pods and cgroups were joined anew; `reread`: with a list of pods that was read anew.
    /// `pods_root`: the folder of the group of all pods.
    Pods { pods: event_log::Pods, reread: bool, pods_root: Option<PathBuf>, at: Timestamp },
    /// The pods file cannot be used any more, and why.
    PodsInvalid(String, Timestamp),
    /// What the tasks of pods did since the last one.
    PodActivity(Vec<PodTaskDelta>, Instant),
    /// What all pods use.
    PodSample(Box<PodSample>, OwnedSemaphorePermit),
}

/// A decision with the circumstances of its sample.
#[derive(Debug)]
pub(crate) struct DecisionEvent {
    pub(crate) decision: Decision,
    /// The number of the first eviction in it; the others follow.
    pub(crate) first_id: u64,
    /// The node's memory in the sample.
    pub(crate) usage: Option<MemoryUsage>,
    pub(crate) detected_by: &'static str,
    /// The kernel's stamp of the threshold crossing, if one caused the sample.
    pub(crate) crossed_mono_ns: Option<u64>,
    pub(crate) sampled: Instant,
    pub(crate) decided_mono_ns: u64,
    /// Bounds how many there are at once.
    #[expect(dead_code, reason = "what counts is when it is dropped")]
    pub(crate) permit: OwnedSemaphorePermit,
}

impl DecisionEvent {
    /// How long after the threshold was crossed it was made, if a crossing caused it.
    pub(crate) fn latency_ns(&self) -> Option<u64> {
        self.crossed_mono_ns.map(|crossed| self.decided_mono_ns.saturating_sub(crossed))
    }
}

/// A step of an eviction.
#[derive(Debug)]
pub(crate) struct EvictionUpdate {
    pub(crate) id: u64,
    pub(crate) pod: Arc<PodName>,
    pub(crate) signal: Option<Signal>,
    pub(crate) decided_mono_ns: u64,
    pub(crate) step: Step,
}

/// What the executor reports, or why it refused.
#[derive(Debug)]
pub(crate) enum Step {
    Progress(KillUpdate),
    Refused(KillRejection),
}

/// Ids of decisions: the start of the first agent whose numbers were continued, in milliseconds and hexadecimal digits, and
/// a number. They are unique on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DecisionIds {
    first_start_ms: i64,
}

impl DecisionIds {
    /// Those of an agent that continues no other one.
    pub(crate) fn of_this_start() -> Self {
        Self { first_start_ms: Clock::start().now().wall.as_millisecond() }
    }

    /// The name of the decision of this number.
    pub(crate) fn of(self, decision: u64) -> String {
        format!("{:x}-{decision}", self.first_start_ms)
    }
}

/// The control loop's end of the queue.
#[derive(Debug)]
pub(crate) struct TelemetryQueue {
    queue: Sender<TelemetryEvent>,
    decisions: Arc<Semaphore>,
    dropped: Counter,
}

impl TelemetryQueue {
    /// # Errors
    /// If there can be no queue.
    pub(crate) fn new(metrics: &Metrics) -> Result<(Self, Receiver<TelemetryEvent>), Failure> {
        let (mut queue, mut receiver) =
            channel(QUEUE).map_err(|error| Failure::because("make the telemetry queue", &error))?;
        queue.touch(&mut receiver, || {
            TelemetryEvent::Unknown(Signal::MemoryAvailable, UnknownReason::Absent, Timestamp::UNIX_EPOCH)
        });
        let decisions = Arc::new(Semaphore::new(DECISIONS));
        Ok((Self { queue, decisions, dropped: metrics.telemetry_dropped.with(["events"]) }, receiver))
    }

    /// Never waits: what does not fit is dropped and counted.
    pub(crate) fn send(&mut self, event: TelemetryEvent) {
        if self.queue.send(event).is_err() {
            self.lose();
        }
    }

    /// Sends an event that is published as it is.
    pub(crate) fn publish(&mut self, event: Event, at: Timestamp) {
        self.send(TelemetryEvent::Event(Box::new(event), at));
    }

    /// Sends a decision, unless too many wait for their record: then it is dropped and counted.
    pub(crate) fn send_decision(&mut self, event: impl FnOnce(OwnedSemaphorePermit) -> DecisionEvent) {
        match Arc::clone(&self.decisions).try_acquire_owned() {
            Ok(permit) => self.send(TelemetryEvent::Decision(Box::new(event(permit)))),
            Err(_) => self.lose(),
        }
    }

    /// Sends a sample of pods, unless too many wait: the next one will do.
    pub(crate) fn send_pods(&mut self, sample: impl FnOnce() -> PodSample) {
        let has_room = self.decisions.available_permits() > DECISIONS / 2;
        if let (true, Ok(permit)) = (has_room, Arc::clone(&self.decisions).try_acquire_owned()) {
            self.send(TelemetryEvent::PodSample(Box::new(sample()), permit));
        }
    }

    fn lose(&self) {
        self.dropped.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_of_two_starts_have_two_names() {
        let of = |first_start_ms| DecisionIds { first_start_ms }.of(3);
        assert_eq!((of(0x19a8f).as_str(), of(0x19a90).as_str()), ("19a8f-3", "19a90-3"));
    }
}
