//! What outlives the agent's own end: an engine that comes after another one goes on from here.
//!
//! Times are those of inputs. Whoever keeps a memory over a restart has to see to it that they
//! are still times of the same clock when it comes back, as [`Event::Restore`], before anything
//! else.
//!
//! What still counts of it is decided by how long ago the last sample was:
//!
//! - **Thresholds that were met** have been so since they were seen first, if the next sample comes
//!   within [`MAX_SAMPLE_GAP`]. After that they may have come and gone, and are met anew.
//! - **Conditions** were raised when they were. One that the last sample has raised may have been
//!   raised until the next sample, but for no longer than [`PERSIST_INTERVAL`]: so often a memory is
//!   made while a threshold is met.
//! - **Evictions** go on as soon as their pods are known, with the time that has passed: those under
//!   way, also of pods whose objects are gone and what they hold is not ([`Event::Terminating`]), and those
//!   that have ended, for as long as that says whom to let be.
//! - **What counts against limits** and OOM kills that spare a pod count for as long as they would
//!   have.
//!
//! [`Event::Restore`]: super::input::Event::Restore
//! [`Event::Terminating`]: super::input::Event::Terminating

use crate::pods::PodEventTime;
use crate::protection::CountedEviction;
use crate::threshold::MetSince;

use serde::{Deserialize, Serialize};

use super::condition::RaisedCondition;
use super::in_flight::InFlightEviction;
use super::time::Timestamp;
use super::units::GoDuration;

/// How long ago the last sample of a threshold may be that is taken for met all the time: as long as
/// the kubelet waits for a victim before it samples again (`podCleanupTimeout`).
pub const MAX_SAMPLE_GAP: GoDuration = GoDuration::from_secs(30);

/// How often a memory has to be made while a threshold is met, beside those of each change.
pub const PERSIST_INTERVAL: GoDuration = GoDuration::from_secs(5);

/// No longer is anybody held up by what was known before: a minute is the longest that an executor asks for.
pub const MAX_PAUSE: GoDuration = GoDuration::from_secs(60);

/// What an engine knows that no sample shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EngineState {
    /// When the last evaluation was made; nothing before the first one.
    #[serde(rename = "looked")]
    pub last_sync: Option<Timestamp>,
    /// The thresholds that it found met.
    pub met: Vec<MetSince>,
    /// Conditions that were raised, whether they still hold or not.
    pub conditions: Vec<RaisedCondition>,
    /// Evictions under way, and those that have ended and still say whom to let be.
    #[serde(rename = "flights")]
    pub in_flight: Vec<InFlightEviction>,
    /// The evictions that count against limits, in the order of their decisions; the latest
    /// [`MOST_COUNTED`](crate::protection::MOST_COUNTED).
    pub counted: Vec<CountedEviction>,
    /// The last kill by the kernel of each pod that is spared for it.
    pub oom_killed: Vec<PodEventTime>,
    /// Pods that their PodDisruptionBudgets do not let go for now.
    #[serde(rename = "forbidden")]
    pub pdb_refused: Vec<PodEventTime>,
    /// Until when nobody new may go, if that is so: a limit that is nobody's own.
    #[serde(rename = "heldUntil")]
    pub paused_until: Option<Timestamp>,
}

impl EngineState {
    /// All times in it of which none is still to come.
    pub fn times(&self) -> impl Iterator<Item = Timestamp> {
        let Self { last_sync, met, conditions, in_flight, counted, oom_killed, pdb_refused, paused_until: _ } =
            self;
        let met = met.iter().map(|it| it.first_seen);
        let pods = oom_killed.iter().chain(pdb_refused).map(|it| it.at);
        let in_flight = in_flight.iter().flat_map(|it| [it.decided_at, it.since]);
        let counted = counted.iter().map(|it| it.at).chain(conditions.iter().map(|it| it.at));
        last_sync.iter().copied().chain(met).chain(pods).chain(in_flight).chain(counted)
    }
}
