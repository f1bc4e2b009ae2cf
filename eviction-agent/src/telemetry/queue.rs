//! The bounded queue through which the control loop sends events to telemetry.
//!
//! When the queue is full, an event is dropped and counted: the control loop waits neither for space nor for a lock.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::metrics::Metrics;
use eviction_core::decision::Decision;
use eviction_core::pod::PodName;
use eviction_core::pods::KnownPod;
use eviction_core::progress::{KillProgress, KillRejection};
use eviction_core::reading::UnknownReason;
use eviction_core::record::PodSample;
use eviction_core::signal::Signal;
use eviction_core::time::Timestamp;

use crate::error::Failure;
use crate::spsc::{Receiver, Sender, channel};
use crate::telemetry::event_log::{self, Event};
use crate::telemetry::pod_metrics::PodActivity;
use eviction_node::clock::{Clock, Instant};
use eviction_node::sampler::MemoryUsage;

/// Capacity of the queue: some seconds of the busiest node. Each entry has a few hundred bytes.
const QUEUE: usize = 1024;

/// The maximum number of decisions and pod samples that wait. Each has the values of all pods.
const DECISIONS: usize = 16;

/// An event to publish or count. A permit limits the number of decisions and pod samples that wait.
#[derive(Debug)]
pub(crate) enum TelemetryEvent {
    /// A decision with a change of thresholds or conditions, or with a selected pod.
    Decision(Box<DecisionEvent>, OwnedSemaphorePermit),
    /// A step of an eviction.
    Progress(EvictionUpdate),
    /// An event that is published unchanged, with its metrics.
    Event(Box<Event>, Timestamp),
    /// A signal cannot be read, with the reason.
    Unknown(Signal, UnknownReason, Timestamp),
    /// Pods and cgroups were matched again. `reread`: the list of pods was read again. `pods_root`: the folder of the
    /// cgroup of all pods.
    Pods { pods: event_log::PodsEvent, reread: bool, pods_root: Option<PathBuf>, at: Timestamp },
    /// The pods file has become unusable, with the reason.
    PodsInvalid(String, Timestamp),
    /// The activity of the tasks of each cgroup since the previous event, with its pod if it is of a known one.
    PodActivity(Vec<(Option<Arc<KnownPod>>, PodActivity)>, Instant),
    /// The usage of all pods.
    PodSample(Box<PodSample>, OwnedSemaphorePermit),
}

/// A decision with the sample that led to it.
#[derive(Debug)]
pub(crate) struct DecisionEvent {
    pub(crate) decision: Decision,
    /// The id of the first eviction of the decision. The other evictions have the next ids.
    pub(crate) first_id: u64,
    /// The node's memory in the sample.
    pub(crate) usage: Option<MemoryUsage>,
    pub(crate) detected_by: &'static str,
    /// The kernel's stamp of the threshold crossing, if one caused the sample.
    pub(crate) crossed_mono_ns: Option<u64>,
    pub(crate) sampled: Instant,
    pub(crate) decided_mono_ns: u64,
}

impl DecisionEvent {
    /// Returns the time from the threshold crossing to the decision, if a crossing caused it.
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
    pub(crate) mono_ns: u64,
    /// Progress that the executor reports, or the reason why it rejected the action.
    pub(crate) step: Result<KillProgress, KillRejection>,
}

/// The prefix of decision ids. An id is a start time in milliseconds as hexadecimal digits, and a number; the start
/// is that of the first agent whose numbers were continued. Ids are unique on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DecisionIds {
    first_start_ms: i64,
}

impl DecisionIds {
    /// Returns the ids of an agent that does not continue the numbers of another one.
    pub(crate) fn of_this_start() -> Self {
        Self { first_start_ms: Clock::start().now().wall.as_millisecond() }
    }

    /// Returns the id of the decision with this number.
    pub(crate) fn of(self, decision: u64) -> String {
        format!("{:x}-{decision}", self.first_start_ms)
    }
}

/// The sending end of the queue, for the control loop.
#[derive(Debug)]
pub(crate) struct TelemetryQueue {
    queue: Sender<TelemetryEvent>,
    decisions: Arc<Semaphore>,
    dropped: Counter,
}

impl TelemetryQueue {
    /// # Errors
    /// If the queue cannot be created.
    pub(crate) fn new(metrics: &Metrics) -> Result<(Self, Receiver<TelemetryEvent>), Failure> {
        let (mut queue, mut receiver) =
            channel(QUEUE).map_err(|error| Failure::because("make the telemetry queue", &error))?;
        queue.touch(&mut receiver, || {
            TelemetryEvent::Unknown(Signal::MemoryAvailable, UnknownReason::Absent, Timestamp::UNIX_EPOCH)
        });
        let decisions = Arc::new(Semaphore::new(DECISIONS));
        Ok((Self { queue, decisions, dropped: metrics.telemetry_dropped.with(["events"]) }, receiver))
    }

    /// Sends an event without waiting. An event that does not fit is dropped and counted.
    pub(crate) fn send(&mut self, event: TelemetryEvent) {
        if self.queue.send(event).is_err() {
            self.dropped.inc();
        }
    }

    /// Sends an event that is published unchanged.
    pub(crate) fn publish(&mut self, event: Event, at: Timestamp) {
        self.send(TelemetryEvent::Event(Box::new(event), at));
    }

    /// Sends a decision, unless too many decisions wait to be recorded. Then the decision is dropped and counted.
    pub(crate) fn send_decision(&mut self, event: impl FnOnce() -> DecisionEvent) {
        match Arc::clone(&self.decisions).try_acquire_owned() {
            Ok(permit) => self.send(TelemetryEvent::Decision(Box::new(event()), permit)),
            Err(_) => {
                self.dropped.inc();
            }
        }
    }

    /// Sends a sample of pods, unless too many samples and decisions wait. The next sample replaces it.
    pub(crate) fn send_pods(&mut self, sample: impl FnOnce() -> PodSample) {
        let has_room = self.decisions.available_permits() > DECISIONS / 2;
        if let (true, Ok(permit)) = (has_room, Arc::clone(&self.decisions).try_acquire_owned()) {
            self.send(TelemetryEvent::PodSample(Box::new(sample()), permit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_ids_differ_between_agent_starts() {
        let of = |first_start_ms| DecisionIds { first_start_ms }.of(3);
        assert_eq!((of(0x19a8f).as_str(), of(0x19a90).as_str()), ("19a8f-3", "19a90-3"));
    }
}
