//! What the former agent has left.

use std::path::Path;

use super::LoopState;
use super::document::{self, Document, Identity};
use super::file::StateFile;
use crate::error::chain;
use crate::telemetry::queue::DecisionIds;
use eviction_core::time::{Timestamp, since};
use eviction_node::clock::{Clock, mono_ns};

/// What a start goes on with.
#[derive(Debug)]
pub(crate) struct RestoredState {
    /// When it was written.
    pub(crate) written: Timestamp,
    pub(crate) state: LoopState,
    /// What decisions are called, and those that follow.
    pub(crate) names: DecisionIds,
}

impl Default for RestoredState {
    /// Of an agent that is the first one.
    fn default() -> Self {
        let (written, state) = Default::default();
        Self { written, state, names: DecisionIds::of_this_start() }
    }
}

/// Reads what the former agent has left, and goes on with its clock: before anything asks for the
/// time. What is of no use is set aside with a warning; then, and if there is nothing, the agent
/// starts as the first one.
pub(crate) fn restore(path: &Path, identity: &Identity) -> RestoredState {
    let file = StateFile::at(path);
    let shown = path.display();
    let bytes = match file.read() {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return RestoredState::default(),
        Err(error) => {
            tracing::warn!(file = %shown, error = chain(&error), "what the former agent knew cannot be read");
            return RestoredState::default();
        }
    };
    match document::read(&bytes, identity, mono_ns()) {
        Ok(Document { clock, written, first_start_ms: names, state, .. }) => {
            let now = Clock::resume(clock).now().wall;
            tracing::info!(
                file = %shown,
                age_ms = since(now, written).as_nanos() / 1_000_000,
                conditions = state.engine.conditions.len(),
                evictions = state.engine.in_flight.iter().filter(|it| it.is_executing()).count(),
                decisions = state.decisions,
                "the agent goes on where the former one ended"
            );
            RestoredState { written, state, names }
        }
        Err(why) => {
            let aside = file.set_aside().map_or_else(
                |error| format!("and it cannot be set aside: {error}"),
                |aside| format!("set aside as {}", aside.display()),
            );
            tracing::warn!(file = %shown, why = chain(&why), aside, "what the former agent knew is of no use");
            RestoredState::default()
        }
    }
}
