//! The observations of a sample, without implausible readings.
//!
//! The filter converts the values of a sample to observations: by the policy's measure of memory, without
//! readings that cannot be true, with the further conditions of memory thresholds, and with the trends of the
//! values. In the kubelet's profile all values are used as they were read.
//!
//! A reading that can be parsed but cannot be true would evict pods without reason, so it counts as unknown. A
//! reading that is rejected because it differs too much from the last accepted one is accepted once it lasts: a
//! node may really have got more memory, or have lost its disk.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::observation::{Observation, Observations};
use crate::policy::preferences::MemoryMeasure;
use crate::policy::{Rules, Threshold};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal, SignalSet};
use crate::snapshot::{MemoryDetail, NodeStats, Snapshot};
use crate::threshold::MemoryConditions;
use crate::time::{Timestamp, is_unset, since};
use crate::trend::{Eta, Slope, Trend};
use crate::units::GoDuration;

/// How long an unexplained change must last at least before it is accepted: the interval of the kubelet's own
/// samples.
const LASTING_NANOS: i64 = 10_000_000_000;
/// An amount is far from zero if it is at least the capacity divided by this number.
const FAR: i64 = 10;

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

    /// Adds a sample. Writes the context of its observations to `context`.
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

/// Why a reading was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Implausible {
    /// The capacity is negative.
    NegativeCapacity,
    /// The available amount is negative, although the usage of the resource cannot exceed the capacity. This
    /// holds for all resources but process ids, whose limit can be lowered below the number of running
    /// processes.
    NegativeAvailable,
    /// The available amount exceeds the capacity.
    AvailableAboveCapacity,
    /// The capacity is less than half of the former capacity, or more than one and a half times as much.
    CapacityChanged {
        /// The former capacity.
        before: i64,
    },
    /// Nothing is available where at least a tenth of the capacity was, and nothing explains it: no process
    /// was killed for lack of memory, no task stalls, and the kernel's own estimate does not confirm it.
    SuddenlyNothing {
        /// The amount that was available before.
        before: i64,
    },
}

impl Implausible {
    /// The names that [`Self::name`] returns.
    pub const NAMES: [&str; 5] = [
        Self::NegativeCapacity.name(),
        Self::NegativeAvailable.name(),
        Self::AvailableAboveCapacity.name(),
        Self::CapacityChanged { before: 0 }.name(),
        Self::SuddenlyNothing { before: 0 }.name(),
    ];

    /// Returns the name in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NegativeCapacity => "negative_capacity",
            Self::NegativeAvailable => "negative_available",
            Self::AvailableAboveCapacity => "available_above_capacity",
            Self::CapacityChanged { .. } => "capacity_changed",
            Self::SuddenlyNothing { .. } => "suddenly_nothing",
        }
    }
}

/// A reading that was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedReading {
    /// The signal.
    pub signal: Signal,
    /// The available amount in the reading.
    pub available: i64,
    /// The capacity in the reading.
    pub capacity: i64,
    /// Why the reading was rejected.
    pub reason: Implausible,
}

/// A change that is not accepted yet.
#[derive(Clone, Copy, Debug)]
struct PendingChange {
    last: Observation,
    since: Timestamp,
    samples: u32,
}

impl SignalFilter {
    /// Removes implausible readings from a sample's observations.
    fn reject(
        &mut self,
        at: Timestamp,
        node: &NodeStats,
        max_unknown: u32,
        observations: &mut Observations,
        rejected: &mut Vec<RejectedReading>,
    ) {
        for signal in Signal::ALL {
            let Some(seen) = observations.get(signal) else { continue };
            let explained = self.is_explained(node, signal, seen);
            let history = &mut self.histories[signal as usize];
            if let Err(reason) = history.check(at, signal, seen, explained, max_unknown) {
                observations.set(signal, Reading::Unknown(UnknownReason::Implausible));
                let Observation { available, capacity, .. } = seen;
                rejected.push(RejectedReading { signal, available, capacity, reason });
            }
        }
        self.oom_killed = false;
    }

    /// Returns whether any value of a signal is plausible: it is of memory, and either a process was killed for lack
    /// of memory or the kernel's other values confirm it.
    fn is_explained(&self, node: &NodeStats, signal: Signal, seen: Observation) -> bool {
        signal.resource() == Resource::Memory && (self.oom_killed || is_confirmed_by_kernel(node, seen))
    }
}

impl SignalHistory {
    fn check(
        &mut self,
        at: Timestamp,
        signal: Signal,
        seen: Observation,
        explained: bool,
        max_unknown: u32,
    ) -> Result<(), Implausible> {
        check_possible(signal, seen)?;
        let Err(why) = check_change(seen, self.accepted, explained) else {
            (self.accepted, self.pending) = (Some(seen), None);
            return Ok(());
        };
        let is_continued = |pending: &PendingChange| check_change(seen, Some(pending.last), false).is_ok();
        let pending = match self.pending.filter(is_continued) {
            // The same statistics a second time prove nothing.
            Some(same) if !is_unset(seen.time) && seen.time == same.last.time => return Err(why),
            Some(before) => PendingChange { last: seen, samples: before.samples.saturating_add(1), ..before },
            None => PendingChange { last: seen, since: at, samples: 1 },
        };
        let lasts = since(at, pending.since).as_nanos();
        if pending.samples > max_unknown && lasts >= LASTING_NANOS {
            (self.accepted, self.pending) = (Some(seen), None);
            return Ok(());
        }
        // If the clock was set back, the time starts again.
        let since = if lasts < 0 { at } else { pending.since };
        self.pending = Some(PendingChange { since, ..pending });
        Err(why)
    }
}

/// Checks whether a reading can be true, whatever the former readings.
fn check_possible(signal: Signal, seen: Observation) -> Result<(), Implausible> {
    if seen.capacity < 0 {
        return Err(Implausible::NegativeCapacity);
    }
    if seen.available < 0 && signal.resource() != Resource::Pids {
        return Err(Implausible::NegativeAvailable);
    }
    if seen.available > seen.capacity {
        return Err(Implausible::AvailableAboveCapacity);
    }
    Ok(())
}

/// Checks whether a reading can follow another one. The first reading is always accepted.
fn check_change(seen: Observation, before: Option<Observation>, explained: bool) -> Result<(), Implausible> {
    let Some(Observation { available, capacity, .. }) = before else { return Ok(()) };
    let wide = |value: i64| i128::from(value);
    if 2 * (wide(seen.capacity) - wide(capacity)).abs() > wide(capacity) {
        return Err(Implausible::CapacityChanged { before: capacity });
    }
    if seen.available <= 0 && available > 0 && available >= capacity / FAR && !explained {
        return Err(Implausible::SuddenlyNothing { before: available });
    }
    Ok(())
}

/// Returns whether the kernel's other values confirm that there is next to no memory.
fn is_confirmed_by_kernel(node: &NodeStats, seen: Observation) -> bool {
    let detail = &node.memory_detail;
    let little = |available: u64| i128::from(available) < i128::from(seen.capacity) / i128::from(FAR);
    detail.mem_available.known().is_some_and(little)
        || detail.some_avg10.known().is_some_and(|share| share > 0)
}
