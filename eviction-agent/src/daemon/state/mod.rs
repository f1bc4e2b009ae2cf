//! What outlives the agent, in a small file of this boot: whoever is started after a kill goes on
//! with the same grace periods, conditions, and evictions.
//!
//! ```text
//! reaction thread ── Kept (bounded, no lock) ─► Keeper ─► file, on a thread for blocking work
//!        └────────── evictions ───────────────► wait for the Keeper ─► API server
//! ```
//! The reaction says what it knows whenever that changes, all of it each time, so that one that
//! is lost is made up for by the next. It waits for nothing. What is asked of the API server
//! because of it goes out after it was written, or when that takes too long.

mod boottime;
mod document;
mod file;
mod record;
mod restore;
mod writer;

use std::sync::Arc;

pub(crate) use document::Identity;
pub(crate) use restore::{RestoredState, recall};
pub(crate) use writer::{DurableRevision, StateWriter, keeper};

use eviction_core::node_conditions::pressure::PublishedCondition;
use eviction_core::pod::PodName;
use eviction_core::signal::{NodeCondition, Resource, Signal};
use eviction_core::state::EngineState;
use eviction_kill::CountedKill;

/// All that the reaction knows and no look can tell.
#[derive(Debug)]
pub(crate) struct LoopState {
    /// They are counted from 1.
    pub(crate) number: u64,
    pub(crate) memory: EngineState,
    pub(crate) evictions: Vec<EvictionProgress>,
    pub(crate) pace: RateLimitState,
    /// The number of the last decision.
    pub(crate) decisions: u64,
    /// What was said of the node's conditions, by their places.
    pub(crate) said: Option<[PublishedCondition; NodeCondition::COUNT]>,
}

/// What counts against the limits of the pace, for each hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitState {
    pub(crate) by_api: Vec<CountedKill>,
    pub(crate) by_kill: Vec<CountedKill>,
}

/// An eviction that has not come to an end, as the hands know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EvictionProgress {
    pub(crate) decision: u64,
    pub(crate) pod: Arc<PodName>,
    pub(crate) signal: Option<Signal>,
    pub(crate) resource: Resource,
    pub(crate) hard: bool,
    pub(crate) decided_mono_ns: u64,
    pub(crate) grace_seconds: u64,
    pub(crate) by_api: Option<ApiPhaseState>,
    /// The kill hand acts.
    pub(crate) by_kill: bool,
    /// That its memory is back was told.
    pub(crate) told_gone: bool,
}

/// How far the API server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApiPhaseState {
    /// It is asked, or is about to be.
    Asked,
    /// It has said yes.
    Accepted,
}
