//! What outlives the agent's own end: an engine that comes after another one goes on from here.
//!
//! Times are those of inputs. Whoever keeps a memory over a restart has to see to it that they
//! are still times of the same clock when it comes back, as [`Event::Recall`], before anything
//! else.
//!
//! What still counts of it is decided by how long nobody looked:
//!
//! - **Thresholds that were met** have been so since they were seen first, if the next look comes
//!   within [`UNSEEN`]. After that they may have come and gone, and are met anew.
//! - **Conditions** were raised when they were. One that the last look has raised may have been
//!   raised as long as nobody looked, but for no longer than [`KEPT_EVERY`]: so often a memory is
//!   made while a threshold is met.
//! - **Evictions** under way go on as soon as their pods are told of, with the time that has
//!   passed. By the kubelet's rules the engine remembers none.
//!
//! [`Event::Recall`]: super::input::Event::Recall

use super::condition::Raised;
use super::release::Release;
use super::signal::Signal;
use super::time::Timestamp;
use super::units::{GoDuration, ThresholdValue};

/// How long nobody may have looked at a threshold that is taken for met all the time: as long as
/// the kubelet waits for a victim before it looks again (`podCleanupTimeout`).
pub const UNSEEN: GoDuration = GoDuration::from_secs(30);

/// How often a memory has to be made while a threshold is met, beside those of each change.
pub const KEPT_EVERY: GoDuration = GoDuration::from_secs(5);

/// What an engine knows that no look can tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// When the last pass was made; nothing before the first one.
    pub looked: Option<Timestamp>,
    /// The thresholds that it found met.
    pub met: Vec<MetSince>,
    /// Conditions that were raised, whether they still hold or not.
    pub conditions: Vec<Raised>,
    /// Evictions under way.
    pub flights: Vec<Aloft>,
}

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq)]
pub struct MetSince {
    /// Of which signal.
    pub signal: Signal,
    /// The line, as [`text_of`] has it: a changed one is another threshold.
    pub value: Box<str>,
    /// Its grace period: zero for a hard one.
    pub grace_period: GoDuration,
    /// Since when.
    pub first_seen: Timestamp,
    /// Its grace period is over, so that it holds until its minimum reclaim.
    pub ripe: bool,
}

/// An eviction under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Aloft {
    /// Of which pod.
    pub uid: Box<str>,
    /// What for, as [`Flight::signal`](super::flight::Flight::signal).
    pub label: &'static str,
    /// Whether that is a hard threshold, or a limit of the pod's own.
    pub hard: bool,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// From when on its grace period counts.
    pub since: Timestamp,
    /// The grace period.
    pub grace_period_seconds: i64,
    /// What it frees.
    pub expected: [Release; Signal::COUNT],
}

/// The value of a threshold as a memory has it.
pub fn text_of(value: &ThresholdValue) -> Box<str> {
    match value {
        ThresholdValue::Quantity(quantity) => quantity.to_string().into(),
        ThresholdValue::Percentage(share) => format!("{share}").into(),
    }
}
