//! Readings that parse but cannot be true.
//!
//! One such value evicts pods for nothing, so it counts as not known. What is refused for
//! differing too much from what was believed before is believed once it lasts: a node may
//! really have got more memory, or have lost its disk.

use serde::Serialize;

use crate::observation::{Observation, Observations};
use crate::reading::{Reading, UnknownReason};
use crate::signal::{Resource, Signal};
use crate::snapshot::NodeStats;
use crate::time::{Timestamp, is_unset, since};

/// How long a change that nothing explains must last, at least, to be believed: the interval
/// of the kubelet's own samples.
const LASTING_NANOS: i64 = 10_000_000_000;
/// What is far from zero: this part of the capacity.
const FAR: i64 = 10;

/// Why a reading was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Implausible {
    /// There is less than nothing in all.
    NegativeCapacity,
    /// Less than nothing is available of what no one can use more of than there is: all but
    /// process ids, whose limit can be lowered under those that run.
    NegativeAvailable,
    /// More is available than there is in all.
    AvailableAboveCapacity,
    /// The capacity is less than half of what it was, or more than half more.
    CapacityChanged {
        /// What it was.
        before: i64,
    },
    /// Nothing is left where at least a tenth of the capacity was, and nothing explains it:
    /// no process was killed for lack of memory, no task stalls, and the kernel's own
    /// estimate does not say so.
    SuddenlyNothing {
        /// What was available.
        before: i64,
    },
}

impl Implausible {
    /// What [`Self::name`] gives.
    pub const NAMES: [&str; 5] = [
        Self::NegativeCapacity.name(),
        Self::NegativeAvailable.name(),
        Self::AvailableAboveCapacity.name(),
        Self::CapacityChanged { before: 0 }.name(),
        Self::SuddenlyNothing { before: 0 }.name(),
    ];

    /// The name in metrics and events.
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

/// A reading that was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedReading {
    /// Of which signal.
    pub signal: Signal,
    /// What it said was available.
    pub available: i64,
    /// What it said there is in all.
    pub capacity: i64,
    /// Why not.
    pub why: Implausible,
}

/// What was believed, signal by signal, and what is on probation.
#[derive(Clone, Debug, Default)]
pub(super) struct PlausibilityFilter([SignalHistory; Signal::COUNT]);

#[derive(Clone, Copy, Debug, Default)]
struct SignalHistory {
    believed: Option<Observation>,
    probation: Option<Probation>,
}

/// A change that is not believed yet.
#[derive(Clone, Copy, Debug)]
struct Probation {
    last: Observation,
    since: Timestamp,
    passes: u32,
}

impl PlausibilityFilter {
    /// Takes what cannot be true out of a sample's observations. `explained`: something happened
    /// after which memory may be anything.
    pub(super) fn reject(
        &mut self,
        at: Timestamp,
        node: &NodeStats,
        explained: bool,
        max_unknown: u32,
        observations: &mut Observations,
        refused: &mut Vec<RejectedReading>,
    ) {
        for signal in Signal::ALL {
            let Some(seen) = observations.get(signal) else { continue };
            let doubt = &mut self.0[signal as usize];
            let explained =
                signal.resource() == Resource::Memory && (explained || is_confirmed_by_kernel(node, seen));
            if let Err(why) = doubt.judge(at, signal, seen, explained, max_unknown) {
                observations.set(signal, Reading::Unknown(UnknownReason::Implausible));
                let Observation { available, capacity, .. } = seen;
                refused.push(RejectedReading { signal, available, capacity, why });
            }
        }
    }

    /// The same for another sample of what was believed, which changes nothing.
    pub(super) fn recheck(&self, node: &NodeStats, explained: bool, observations: &mut Observations) {
        for signal in Signal::ALL {
            let Some(seen) = observations.get(signal) else { continue };
            let explained =
                signal.resource() == Resource::Memory && (explained || is_confirmed_by_kernel(node, seen));
            let believed = self.0[signal as usize].believed;
            if possible(signal, seen).and_then(|()| follows(seen, believed, explained)).is_err() {
                observations.set(signal, Reading::Unknown(UnknownReason::Implausible));
            }
        }
    }
}

impl SignalHistory {
    fn judge(
        &mut self,
        at: Timestamp,
        signal: Signal,
        seen: Observation,
        explained: bool,
        max_unknown: u32,
    ) -> Result<(), Implausible> {
        possible(signal, seen)?;
        let Err(why) = follows(seen, self.believed, explained) else {
            *self = Self { believed: Some(seen), probation: None };
            return Ok(());
        };
        let goes_on = |probation: &Probation| follows(seen, Some(probation.last), false).is_ok();
        let probation = match self.probation.filter(goes_on) {
            // The same statistics once more prove nothing.
            Some(same) if !is_unset(seen.time) && seen.time == same.last.time => return Err(why),
            Some(before) => Probation { last: seen, passes: before.passes.saturating_add(1), ..before },
            None => Probation { last: seen, since: at, passes: 1 },
        };
        let lasts = since(at, probation.since).as_nanos();
        if probation.passes > max_unknown && lasts >= LASTING_NANOS {
            *self = Self { believed: Some(seen), probation: None };
            return Ok(());
        }
        // A clock that went back starts the time anew.
        let since = if lasts < 0 { at } else { probation.since };
        self.probation = Some(Probation { since, ..probation });
        Err(why)
    }
}

/// Whether a reading can be true whatever came before.
fn possible(signal: Signal, seen: Observation) -> Result<(), Implausible> {
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

/// Whether a reading can come after another. Of the first one everything is believed.
fn follows(seen: Observation, before: Option<Observation>, explained: bool) -> Result<(), Implausible> {
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

/// Whether the kernel's other values agree that there is next to no memory.
fn is_confirmed_by_kernel(node: &NodeStats, seen: Observation) -> bool {
    let detail = &node.memory_detail;
    let little = |available: u64| i128::from(available) < i128::from(seen.capacity) / i128::from(FAR);
    detail.mem_available.known().is_some_and(little)
        || detail.some_avg10.known().is_some_and(|share| share > 0)
}
