//! The state that survives the end of the agent: the engine of the next agent continues from it.
//!
//! Times are those of inputs. The code that persists the state must make sure that they are times of the same
//! clock when the state is restored, as [`Event::Restore`], before any other event.
//!
//! How much of the state still counts depends on how long ago the last sample was:
//!
//! - **Thresholds that were met** have been met since they were first seen, if the next sample arrives within
//!   [`MAX_SAMPLE_GAP`]. After that they may have been resolved in between, and count as newly met.
//! - **Conditions** keep the time at which they were raised. A condition that the last sample raised may have
//!   been raised until the next sample, but for no longer than [`PERSIST_INTERVAL`], because the state is
//!   persisted that often while a threshold is met.
//! - **Evictions** continue as soon as their pods are known, and the time that has passed counts. This
//!   includes terminating pods whose objects are deleted but which still hold resources
//!   ([`Event::Terminating`]), and evictions that have ended, for as long as they keep a pod from being
//!   selected.
//! - **Evictions that count against limits** and OOM kills that protect a pod count for as long as they would
//!   have without a restart.
//!
//! [`Event::Restore`]: super::input::Event::Restore
//! [`Event::Terminating`]: super::input::Event::Terminating

use std::collections::BTreeMap;

use crate::protection::CountedEviction;
use crate::threshold::MetSince;

use serde::{Deserialize, Serialize};

use super::condition::RaisedCondition;
use super::in_flight::InFlightEviction;
use super::time::Timestamp;
use super::units::GoDuration;

/// How long ago the last sample may be if its thresholds are to count as met all the time: as long as the
/// kubelet waits for a victim before it takes the next sample (`podCleanupTimeout`).
pub const MAX_SAMPLE_GAP: GoDuration = GoDuration::from_secs(30);

/// How often the state must be persisted while a threshold is met, in addition to every change.
pub const PERSIST_INTERVAL: GoDuration = GoDuration::from_secs(5);

/// The longest pause of evictions that is restored. An executor asks for a minute at most.
pub const MAX_PAUSE: GoDuration = GoDuration::from_secs(60);

/// The state of an engine that no sample contains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EngineState {
    /// The time of the last evaluation. None before the first one.
    pub last_sync: Option<Timestamp>,
    /// The thresholds that the last evaluation found met.
    pub met: Vec<MetSince>,
    /// Conditions that were raised, whether or not they still hold.
    pub conditions: Vec<RaisedCondition>,
    /// In-flight evictions, and ended ones that still keep a pod from being selected.
    pub in_flight: Vec<InFlightEviction>,
    /// The evictions that count against limits, in the order of their decisions: the latest
    /// [`MAX_COUNTED`](crate::protection::MAX_COUNTED).
    pub counted: Vec<CountedEviction>,
    /// The last OOM kill of each pod that is protected because of it, by the uid of the pod.
    pub oom_killed: BTreeMap<Box<str>, Timestamp>,
    /// The last refusal of each pod whose PodDisruptionBudget does not allow its eviction for now, by the uid of the
    /// pod.
    pub pdb_refused: BTreeMap<Box<str>, Timestamp>,
    /// Until when no other pod may be evicted, if evictions are paused.
    pub paused_until: Option<Timestamp>,
}

impl EngineState {
    /// Returns all times of the state that are in the past.
    pub fn times(&self) -> impl Iterator<Item = Timestamp> {
        let Self { last_sync, met, conditions, in_flight, counted, oom_killed, pdb_refused, paused_until: _ } =
            self;
        let met = met.iter().map(|it| it.first_seen);
        let pods = oom_killed.values().chain(pdb_refused.values()).copied();
        let in_flight = in_flight.iter().flat_map(|it| [it.decided_at, it.since]);
        let counted = counted.iter().map(|it| it.at).chain(conditions.iter().map(|it| it.at));
        last_sync.iter().copied().chain(met).chain(pods).chain(in_flight).chain(counted)
    }
}
