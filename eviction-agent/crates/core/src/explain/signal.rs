//! What was seen beside the signals: measures of memory, what was not believed, where figures
//! are going, and a policy that waits.

use crate::record::{DecisionRecord, EvaluationRecord, MemoryRecord, ProposalRecord, ThresholdRecord};
use crate::signal::Resource;
use crate::signal_filter::{Implausible, RejectedReading};
use crate::threshold::MemoryConditions;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::amount::{amount, clock, pod};
use super::shortage::unknown;

/// Every measure of the node's memory, whichever decides.
pub(super) fn memory(memory: &MemoryRecord) -> Vec<String> {
    let MemoryRecord {
        available_by_working_set,
        available_without_active_file,
        mem_available,
        working_set: _,
        active_file: _,
        some_avg10,
        full_avg10,
        stalled,
        swap_used,
        swap_total,
        gate,
        unknown: absent,
    } = memory;
    let bytes = |number: u64| amount(Resource::Memory, i64::try_from(number).unwrap_or(i64::MAX));
    let available = [
        ("by working set", available_by_working_set),
        ("without active file", available_without_active_file),
        ("MemAvailable", mem_available),
    ];
    let available: Vec<String> = available
        .into_iter()
        .filter_map(|(measure, number)| Some(format!("{} {measure}", bytes((*number)?))))
        .collect();
    let mut other = Vec::new();
    other.extend(some_avg10.map(|share| format!("some task stalled {share}% of the last 10s")));
    other.extend(full_avg10.map(|share| format!("all tasks stalled {share}% of it")));
    other.extend(stalled.filter(|stalled| *stalled).map(|_| "the pressure trigger fired".to_owned()));
    if let (Some(used), Some(total)) = (swap_used, swap_total) {
        other.push(format!("{} of {} swap used", bytes(*used), bytes(*total)));
    }
    let mut lines = Vec::new();
    if !available.is_empty() {
        lines.push(format!("available: {}", available.join(", ")));
    }
    if !other.is_empty() {
        lines.push(other.join("; "));
    }
    lines
        .extend(absent.iter().map(|figure| format!("{} is unknown: {}", figure.figure, unknown(figure.why))));
    lines.extend(held(*gate));
    lines
}

/// Why thresholds of memory are not met whatever is available.
fn held(gate: MemoryConditions) -> Option<String> {
    let reason = match gate {
        MemoryConditions::Open => return None,
        MemoryConditions::TooLittleStall => {
            "tasks do not stall for memory as much as the policy asks for".to_owned()
        }
        MemoryConditions::TooLittleSwapUsed => "not as much swap is used as the policy asks for".to_owned(),
        MemoryConditions::Unknown(why) => {
            format!("what else the policy asks for is unknown: {}", unknown(why))
        }
    };
    Some(format!("no threshold of memory counts: {reason}"))
}

/// Readings that were not believed.
pub(super) fn refused(readings: &[RejectedReading]) -> Vec<String> {
    let line = |RejectedReading { signal, available, capacity, why }: &RejectedReading| {
        let tell = |number| amount(signal.resource(), number);
        format!(
            "{signal} said {} of {}: {}",
            tell(*available),
            tell(*capacity),
            implausible(*why, signal.resource())
        )
    };
    readings.iter().map(line).collect()
}

/// Thresholds that are about to be met if all goes on as it did.
pub(super) fn ahead(evaluation: &EvaluationRecord) -> Vec<String> {
    let soon = |threshold: &&ThresholdRecord| {
        threshold.imminent || threshold.met.is_some_and(|met| met.by_prediction)
    };
    let line = |threshold: &ThresholdRecord| {
        let eta = threshold.eta?;
        let latest = eta.latest.map_or_else(|| "never".to_owned(), seconds);
        Some(format!(
            "{} will be below {} in {} ({} to {latest}) if all goes on as it did",
            threshold.signal,
            threshold.configured,
            seconds(eta.expected),
            seconds(eta.soonest),
        ))
    };
    evaluation.thresholds.iter().filter(soon).filter_map(line).collect()
}

/// To the tenth of a second: more would be a claim.
fn seconds(time: GoDuration) -> String {
    const TENTH: i64 = 100_000_000;
    GoDuration::from_nanos(time.as_nanos() / TENTH * TENTH).to_string()
}

/// Conditions of which nobody can tell whether they hold.
pub(super) fn blind(record: &DecisionRecord) -> Vec<String> {
    if record.unavailable.is_empty() {
        return Vec::new();
    }
    let signals: Vec<_> = record.unavailable.iter().map(|signal| signal.name()).collect();
    let mut lines = vec![format!("{}: unavailable: unknown for too long", signals.join(", "))];
    let conditions: Vec<_> = record.unknown_conditions.iter().map(|condition| condition.name()).collect();
    if !conditions.is_empty() {
        lines.push(format!("{}: status Unknown", conditions.join(", ")));
    }
    lines
}

/// What becomes of a policy that was proposed.
pub(super) fn proposal(proposal: &ProposalRecord, at: Timestamp) -> Vec<String> {
    match proposal {
        ProposalRecord::Unchanged => vec!["the policy that was proposed is in force already".to_owned()],
        ProposalRecord::TookEffect => vec!["a changed policy is in force from now on".to_owned()],
        ProposalRecord::Waits { since, until, would_evict, would_reclaim } => {
            let until = until.map_or_else(
                || "until it is applied with `run --apply-config-now`".to_owned(),
                |until| format!("until {}, unless it is accepted before", clock(until, at)),
            );
            let mut lines = vec![format!("a changed policy waits since {} {until}", clock(*since, at))];
            if !would_evict.is_empty() {
                let pods: Vec<_> = would_evict.iter().map(pod).collect();
                lines.push(format!("it would evict {} now", pods.join(", ")));
            }
            if !would_reclaim.is_empty() {
                let kinds: Vec<_> = would_reclaim.iter().map(|kind| kind.name()).collect();
                lines.push(format!("it would collect unused {} now", kinds.join(" and ")));
            }
            lines
        }
    }
}

fn implausible(why: Implausible, resource: Resource) -> String {
    let tell = |number| amount(resource, number);
    match why {
        Implausible::NegativeCapacity => "there cannot be less than nothing in all".to_owned(),
        Implausible::NegativeAvailable => "less than nothing cannot be left".to_owned(),
        Implausible::AvailableAboveCapacity => "more cannot be left than there is in all".to_owned(),
        Implausible::CapacityChanged { before } => {
            format!("it was {} in all a moment ago; not believed until it lasts", tell(before))
        }
        Implausible::SuddenlyNothing { before } => {
            format!("{} were left a moment ago, and nothing explains the fall", tell(before))
        }
    }
}
