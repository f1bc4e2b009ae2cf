//! The state that outlives the agent, in one small file of this boot: an agent that is started after
//! a kill goes on with the same grace periods, conditions, and evictions.
//!
//! ```text
//! control loop ── LoopState (bounded, no lock) ─► StateWriter ─► file, on a thread for blocking work
//!        └─────── evictions ────────────────────► wait for the StateWriter ─► API server
//! ```
//! The control loop sends its whole state whenever that changes, so that a lost one is made up for
//! by the next. It waits for nothing. A request to the API server goes out after the state that
//! has the eviction was written, or when that takes too long.
//!
//! The file holds these very types by serde. All times in it are of one clock, [`Clock`], which an
//! agent takes over from the one before, so that none has to be converted.
//!
//! [`Clock`]: eviction_node::clock::Clock

mod config;
mod document;
mod file;
mod images;
mod open;
mod restore;
mod writer;

use serde::{Deserialize, Serialize};

pub(crate) use config::SavedConfig;
pub(crate) use document::Identity;
pub(crate) use images::ImageHistoryFile;
pub(crate) use open::{PersistedState, open, read_boot_id};
pub(crate) use restore::{RestoredState, restore};
pub(crate) use writer::{DurableRevision, StateWriter, keeper};

use super::rate_limit::CountedKill;
use eviction_core::node_conditions::pressure::PublishedCondition;
use eviction_core::signal::NodeCondition;
use eviction_core::state::EngineState;

/// All that the control loop knows and no sample can tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LoopState {
    /// Counted from 1, by each agent for itself.
    #[serde(skip)]
    pub(crate) number: u64,
    pub(crate) engine: EngineState,
    /// What counts against the rate limits.
    pub(crate) rate_limits: Vec<CountedKill>,
    /// The number of the last decision.
    pub(crate) decisions: u64,
    /// The node's conditions as they were published last, by their places.
    pub(crate) published: Option<[PublishedCondition; NodeCondition::COUNT]>,
}
