//! What the former agent has left.

use std::path::Path;

use super::boottime::Clocks;
use super::document::{self, Identity};
use super::file::StateFile;
use super::{EvictionProgress, RateLimitState};
use crate::daemon::decision_id::DecisionIds;
use crate::daemon::error::chain;
use eviction_core::node_conditions::pressure::PublishedCondition;
use eviction_core::signal::NodeCondition;
use eviction_core::state::EngineState;
use eviction_core::time::{Timestamp, since};

/// What a start goes on with, in times of this process.
#[derive(Debug)]
pub(crate) struct RestoredState {
    /// When it was written.
    pub(crate) written: Timestamp,
    pub(crate) memory: EngineState,
    pub(crate) evictions: Vec<EvictionProgress>,
    pub(crate) pace: RateLimitState,
    pub(crate) decisions: u64,
    /// What was said of the node's conditions, by their places.
    pub(crate) said: Option<[PublishedCondition; NodeCondition::COUNT]>,
    /// What they are called, and those that follow.
    pub(crate) names: DecisionIds,
}

impl Default for RestoredState {
    /// Of an agent that is the first one.
    fn default() -> Self {
        Self {
            written: Timestamp::default(),
            memory: EngineState::default(),
            evictions: Vec::new(),
            pace: RateLimitState::default(),
            decisions: 0,
            said: None,
            names: DecisionIds::of_this_start(),
        }
    }
}

/// Reads what the former agent has left. What is of no use is set aside with a warning; then, and
/// if there is nothing, the agent starts as the first one.
pub(crate) fn recall(path: &Path, identity: &Identity) -> RestoredState {
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
    let clocks = Clocks::now();
    match document::read(&bytes, identity, clocks) {
        Ok(recalled) => {
            let RestoredState { written, memory, evictions, pace: _, decisions, said: _, names: _ } =
                &recalled;
            tracing::info!(
                file = %shown,
                age_ms = since(clocks.steady, *written).as_nanos() / 1_000_000,
                conditions = memory.conditions.len(),
                evictions = evictions.len(),
                decisions,
                "the agent goes on where the former one ended"
            );
            recalled
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
