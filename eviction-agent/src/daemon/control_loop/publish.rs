//! Publishes decisions: the telemetry thread gets a copy of each.
//!
//! The record is made there, from the decision and everything that it points to. The lists in it
//! are those that the next evaluation uses, so they stay here; the copy is made after everything was
//! done that cannot wait.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use eviction_core::decision::{Decision, DecisionKind};

use super::ControlLoop;
use crate::telemetry::queue::DecisionEvent;

impl ControlLoop {
    /// Publishes a decision, and takes its memory back. What the telemetry thread has no room for is
    /// dropped and counted.
    pub(super) fn publish_decision(
        &mut self,
        decision: Decision,
        event: impl FnOnce(Decision, OwnedSemaphorePermit) -> DecisionEvent,
    ) {
        self.telemetry.send_decision(|permit| event(copy_of(&decision), permit));
        self.recycle(decision);
    }

    /// Takes back the memory of a decision and of what it was made of.
    pub(super) fn recycle(&mut self, decision: Decision) {
        let snapshot = decision.evaluation().map(|evaluation| Arc::clone(&evaluation.snapshot));
        self.engine.recycle(decision);
        if let Some(snapshot) = snapshot {
            self.node_sampler.recycle(snapshot);
        }
    }
}

/// The same decision in memory of its own, down to the values of the sample.
fn copy_of(decision: &Decision) -> Decision {
    let mut copy = decision.clone();
    if let DecisionKind::Evaluated(evaluation) = &mut copy.kind {
        evaluation.snapshot = Arc::new((*evaluation.snapshot).clone());
    }
    copy
}
