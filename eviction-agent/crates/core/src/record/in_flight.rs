//! Evictions on their way in a record.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::expected_release::Basis;
use crate::in_flight::{Ended, Failure, InFlightEviction};
use crate::pod::PodName;
use crate::signal::Signal;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// An earlier eviction that the evaluation remembered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightRecord {
    /// Whose.
    pub pod: PodName,
    /// What for, as [`EvictionRecord::signal`](super::EvictionRecord::signal).
    pub signal: &'static str,
    /// Whether that is a hard threshold, or a limit of the pod's own.
    pub hard: bool,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// How far it has come.
    #[serde(flatten)]
    pub state: InFlightPhase,
    /// What it was expected to free, of each signal of which that is something.
    pub expected: Vec<ReleaseRecord>,
}

/// How far an eviction has come.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InFlightPhase {
    /// The pod is on its way out.
    UnderWay {
        /// How much of its grace period is left.
        remaining_grace: GoDuration,
    },
    /// It is gone. Until figures are newer than that, what it held counts as on its way.
    Gone {
        /// Since when.
        since: Timestamp,
    },
    /// It did not go: nothing is expected of it, and it goes after all others.
    Failed {
        /// What whoever evicts said.
        why: Box<str>,
        /// How long ago.
        age: GoDuration,
    },
    /// Its time is over and nothing was freed: the same as failed.
    Expired {
        /// How long ago.
        age: GoDuration,
    },
}

/// What comes free of a signal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReleaseRecord {
    /// Of which.
    pub of: Signal,
    /// How much.
    pub release: i64,
    /// How that is known.
    pub basis: Basis,
}

impl InFlightRecord {
    pub(super) fn all(evaluation: &Evaluation, now: Timestamp) -> Vec<Self> {
        evaluation.flights.iter().map(|flight| Self::of(flight, now)).collect()
    }

    fn of(flight: &InFlightEviction, now: Timestamp) -> Self {
        let expected = Signal::ALL.map(|of| (of, flight.release(of)));
        let expected = expected.iter().filter(|(_, release)| release.amount > 0);
        Self {
            pod: (*flight.pod).clone(),
            signal: flight.signal,
            hard: flight.hard,
            decided_at: flight.decided_at,
            state: match &flight.ended {
                None => {
                    let remaining_grace = flight.remaining_grace(now).unwrap_or_default();
                    InFlightPhase::UnderWay { remaining_grace }
                }
                Some(Ended::Gone) => InFlightPhase::Gone { since: flight.since },
                Some(Ended::Failed(Failure::Reported(why))) => {
                    InFlightPhase::Failed { why: why.clone(), age: flight.age(now) }
                }
                Some(Ended::Failed(Failure::Expired)) => InFlightPhase::Expired { age: flight.age(now) },
            },
            expected: expected
                .map(|&(of, release)| ReleaseRecord { of, release: release.amount, basis: release.basis })
                .collect(),
        }
    }
}
