//! The memory signal by the measure that the policy chose, and what else it asks for.

use crate::observation::{Observation, Observations};
use crate::policy::preferences::MemoryMeasure;
use crate::reading::{Reading, UnknownReason};
use crate::signal::Signal;
use crate::snapshot::{MemoryDetail, NodeStats};

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
    let figure = match measure {
        MemoryMeasure::WorkingSet => return Reading::Known(by_working_set),
        MemoryMeasure::MemAvailable => detail.mem_available,
        MemoryMeasure::WorkingSetMinusActiveFile => detail.active_file,
    };
    let figure = match figure.map(i64::try_from) {
        Reading::Known(Ok(figure)) => figure,
        Reading::Known(Err(_)) => return Reading::Unknown(UnknownReason::Implausible),
        Reading::Unknown(why) => return Reading::Unknown(why),
    };
    Reading::Known(match measure {
        // Figures of two moments may add up to more than there is.
        MemoryMeasure::WorkingSetMinusActiveFile => {
            by_working_set.saturating_add(figure).min(capacity.max(by_working_set))
        }
        MemoryMeasure::WorkingSet | MemoryMeasure::MemAvailable => figure,
    })
}
