//! Thresholds that are about to be met.

use super::SignalContext;
use crate::observation::Observations;
use crate::signal::Resource;
use crate::threshold::MemoryConditions;
use crate::threshold::ResolvedThreshold;
use crate::trend::Eta;
use crate::units::GoDuration;

/// When a threshold that is not met will be, if all goes on as it did.
pub fn eta(line: &ResolvedThreshold, observations: &Observations, seen: &SignalContext) -> Option<Eta> {
    let signal = line.threshold.signal;
    let observed = observations.get(signal)?;
    let distance = observed.nanos().minus(line.value(observed.capacity));
    // At the line itself it is not met yet.
    let eta = seen.slopes[signal as usize]?.time_to_lose(distance)?;
    (distance.get() >= 0).then_some(eta)
}

impl SignalContext {
    /// Whether a threshold will be met within a time, and it is sure enough of it: also by the
    /// slower quarter of what was seen, within twice the time.
    pub(crate) fn is_imminent(
        &self,
        line: &ResolvedThreshold,
        observations: &Observations,
        within: GoDuration,
    ) -> bool {
        let is_memory = line.threshold.signal.resource() == Resource::Memory;
        if is_memory && self.gate != MemoryConditions::Open {
            return false;
        }
        let twice = GoDuration::from_nanos(within.as_nanos().saturating_mul(2));
        eta(line, observations, self)
            .is_some_and(|eta| eta.expected <= within && eta.latest.is_some_and(|latest| latest <= twice))
    }
}
