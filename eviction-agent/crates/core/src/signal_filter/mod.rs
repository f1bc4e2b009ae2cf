//! The observations of a sample, without implausible readings.
//!
//! The filter converts the values of a sample to observations: by the policy's measure of memory, without
//! readings that cannot be true, with the further conditions of memory thresholds, and with the trends of the
//! values. In the kubelet's profile all values are used as they were read.

mod plausibility;
#[cfg(test)]
mod tests;

use plausibility::PendingChange;
pub use plausibility::{Implausible, RejectedReading};

use crate::observation::{Observation, Observations};
use crate::policy::preferences::MemoryMeasure;
use crate::policy::{Rules, Threshold};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal, SignalSet};
use crate::snapshot::{MemoryDetail, NodeStats, Snapshot};
use crate::threshold::MemoryConditions;
use crate::time::Timestamp;
use crate::trend::{Eta, Slope, Trend};
use crate::units::GoDuration;

/// The state from former samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignalFilter {
    histories: [SignalHistory; Signal::COUNT],
    /// Whether the kernel killed a process for lack of memory since the last sample.
    oom_killed: bool,
}

/// What is known of a signal from former samples.
#[derive(Clone, Copy, Debug, Default)]
struct SignalHistory {
    /// The last accepted reading.
    accepted: Option<Observation>,
    /// The change that is not accepted yet.
    pending: Option<PendingChange>,
    /// The number of samples in a row in which the signal was unknown.
    unknown_for: u32,
    /// Whether the signal ever had a value, or an error in its place. A signal that a node does not have at all
    /// is not monitored and does not become unavailable.
    is_reported: bool,
    trend: Trend,
}

/// The context of a sample's observations.
#[derive(Clone, Debug, Default)]
pub struct SignalContext {
    /// Whether the further conditions of memory thresholds are fulfilled.
    pub memory_conditions: MemoryConditions,
    /// The readings that were rejected.
    pub rejected: Vec<RejectedReading>,
    /// Signals that have been unknown for so long that they are no longer monitored.
    pub unavailable: SignalSet,
    /// How fast the available amount of each signal changes.
    pub slopes: [Option<Slope>; Signal::COUNT],
    /// The thresholds that are predicted to be met soon, by their index.
    pub imminent: Vec<u8>,
}

impl SignalFilter {
    /// Records an OOM kill. After it, any value of memory is plausible.
    pub(crate) fn record_oom_kill(&mut self) {
        self.oom_killed = true;
    }

    /// Adds a sample. Writes the context of its observations to `seen`.
    pub(crate) fn observe(
        &mut self,
        at: Timestamp,
        snapshot: &Snapshot,
        thresholds: &[Threshold],
        rules: &Rules,
        context: &mut SignalContext,
    ) -> Observations {
        context.memory_conditions = MemoryConditions::of(&snapshot.node.memory_detail, rules.memory());
        let mut observations = observe(&snapshot.node, rules.memory().measure);
        if let Some(max_unknown) = rules.max_unknown() {
            self.reject(at, &snapshot.node, max_unknown, &mut observations, &mut context.rejected);
            let unfiltered = Observations::of(&snapshot.node);
            for signal in Signal::ALL {
                let is_reported = unfiltered.reading(signal) != Reading::Unknown(UnknownReason::Absent);
                self.histories[signal as usize].is_reported |= is_reported;
            }
            let known = |signal, history: &SignalHistory| {
                !history.is_reported || is_known(&observations, context.memory_conditions, signal)
            };
            context.unavailable = self.count_unknown(known, thresholds, max_unknown);
        }
        if rules.prediction().is_some() {
            for signal in Signal::ALL {
                if let Some(observed) = observations.get(signal) {
                    let trend = &mut self.histories[signal as usize].trend;
                    trend.observe(observed.time.unwrap_or(at), observed.available);
                }
            }
            context.slopes = self.histories.each_ref().map(|history| history.trend.slope());
        }
        observations
    }

    /// Records that a sample failed, so that no signal is known. Returns the unavailable signals.
    pub(crate) fn sample_failed(&mut self, thresholds: &[Threshold], rules: &Rules) -> SignalSet {
        match rules.max_unknown() {
            None => SignalSet::EMPTY,
            Some(max_unknown) => self.count_unknown(|_, _| false, thresholds, max_unknown),
        }
    }

    /// Returns the observations of the sample after node-level reclaim. It belongs to the sample before it:
    /// the state does not change, and implausible readings are unknown. The signal that requested the reclaim was
    /// accepted in the sample before, so no change of it can have lasted.
    pub(crate) fn observe_again(&self, at: Timestamp, node: &NodeStats, rules: &Rules) -> Observations {
        let mut observations = observe(node, rules.memory().measure);
        if let Some(max_unknown) = rules.max_unknown() {
            self.clone().reject(at, node, max_unknown, &mut observations, &mut Vec::new());
        }
        observations
    }

    /// Returns whether a signal with thresholds is unknown, but not long enough to be unavailable.
    pub(crate) fn has_undecided_signal(&self, thresholds: &[Threshold], rules: &Rules) -> bool {
        let Some(max_unknown) = rules.max_unknown() else { return false };
        let unknown_for = |it: &Threshold| self.histories[it.signal as usize].unknown_for;
        thresholds.iter().any(|threshold| (1..max_unknown).contains(&unknown_for(threshold)))
    }

    /// Counts the samples in which each signal was unknown. Returns the signals with thresholds that are unavailable.
    fn count_unknown(
        &mut self,
        is_known: impl Fn(Signal, &SignalHistory) -> bool,
        thresholds: &[Threshold],
        max_unknown: u32,
    ) -> SignalSet {
        let mut unavailable = SignalSet::EMPTY;
        for signal in Signal::ALL {
            let history = &mut self.histories[signal as usize];
            let has_threshold = || thresholds.iter().any(|threshold| threshold.signal == signal);
            let samples = if is_known(signal, history) { 0 } else { history.unknown_for.saturating_add(1) };
            history.unknown_for = samples;
            if samples >= max_unknown && has_threshold() {
                unavailable.insert(signal);
            }
        }
        unavailable
    }
}

/// Returns whether it is known if thresholds of a signal are met.
fn is_known(observations: &Observations, gate: MemoryConditions, signal: Signal) -> bool {
    let gate_is_known =
        !matches!(gate, MemoryConditions::Unknown(_)) || signal.resource() != Resource::Memory;
    gate_is_known && matches!(observations.reading(signal), Reading::Known(_))
}

/// Returns the observations, with `memory.available` by a measure. All measures have the same capacity.
pub fn observe(node: &NodeStats, measure: MemoryMeasure) -> Observations {
    let mut observations = Observations::of(node);
    if measure == MemoryMeasure::WorkingSet {
        return observations;
    }
    let reading = observations.reading(Signal::MemoryAvailable).and_then(|seen| {
        available(seen.available, seen.capacity, &node.memory_detail, measure)
            .map(|available| Observation { available, ..seen })
    });
    observations.set(Signal::MemoryAvailable, reading);
    observations
}

/// Returns the available memory by a measure, given the amount by the working set.
pub fn available(
    by_working_set: i64,
    capacity: i64,
    detail: &MemoryDetail,
    measure: MemoryMeasure,
) -> Reading<i64> {
    let value = match measure {
        MemoryMeasure::WorkingSet => return Reading::Known(by_working_set),
        MemoryMeasure::MemAvailable => detail.mem_available,
        MemoryMeasure::WorkingSetMinusActiveFile => detail.active_file,
    };
    let value = match value.map(i64::try_from) {
        Reading::Known(Ok(value)) => value,
        Reading::Known(Err(_)) => return Reading::Unknown(UnknownReason::Implausible),
        Reading::Unknown(why) => return Reading::Unknown(why),
    };
    Reading::Known(match measure {
        // The values are from two moments, so their sum may exceed the capacity.
        MemoryMeasure::WorkingSetMinusActiveFile => {
            by_working_set.saturating_add(value).min(capacity.max(by_working_set))
        }
        MemoryMeasure::WorkingSet | MemoryMeasure::MemAvailable => value,
    })
}

/// Returns when a threshold that is not met will be met at the current trend.
pub fn eta(threshold: &Threshold, observations: &Observations, context: &SignalContext) -> Option<Eta> {
    let signal = threshold.signal;
    let observed = observations.get(signal)?;
    let distance = observed.nanos().minus(threshold.value.nanos(observed.capacity));
    // If the amount equals the threshold, the threshold is not met yet.
    let eta = context.slopes[signal as usize]?.time_to_lose(distance)?;
    (distance.get() >= 0).then_some(eta)
}

impl SignalContext {
    /// Returns whether a threshold will be met within a time, with sufficient certainty: within twice the
    /// time also by the slower quarter of the slopes.
    pub(crate) fn is_imminent(
        &self,
        threshold: &Threshold,
        observations: &Observations,
        within: GoDuration,
    ) -> bool {
        let is_memory = threshold.signal.resource() == Resource::Memory;
        if is_memory && self.memory_conditions != MemoryConditions::Fulfilled {
            return false;
        }
        let twice = GoDuration::from_nanos(within.as_nanos().saturating_mul(2));
        eta(threshold, observations, self)
            .is_some_and(|eta| eta.expected <= within && eta.latest.is_some_and(|latest| latest <= twice))
    }
}
