//! What an evaluation lacks, and how that sum comes about.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::milli_units::Nanos;
use crate::signal::Signal;

/// How much would have to come free for the threshold that drives an evaluation, in whole units of
/// its signal: `threshold + min_reclaim − available`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeficitRecord {
    /// Of what.
    pub signal: Signal,
    /// Below this the threshold is met.
    pub threshold: i64,
    /// How much more must be available before it is resolved.
    pub min_reclaim: i64,
    /// What is available.
    pub available: i64,
    /// The sum.
    pub total: i64,
}

impl DeficitRecord {
    pub(super) fn of(evaluation: &Evaluation) -> Option<Self> {
        let line = evaluation.line(evaluation.handled?)?;
        let signal = line.threshold.signal;
        let seen = evaluation.seen.get(signal)?;
        let (value, resolved_at) = (line.value(seen.capacity), line.resolved_at(seen.capacity));
        let units = Nanos::units_rounded_up;
        Some(Self {
            signal,
            threshold: units(value),
            min_reclaim: units(resolved_at.minus(value)),
            available: seen.available,
            total: units(resolved_at.minus(seen.nanos())),
        })
    }
}
