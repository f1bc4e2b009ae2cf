//! What is seen of the node, and what of it is believed.
//!
//! From the values of a sample to observations: by the measure of memory that the policy
//! chose, without readings that cannot be true, with what else thresholds of memory ask for,
//! and with where the values are going. In the kubelet's profile all of it is as read.

mod plausibility;
#[cfg(test)]
mod tests;

use plausibility::PlausibilityFilter;
pub use plausibility::{Implausible, RejectedReading};

use crate::observation::{Observation, Observations};
use crate::policy::preferences::MemoryMeasure;
use crate::policy::{Rules, Threshold};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal, SignalSet};
use crate::snapshot::{MemoryDetail, NodeStats, Snapshot};
use crate::threshold::{MemoryConditions, ResolvedThreshold};
use crate::time::Timestamp;
use crate::trend::{Eta, Slope, Trend};
use crate::units::GoDuration;

/// What is remembered of former samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignalFilter {
    plausibility: PlausibilityFilter,
    /// In how many samples in a row each signal was not known.
    unknown_for: [u32; Signal::COUNT],
    /// Signals of which there ever was a value, or an error in its place. What a node does not
    /// have at all nobody watches, and nobody is unavailable to.
    reported: SignalSet,
    trends: [Trend; Signal::COUNT],
    oom_killed: bool,
}

/// What a sample saw beside the observations.
#[derive(Clone, Debug, Default)]
pub struct SignalContext {
    /// Whether what else thresholds of memory ask for is there.
    pub memory_conditions: MemoryConditions,
    /// Readings that were not believed.
    pub rejected: Vec<RejectedReading>,
    /// Signals that have been unknown for so long that nobody watches them.
    pub unavailable: SignalSet,
    /// How fast what is available of each signal changes.
    pub slopes: [Option<Slope>; Signal::COUNT],
    /// Thresholds that are about to be met, by their index.
    pub imminent: Vec<u8>,
}

impl SignalFilter {
    /// The kernel killed a process for lack of memory: after that a value may be anything.
    pub(crate) fn note_oom_kill(&mut self) {
        self.oom_killed = true;
    }

    /// Takes in a sample; what it has to say beside the observations goes to `seen`.
    pub(crate) fn observe(
        &mut self,
        at: Timestamp,
        snapshot: &Snapshot,
        thresholds: &[Threshold],
        rules: &Rules,
        seen: &mut SignalContext,
    ) -> Observations {
        seen.memory_conditions = MemoryConditions::of(&snapshot.node.memory_detail, rules.memory());
        let mut observations = observe(&snapshot.node, rules.memory().measure);
        if let Some(max_unknown) = rules.max_unknown() {
            let explained = std::mem::take(&mut self.oom_killed);
            self.plausibility.reject(
                at,
                &snapshot.node,
                explained,
                max_unknown,
                &mut observations,
                &mut seen.rejected,
            );
            let shown = Observations::of(&snapshot.node);
            for signal in Signal::ALL {
                if shown.reading(signal) != Reading::Unknown(UnknownReason::Absent) {
                    self.reported.insert(signal);
                }
            }
            let all_shown = self.reported;
            let known = |signal| {
                !all_shown.contains(signal) || is_known(&observations, seen.memory_conditions, signal)
            };
            seen.unavailable = self.count_unknown(known, thresholds, max_unknown);
        }
        if rules.prediction().is_some() {
            for signal in Signal::ALL {
                if let Some(observed) = observations.get(signal) {
                    self.trends[signal as usize].observe(observed.time.unwrap_or(at), observed.available);
                }
            }
            seen.slopes = self.trends.each_ref().map(Trend::slope);
        }
        observations
    }

    /// There was to be a sample, but it failed: no signal is known.
    pub(crate) fn sample_failed(&mut self, thresholds: &[Threshold], rules: &Rules) -> SignalSet {
        match rules.max_unknown() {
            None => SignalSet::EMPTY,
            Some(max_unknown) => self.count_unknown(|_| false, thresholds, max_unknown),
        }
    }

    /// The sample after node-level reclaim, which belongs to the sample before it: nothing is
    /// learned from it, and what cannot be true is not known.
    pub(crate) fn observe_again(&self, node: &NodeStats, rules: &Rules) -> Observations {
        let mut observations = observe(node, rules.memory().measure);
        if !rules.are_kubelets() {
            self.plausibility.recheck(node, self.oom_killed, &mut observations);
        }
        observations
    }

    /// Whether a signal that thresholds ask for is not known, but may be by the next sample.
    pub(crate) fn awaits(&self, thresholds: &[Threshold], rules: &Rules) -> bool {
        let Some(max_unknown) = rules.max_unknown() else { return false };
        thresholds
            .iter()
            .any(|threshold| (1..max_unknown).contains(&self.unknown_for[threshold.signal as usize]))
    }

    /// Counts samples in which signals that thresholds ask for were not known, and returns those
    /// with so many in a row that they are unavailable.
    fn count_unknown(
        &mut self,
        is_known: impl Fn(Signal) -> bool,
        thresholds: &[Threshold],
        max_unknown: u32,
    ) -> SignalSet {
        let mut blind = SignalSet::EMPTY;
        for signal in Signal::ALL {
            let passes = &mut self.unknown_for[signal as usize];
            let asked_for = || thresholds.iter().any(|threshold| threshold.signal == signal);
            *passes = if is_known(signal) { 0 } else { passes.saturating_add(1) };
            if *passes >= max_unknown && asked_for() {
                blind.insert(signal);
            }
        }
        blind
    }
}

/// Whether it can be told if thresholds of a signal are met.
fn is_known(observations: &Observations, gate: MemoryConditions, signal: Signal) -> bool {
    let gate_is_known =
        !matches!(gate, MemoryConditions::Unknown(_)) || signal.resource() != Resource::Memory;
    gate_is_known && matches!(observations.reading(signal), Reading::Known(_))
}

/// The observations, `memory.available` by a measure. All measures have the same capacity.
pub fn observe(node: &NodeStats, measure: MemoryMeasure) -> Observations {
    let mut observations = Observations::of(node);
    if measure == MemoryMeasure::WorkingSet {
        return observations;
    }
    let reading = match observations.reading(Signal::MemoryAvailable) {
        Reading::Known(seen) => available(seen.available, seen.capacity, &node.memory_detail, measure)
            .map(|available| Observation { available, ..seen }),
        Reading::Unknown(why) => Reading::Unknown(why),
    };
    observations.set(Signal::MemoryAvailable, reading);
    observations
}

/// What is available by a measure, where so much is by the working set.
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
        // Values of two moments may add up to more than there is.
        MemoryMeasure::WorkingSetMinusActiveFile => {
            by_working_set.saturating_add(value).min(capacity.max(by_working_set))
        }
        MemoryMeasure::WorkingSet | MemoryMeasure::MemAvailable => value,
    })
}

/// When a threshold that is not met will be, if all goes on as it did.
pub fn eta(resolved: &ResolvedThreshold, observations: &Observations, seen: &SignalContext) -> Option<Eta> {
    let signal = resolved.threshold.signal;
    let observed = observations.get(signal)?;
    let distance = observed.nanos().minus(resolved.value(observed.capacity));
    // At the threshold itself it is not met yet.
    let eta = seen.slopes[signal as usize]?.time_to_lose(distance)?;
    (distance.get() >= 0).then_some(eta)
}

impl SignalContext {
    /// Whether a threshold will be met within a time, and it is sure enough of it: also by the
    /// slower quarter of what was seen, within twice the time.
    pub(crate) fn is_imminent(
        &self,
        resolved: &ResolvedThreshold,
        observations: &Observations,
        within: GoDuration,
    ) -> bool {
        let is_memory = resolved.threshold.signal.resource() == Resource::Memory;
        if is_memory && self.memory_conditions != MemoryConditions::Open {
            return false;
        }
        let twice = GoDuration::from_nanos(within.as_nanos().saturating_mul(2));
        eta(resolved, observations, self)
            .is_some_and(|eta| eta.expected <= within && eta.latest.is_some_and(|latest| latest <= twice))
    }
}
