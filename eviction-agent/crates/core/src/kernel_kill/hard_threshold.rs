//! The line that is guarded, and the look as it would be behind it.

use std::sync::Arc;

use crate::observation::Observations;
use crate::policy::Rules;
use crate::policy::preferences::MemoryMeasure;
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal;
use crate::snapshot::{MemoryStats, Snapshot};
use crate::threshold::Thresholds;
use crate::time::Timestamp;

use super::NotArmedReason;

/// The nearest hard threshold of `memory.available` that is not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HardLine {
    /// Its place among the thresholds.
    pub(crate) place: u8,
    /// It is met when less than this is available, bytes.
    pub(crate) met_below: u64,
    /// What is available.
    pub(crate) available: u64,
    /// What there is in all.
    pub(crate) capacity: u64,
}

impl HardLine {
    /// The line of a look, if it is within `reach` bytes.
    pub(crate) fn of(
        thresholds: &Thresholds,
        rules: &Rules,
        snapshot: &Snapshot,
        reach: u64,
    ) -> Result<Self, NotArmedReason> {
        let signal = Signal::MemoryAvailable;
        let lines = thresholds.visible().iter().filter_map(|&place| {
            let line = thresholds.lines().get(usize::from(place))?;
            let guarded = line.threshold.signal == signal && line.threshold.is_hard();
            guarded.then_some((place, line))
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            return Err(NotArmedReason::NoHardLine);
        }
        if rules.memory.measure != MemoryMeasure::WorkingSet {
            return Err(NotArmedReason::OtherMeasure);
        }
        if rules.memory.psi.is_some() || rules.memory.swap_used_at_least.is_some() {
            return Err(NotArmedReason::AsksForMore);
        }
        let seen = match Observations::of(&snapshot.node).reading(signal) {
            Reading::Known(seen) => seen,
            Reading::Unknown(why) => return Err(NotArmedReason::Unknown(why)),
        };
        let figure = |value: i64| {
            u64::try_from(value).map_err(|_| NotArmedReason::Unknown(UnknownReason::Implausible))
        };
        let (available, capacity) = (figure(seen.available)?, figure(seen.capacity)?);
        let mut nearest = None::<Self>;
        for (place, line) in lines {
            let met_below = figure(line.threshold.value.quantity(seen.capacity).value())?;
            if available < met_below {
                return Err(NotArmedReason::CrossedAlready);
            }
            if met_below > 0 && nearest.is_none_or(|nearest| met_below > nearest.met_below) {
                nearest = Some(Self { place, met_below, available, capacity });
            }
        }
        let nearest = nearest.ok_or(NotArmedReason::NoHardLine)?;
        match nearest.distance() {
            0 => Err(NotArmedReason::AtTheLine),
            far if far > reach => Err(NotArmedReason::Far),
            _ => Ok(nearest),
        }
    }

    /// How much can be used until the line is reached, bytes.
    pub(crate) fn distance(&self) -> u64 {
        self.available - self.met_below
    }

    /// The same look with the line just crossed at this time.
    pub(crate) fn crossed(&self, snapshot: &Snapshot, at: Timestamp) -> Arc<Snapshot> {
        let mut supposed = snapshot.clone();
        let available = self.met_below - 1;
        if let Reading::Known(memory) = supposed.node.memory {
            supposed.node.memory = Reading::Known(MemoryStats {
                available: Some(available),
                working_set: Some(self.capacity.saturating_sub(available)),
                time: Some(at),
                ..memory
            });
        }
        Arc::new(supposed)
    }
}
