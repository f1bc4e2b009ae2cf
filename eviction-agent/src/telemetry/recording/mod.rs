//! Recordings: everything that the engine was told, so that it can be asked again.
//!
//! The control loop puts each input of the engine into a bounded queue, and a thread of its own writes it
//! (`recorder`, `writer`). A recording is a directory of segments, about one an hour. Each
//! begins with a [`Key`], which is all that an engine needs to go on from there. `docs/recordings.md` has the
//! format.

pub mod excerpt;
pub mod format;
pub(crate) mod pods;
pub mod reader;
pub(crate) mod recorder;
mod sample;
#[cfg(test)]
mod tests;
pub mod writer;

use std::sync::Arc;

use eviction_core::condition::RaisedCondition;
use eviction_core::disk_layout::DiskLayout;
use eviction_core::input::{ApiReachability, Input};
use eviction_core::pods::PodSet;
use eviction_core::policy::Policy;
use eviction_core::snapshot::Snapshot;
use eviction_core::state::EngineState;
use eviction_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the format. Another one cannot be read.
pub const VERSION: u16 = 1;

/// Of what a segment is a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The agent that wrote it.
    pub agent: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// One run of an agent: inputs of another one do not follow these.
    pub run: String,
    /// The number of the segment in the directory.
    pub segment: u64,
}

/// All that an engine needs to decide from some time on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Since when.
    pub at: Timestamp,
    /// The policy in force.
    pub policy: Policy,
    /// Whether nothing is carried out.
    pub dry_run: bool,
    /// What the engine knows.
    pub state: EngineState,
    /// The disk layout, if it is known.
    pub layout: Option<DiskLayout>,
    /// Uids of pods that are terminating without an object.
    pub terminating: Vec<Box<str>>,
    /// Whether the API server can be asked.
    pub api: ApiReachability,
    /// Inputs that were lost before it.
    pub lost: u64,
    /// The active pods, which are written on their own.
    #[serde(skip)]
    pub pods: Arc<PodSet>,
}

/// What is to be recorded.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// A segment begins.
    Key(Box<Key>),
    /// The engine was told this.
    Input(Input),
    /// The engine was told of conditions from before the start.
    Seed(Vec<RaisedCondition>),
    /// What pods use, of which the engine was not told.
    Usage(Timestamp, Arc<Snapshot>),
    /// The record of a decision, as JSON.
    Decision(String),
}
