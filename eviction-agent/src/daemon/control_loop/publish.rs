//! What the slow side is told of a pass: a copy.
//!
//! The report is made there, from the decision and everything that it points to. The lists in it
//! are those that the next pass uses, so they stay here; the copy is made after everything was
//! done that cannot wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use eviction_core::decision::{Decision, DecisionKind};

use super::ControlLoop;
use crate::telemetry::queue::{DecisionEvent, TelemetryEvent};

/// Copies that wait for their report, at most: each has the figures of all pods.
const MOST: usize = 16;

/// How many copies there are.
#[derive(Debug, Default)]
pub(crate) struct RecordPermits(Arc<AtomicUsize>);

/// Stands for one of them.
#[derive(Debug)]
pub(crate) struct RecordPermit(Arc<AtomicUsize>);

impl RecordPermits {
    /// One more, if there may be.
    fn one_more(&self) -> Option<RecordPermit> {
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
    /// Tells of a pass, and takes its memory back. What the slow side has no room for is lost and
    /// counted.
    pub(super) fn tell_pass(
        &mut self,
        decision: Decision,
        note: impl FnOnce(Decision, RecordPermit) -> DecisionEvent,
    ) {
        match self.copies.one_more() {
            Some(copied) => {
                let note = note(copy_of(&decision), copied);
                self.notes.send(TelemetryEvent::Pass(Box::new(note)));
            }
            None => self.notes.lose(),
        }
        self.recycle(decision);
    }

    /// Takes back the memory of a decision and of what it was made of.
    pub(super) fn recycle(&mut self, decision: Decision) {
        let snapshot = decision.pass().map(|pass| Arc::clone(&pass.snapshot));
        self.engine.recycle(decision);
        if let Some(snapshot) = snapshot {
            self.eyes.recycle(snapshot);
        }
    }
}

/// The same decision in memory of its own, down to the figures.
fn copy_of(decision: &Decision) -> Decision {
    let mut copy = decision.clone();
    if let DecisionKind::Pass(pass) = &mut copy.subject {
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
        let mut out: Vec<_> = std::iter::from_fn(|| copies.one_more()).collect();
        assert_eq!(out.len(), MOST);
        out.pop();
        assert!(copies.one_more().is_some(), "the report of one was made");
    }
}
