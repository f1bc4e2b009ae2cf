//! Readings that can be parsed but cannot be true.
//!
//! One such value would evict pods without reason, so it counts as unknown. A reading that is rejected
//! because it differs too much from the last accepted one is accepted once it lasts: a node may really have
//! got more memory, or have lost its disk.

use serde::Serialize;

use crate::observation::{Observation, Observations};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal};
use crate::signal_filter::{SignalFilter, SignalHistory};
use crate::snapshot::NodeStats;
use crate::time::{Timestamp, is_unset, since};

/// How long an unexplained change must last at least before it is accepted: the interval of the kubelet's own
/// samples.
const LASTING_NANOS: i64 = 10_000_000_000;
/// An amount is far from zero if it is at least the capacity divided by this number.
const FAR: i64 = 10;

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
pub(super) struct PendingChange {
    last: Observation,
    since: Timestamp,
    samples: u32,
}

impl SignalFilter {
    /// Removes implausible readings from a sample's observations.
    pub(super) fn reject(
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
