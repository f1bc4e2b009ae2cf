//! What a pass lacks, and how that sum comes about.

use serde::Serialize;

use crate::decision::Evaluation;
use crate::milli_units::Nanos;
use crate::signal::Signal;

/// How much would have to come free for the threshold that drives a pass, in whole units of
/// its signal: `threshold + min_reclaim − available`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeficitReport {
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

impl DeficitReport {
    pub(super) fn of(pass: &Evaluation) -> Option<Self> {
        let line = pass.line(pass.handled?)?;
        let signal = line.threshold.signal;
        let seen = pass.seen.get(signal)?;
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
