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

mod clocks;
mod document;
mod file;
mod keeper;
mod recalled;
mod record;

use std::sync::Arc;

pub(crate) use document::Identity;
pub(crate) use keeper::{Keeper, Written, keeper};
pub(crate) use recalled::{Recalled, recall};

use eviction_core::memory::Memory;
use eviction_core::pod::PodName;
use eviction_core::pressure::Said;
use eviction_core::signal::{NodeCondition, Resource, Signal};
use eviction_kill::Kill;

/// All that the reaction knows and no look can tell.
#[derive(Debug)]
pub(crate) struct Kept {
    /// They are counted from 1.
    pub(crate) number: u64,
    pub(crate) memory: Memory,
    pub(crate) evictions: Vec<KeptEviction>,
    pub(crate) pace: Pace,
    /// The number of the last decision.
    pub(crate) decisions: u64,
    /// What was said of the node's conditions, by their places.
    pub(crate) said: Option<[Said; NodeCondition::COUNT]>,
}

/// What counts against the limits of the pace, for each hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) by_api: Vec<Kill>,
    pub(crate) by_kill: Vec<Kill>,
}

/// An eviction that has not come to an end, as the hands know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptEviction {
    pub(crate) decision: u64,
    pub(crate) pod: Arc<PodName>,
    pub(crate) signal: Option<Signal>,
    pub(crate) resource: Resource,
    pub(crate) hard: bool,
    pub(crate) decided_mono_ns: u64,
    pub(crate) grace_seconds: u64,
    pub(crate) by_api: Option<Asked>,
    /// The kill hand acts.
    pub(crate) by_kill: bool,
    /// That its memory is back was told.
    pub(crate) told_gone: bool,
}

/// How far the API server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asked {
    /// It is asked, or is about to be.
    Asked,
    /// It has said yes.
    Accepted,
}
