//! Evictions on their way, as the engine remembers them.
//!
//! A pod that was chosen is an [`InFlightEviction`] until it is gone. Until then what it will free is
//! taken off the deficit, so that nobody else goes for the same shortage, and it is not chosen
//! again.
//!
//! - It ends well when the pod leaves the active pods or [`Event::Evicted`] says that it is
//!   gone. One whose object alone is gone ([`Event::Leaving`]) is still on its way, for what holds the
//!   memory is there. Figures that are older than that still show what it held: for those its release goes
//!   on counting.
//! - It fails when [`Event::Evicted`] says so: from then on nothing is expected of it. The pod
//!   is let be for [`RETRY`], and goes after all others for [`REMEMBERED`].
//! - It never was one when [`Event::Evicted`] says that nobody took the request, or that a
//!   PodDisruptionBudget forbids it.
//! - It expires, which is a failure, when the pod is still there [`MARGIN`] after its grace
//!   period, and nobody said why.
//!
//! Ages only grow: they are sums of what the clock went forward from input to input, so that a
//! clock that is set back neither prolongs nor shortens anything by more than what passed.
//!
//! [`Event::Evicted`]: super::input::Event::Evicted
//! [`Event::Leaving`]: super::input::Event::Leaving

mod list;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use list::{Eligibility, InFlightEvictions};

use super::expected_release::ExpectedRelease;
use super::pods::KnownPod;
use super::signal::Signal;
use super::time::{Timestamp, is_unset};
use super::units::GoDuration;

/// How long after its grace period a pod may take to go: `podCleanupTimeout` of the kubelet.
pub const MARGIN: GoDuration = GoDuration::from_secs(30);

/// How long a pod that did not go is let be: `monitoringInterval` of the kubelet.
pub const RETRY: GoDuration = GoDuration::from_secs(10);

/// How long a pod that did not go is taken after all others.
pub const REMEMBERED: GoDuration = GoDuration::from_secs(300);

/// The eviction of a pod, from the decision on.
#[derive(Clone, Debug)]
pub struct InFlightEviction {
    /// Whose.
    pub pod: Arc<KnownPod>,
    /// What for, as [`Evaluation::label_of`](super::decision::Evaluation::label_of) has it: the last cause,
    /// if it was taken over.
    pub signal: &'static str,
    /// Whether that was a hard threshold or a limit of the pod's own.
    pub hard: bool,
    /// When it was chosen.
    pub decided_at: Timestamp,
    /// How long it may take to end, from its choice or from when it was taken over.
    pub grace_period_seconds: i64,
    /// What it frees, by signal: as of the decision, or more if it grew.
    pub expected: [ExpectedRelease; Signal::COUNT],
    /// How far it has come.
    pub phase: Phase,
    /// How long that is so, the grace period if it is under way.
    pub age: GoDuration,
}

/// How far an eviction has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The pod is on its way out.
    UnderWay,
    /// It is gone since then.
    Gone(Timestamp),
    /// It did not go.
    Failed(Failure),
}

/// Why a pod did not go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Whoever was to evict it said why.
    Reported(Box<str>),
    /// Its time is over, and it is still there.
    Expired,
}

impl Phase {
    /// Whether the pod is on its way out.
    pub fn is_under_way(&self) -> bool {
        *self == Self::UnderWay
    }

    /// Whether it did not go.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

impl InFlightEviction {
    /// What it will free by its end, for figures of a time: nothing if it failed, or if they
    /// were made without it.
    pub fn expected(&self, signal: Signal, figures: Option<Timestamp>) -> i64 {
        let counts = match self.phase {
            Phase::UnderWay => true,
            Phase::Gone(at) => !is_unset(figures) && figures < Some(at),
            Phase::Failed(_) => false,
        };
        if counts { self.release(signal).amount } else { 0 }
    }

    /// What it frees, whether it counts or not.
    pub fn release(&self, signal: Signal) -> ExpectedRelease {
        self.expected[signal as usize]
    }

    /// How much of its grace period is left, if it is under way.
    pub fn remaining_grace(&self) -> Option<GoDuration> {
        (self.phase == Phase::UnderWay).then(|| {
            let grace = GoDuration::from_secs(self.grace_period_seconds.max(0));
            GoDuration::from_nanos(grace.as_nanos().saturating_sub(self.age.as_nanos()).max(0))
        })
    }

    /// Whether a hard threshold can hurry it.
    pub(crate) fn can_hurry(&self, grace: GoDuration) -> bool {
        !self.hard && self.remaining_grace().is_some_and(|left| left > grace)
    }
}
