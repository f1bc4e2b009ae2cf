//! Publishes decisions: the telemetry thread gets a copy of each.
//!
//! The record is made there, from the decision and everything that it points to. The lists in it
//! are those that the next evaluation uses, so they stay here; the copy is made after everything was
//! done that cannot wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use eviction_core::decision::{Decision, DecisionKind};

use super::ControlLoop;
use crate::telemetry::queue::{DecisionEvent, TelemetryEvent};

/// Copies that wait for their record, at most: each has the values of all pods.
const MOST: usize = 16;

/// Bounds how many copies there are.
#[derive(Debug, Default)]
pub(crate) struct RecordPermits(Arc<AtomicUsize>);

/// Stands for one of them.
#[derive(Debug)]
pub(crate) struct RecordPermit(Arc<AtomicUsize>);

impl RecordPermits {
    /// A permit, if there is one left.
    fn take(&self) -> Option<RecordPermit> {
        if self.0.load(Ordering::Relaxed) >= MOST {
            return None;
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(RecordPermit(Arc::clone(&self.0)))
    }
}

impl Drop for RecordPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ControlLoop {
    /// Publishes a decision, and takes its memory back. What the telemetry thread has no room for is
    /// dropped and counted.
    pub(super) fn publish_decision(
        &mut self,
        decision: Decision,
        event: impl FnOnce(Decision, RecordPermit) -> DecisionEvent,
    ) {
        match self.copies.take() {
            Some(permit) => {
                let event = event(copy_of(&decision), permit);
                self.notes.send(TelemetryEvent::Decision(Box::new(event)));
            }
            None => self.notes.lose(),
        }
        self.recycle(decision);
    }

    /// Takes back the memory of a decision and of what it was made of.
    pub(super) fn recycle(&mut self, decision: Decision) {
        let snapshot = decision.evaluation().map(|pass| Arc::clone(&pass.snapshot));
        self.engine.recycle(decision);
        if let Some(snapshot) = snapshot {
            self.eyes.recycle(snapshot);
        }
    }
}

/// The same decision in memory of its own, down to the values of the sample.
fn copy_of(decision: &Decision) -> Decision {
    let mut copy = decision.clone();
    if let DecisionKind::Evaluated(pass) = &mut copy.kind {
        pass.snapshot = Arc::new((*pass.snapshot).clone());
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_copies_at_once_and_no_more() {
        let copies = RecordPermits::default();
        let mut out: Vec<_> = std::iter::from_fn(|| copies.take()).collect();
        assert_eq!(out.len(), MOST);
        out.pop();
        assert!(copies.take().is_some(), "the record of one was made");
    }
}
