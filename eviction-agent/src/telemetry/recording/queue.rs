//! The control loop's end of a recording: a bounded queue on which it never waits.
//!
//! Samples are copied into buffers that come back, so that a sample allocates nothing. What does not fit is
//! lost and counted, and everything after it as well until the next [`Key`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eviction_core::input::{Event, Input};
use eviction_core::record::{DecisionRecord, PodSample};
use eviction_core::snapshot::Snapshot;
use prometheus_client::metrics::counter::Counter;

use super::{Key, Recorded};
use crate::spsc::{Next, Receiver, Sender};

/// Inputs that wait for the recorder.
pub(super) const INPUTS: usize = 512;
/// Samples among them.
pub(super) const SAMPLES: usize = 64;

/// Takes what the engine is told.
#[derive(Debug)]
pub(crate) struct RecordingQueue {
    pub(super) queue: Sender<Recorded>,
    /// Samples that were written.
    pub(super) buffers: Receiver<Arc<Snapshot>>,
    /// The recorder wants to begin a segment.
    pub(super) wants_key: Arc<AtomicBool>,
    /// There was a key, and nothing was lost since.
    pub(super) is_open: bool,
    /// Inputs that were lost since the last key.
    pub(super) lost: u64,
    pub(super) dropped: Counter,
    /// Whether what the engine decides is not carried out.
    pub(super) dry_run: bool,
}

impl RecordingQueue {
    /// Whether a [`Key`] is to be sent at the end of an iteration.
    pub(crate) fn wants_key(&self) -> bool {
        self.wants_key.load(Ordering::Relaxed) || (!self.is_open && self.lost > 0)
    }

    /// Begins a segment with that key.
    pub(crate) fn key(&mut self, key: Key) {
        let key = Key { lost: self.lost, dry_run: self.dry_run, ..key };
        if self.queue.send(Recorded::Key(Box::new(key))).is_ok() {
            self.wants_key.store(false, Ordering::Relaxed);
            (self.is_open, self.lost) = (true, 0);
        }
    }

    /// Records an input.
    pub(crate) fn input(&mut self, input: &Input) {
        let event = match &input.event {
            Event::Sample(sample) => self.copy(sample).map(Event::Sample),
            Event::Reclaimed(Ok(sample)) => self.copy(sample).map(|copy| Event::Reclaimed(Ok(copy))),
            Event::Admission(_) => return,
            other => Some(other.clone()),
        };
        self.send(event.map(|event| Recorded::Input(Input { at: input.at, event })));
    }

    /// Records something else, or loses it.
    pub(crate) fn send(&mut self, recorded: Option<Recorded>) {
        if self.is_open
            && let Some(recorded) = recorded
            && self.queue.send(recorded).is_ok()
        {
            return;
        }
        if self.is_open || self.lost > 0 {
            self.is_open = false;
            self.lost += 1;
            self.dropped.inc();
        }
    }

    fn copy(&mut self, sample: &Snapshot) -> Option<Arc<Snapshot>> {
        if !self.is_open {
            return None;
        }
        let Next::Value(mut copy) = self.buffers.next() else { return None };
        Arc::get_mut(&mut copy)?.copy_from(sample);
        Some(copy)
    }
}

/// Takes what telemetry has to record: decisions, and what pods use.
#[derive(Debug)]
pub(crate) struct ReportQueue {
    pub(super) queue: Sender<Recorded>,
    pub(super) dropped: Counter,
}

impl ReportQueue {
    /// Records a decision.
    pub(crate) fn decision(&mut self, record: &DecisionRecord) {
        match serde_json::to_string(record) {
            Ok(json) => self.send(Recorded::Decision(json)),
            Err(error) => tracing::error!(%error, "a decision cannot be written as JSON"),
        }
    }

    /// Records what pods use.
    pub(crate) fn usage(&mut self, sample: &PodSample) {
        self.send(Recorded::Usage(sample.at, Arc::clone(&sample.snapshot)));
    }

    fn send(&mut self, recorded: Recorded) {
        if self.queue.send(recorded).is_err() {
            self.dropped.inc();
        }
    }
}
