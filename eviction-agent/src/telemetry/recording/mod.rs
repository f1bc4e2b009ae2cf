//! Recordings of all inputs of the engine, so that its decisions can be replayed.
//!
//! The control loop puts each input of the engine into a bounded queue, and a separate thread writes it
//! (`recorder`, `writer`). A recording is a directory of segments, about one per hour. Each begins with a
//! [`Key`], which is all that an engine needs to continue from there. `docs/recordings.md` describes the
//! format.

pub mod format;
pub mod reader;
pub(crate) mod recorder;
mod sample;
#[cfg(test)]
pub(crate) mod tests;
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

/// The version of the format. Other versions cannot be read.
pub const VERSION: u16 = 4;

/// The header of a segment, which identifies its recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentHeader {
    /// The version of the agent that wrote it.
    pub agent: String,
    /// The content of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The id of one run of an agent. Inputs of another run do not continue these.
    pub run: String,
    /// The number of the segment in the directory.
    pub segment: u64,
}

/// The data that an engine needs to decide from some time on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The time of the key.
    pub at: Timestamp,
    /// The policy in force.
    pub policy: Policy,
    /// Whether the agent carries out no actions.
    pub dry_run: bool,
    /// The state of the engine.
    pub state: EngineState,
    /// The disk layout, if it is known.
    pub layout: Option<DiskLayout>,
    /// UIDs of pods that are terminating without an object.
    pub terminating: Vec<Box<str>>,
    /// Whether the API server is reachable.
    pub api: ApiReachability,
    /// The number of inputs that were lost before this key.
    pub lost: u64,
    /// The active pods, which are written in their own frame.
    #[serde(skip)]
    pub pods: Arc<PodSet>,
}

/// An entry to record.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// The key with which a segment begins.
    Key(Box<Key>),
    /// An input of the engine.
    Input(Input),
    /// Conditions from before the start, which were passed to the engine.
    Seed(Vec<RaisedCondition>),
    /// The usage of pods in a sample that was not passed to the engine.
    Usage(Timestamp, Arc<Snapshot>),
    /// The record of a decision, as JSON.
    Decision(String),
}
