//! Writes signals, thresholds, conditions, measures of memory, and a pending policy as text.

use crate::decision::ProposalState;
use crate::explain::text::{amount, clock, pod, quantity};
use crate::reading::UnknownReason;
use crate::record::{
    ConditionRecord, DecisionRecord, DeficitRecord, EvaluationRecord, MemoryRecord, MetRecord, RaiserRecord,
    SignalRecord, ThresholdRecord,
};
use crate::signal::{Resource, Signal};
use crate::signal_filter::{Implausible, RejectedReading};
use crate::threshold::MemoryConditions;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// Returns a line for each met threshold, the driving one first.
pub(super) fn met(evaluation: &EvaluationRecord, at: Timestamp) -> Vec<String> {
    let mut met: Vec<_> =
        evaluation.thresholds.iter().filter_map(|threshold| Some((threshold, threshold.met?))).collect();
    met.sort_by_key(|(_, met)| !met.driving);
    met.into_iter()
        .map(|(threshold, met)| line(threshold, met, evaluation.signal(threshold.signal), at))
        .collect()
}

/// Returns the signals that have thresholds but are unknown. Their thresholds cannot be met.
pub(super) fn unknown_signals(evaluation: &EvaluationRecord) -> Vec<String> {
    let has_threshold = |signal| evaluation.thresholds.iter().any(|threshold| threshold.signal == signal);
    let unknown_records = evaluation.signals.iter().filter(|seen| has_threshold(seen.signal));
    unknown_records.filter_map(|seen| Some(format!("{}: {}", seen.signal, unknown(seen.unknown?)))).collect()
}

fn line(threshold: &ThresholdRecord, met: MetRecord, seen: Option<&SignalRecord>, at: Timestamp) -> String {
    let signal = threshold.signal;
    let mut parts = vec![value(signal, seen)];
    let line = threshold_text(threshold);
    let missing = amount(signal.resource(), met.missing);
    let min_reclaim = threshold.min_reclaim.as_ref().map(|it| quantity(signal.resource(), it));
    parts.push(match min_reclaim {
        _ if met.by_prediction => format!("not yet below {line}, but about to be"),
        Some(more) if met.by_min_reclaim => {
            format!("above {line} again, but {missing} below it and its minimum reclaim of {more}")
        }
        Some(more) => format!("{missing} below {line} and its minimum reclaim of {more}"),
        None => format!("{missing} below {line}"),
    });
    parts.push(if met.first_seen == at {
        "met since now".to_owned()
    } else {
        format!("met since {}", clock(met.first_seen, at))
    });
    if !threshold.is_hard() {
        parts.push(match met.remaining_grace {
            GoDuration::ZERO => format!("its grace period of {} is over", threshold.grace_period),
            left => format!("{left} of its grace period of {} left", threshold.grace_period),
        });
    }
    if met.stale {
        parts.push("its value is no newer than in the last evaluation, so it evicts no pod".to_owned());
    }
    if let Some(age) = seen.and_then(|seen| seen.age) {
        parts.push(age_text(age));
    }
    format!("{signal} {}", parts.join("; "))
}

/// `hard 1Gi`, `soft 10% (1.5Gi)`.
fn threshold_text(threshold: &ThresholdRecord) -> String {
    let (kind, configured) = (threshold.kind(), &threshold.configured);
    match threshold.quantity.as_ref().map(|value| quantity(threshold.signal.resource(), value)) {
        Some(value) if configured.ends_with('%') => {
            format!("the {kind} threshold of {configured} ({value})")
        }
        Some(value) => format!("the {kind} threshold of {value}"),
        None => format!("the {kind} threshold of {configured}"),
    }
}

/// `512Mi of 8Gi`.
pub(super) fn value(signal: Signal, seen: Option<&SignalRecord>) -> String {
    let in_unit = |number| amount(signal.resource(), number);
    match seen {
        Some(SignalRecord { available: Some(available), capacity: Some(capacity), .. }) => {
            format!("is {} of {}", in_unit(*available), in_unit(*capacity))
        }
        Some(SignalRecord { unknown: Some(why), .. }) => format!("is unknown: {}", unknown(*why)),
        _ => "is unknown".to_owned(),
    }
}

fn age_text(age: GoDuration) -> String {
    match age.as_nanos() {
        0 => "seen just now".to_owned(),
        1.. => format!("seen {age} ago"),
        _ => format!("seen {} in the future", GoDuration::from_nanos(age.as_nanos().saturating_neg())),
    }
}

/// Returns why a signal is unknown.
pub(super) fn unknown(why: UnknownReason) -> String {
    match why {
        UnknownReason::Absent => "no source reports it".to_owned(),
        UnknownReason::Failed => "the source returned an error".to_owned(),
        UnknownReason::Unreadable(number) => format!("it could not be read (error {number})"),
        UnknownReason::Unparsable => "its text could not be parsed".to_owned(),
        UnknownReason::Stale => "its value is too old".to_owned(),
        UnknownReason::Implausible => "its value is implausible".to_owned(),
        UnknownReason::Replaced => "another file system has taken its place".to_owned(),
    }
}

/// Returns why a condition holds, and for how long.
pub(super) fn condition(condition: &ConditionRecord, at: Timestamp) -> String {
    let name = condition.condition;
    if condition.raised_by.is_empty() {
        let since = clock(condition.raised_at, at);
        return format!(
            "{name}: nothing raises it since {since}; the transition period keeps it for another {}",
            condition.holds_for
        );
    }
    let raiser = |raiser: &RaiserRecord| {
        let kind = match raiser.grace_period {
            GoDuration::ZERO => "hard",
            _ => "soft",
        };
        let reason = match raiser {
            RaiserRecord { by_prediction: true, .. } => ", foreseen",
            RaiserRecord { by_min_reclaim: true, .. } => ", by its minimum reclaim",
            RaiserRecord { .. } => "",
        };
        format!("{} ({kind}{reason})", raiser.signal)
    };
    let raisers: Vec<String> = condition.raised_by.iter().map(raiser).collect();
    format!("{name}: raised by {}; holds for {} after that", raisers.join(", "), condition.holds_for)
}

/// Returns a deficit as the sum of its parts.
pub(super) fn deficit(deficit: &DeficitRecord) -> String {
    let DeficitRecord { signal, threshold, min_reclaim, available, total } = *deficit;
    let in_unit = |number| amount(signal.resource(), number);
    let reclaim = match min_reclaim {
        0 => String::new(),
        more => format!(" + {} minimum reclaim", in_unit(more)),
    };
    format!(
        "{} = {} threshold{reclaim} − {} available",
        in_unit(total),
        in_unit(threshold),
        in_unit(available)
    )
}

/// Returns all measures of the node's memory, whichever the policy uses.
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
        conditions: gate,
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
    lines.extend(
        absent.iter().map(|absent| format!("{} is unknown: {}", absent.value, unknown(absent.reason))),
    );
    lines.extend(memory_condition(*gate));
    lines
}

/// Returns why thresholds of memory are not met, whatever amount is available.
fn memory_condition(gate: MemoryConditions) -> Option<String> {
    let reason = match gate {
        MemoryConditions::Fulfilled => return None,
        MemoryConditions::TooLittleStall => {
            "tasks do not stall for memory as much as the policy asks for".to_owned()
        }
        MemoryConditions::TooLittleSwapUsed => "not as much swap is used as the policy asks for".to_owned(),
        MemoryConditions::Unknown(why) => {
            format!("a further condition of the policy is unknown: {}", unknown(why))
        }
    };
    Some(format!("no threshold of memory counts: {reason}"))
}

/// Returns a line for each reading that was rejected.
pub(super) fn rejected_readings(readings: &[RejectedReading]) -> Vec<String> {
    let line = |RejectedReading { signal, available, capacity, reason }: &RejectedReading| {
        let in_unit = |number| amount(signal.resource(), number);
        format!(
            "{signal} said {} of {}: {}",
            in_unit(*available),
            in_unit(*capacity),
            implausible(*reason, signal.resource())
        )
    };
    readings.iter().map(line).collect()
}

/// Returns the thresholds that will be met soon if the trend continues.
pub(super) fn imminent_thresholds(evaluation: &EvaluationRecord) -> Vec<String> {
    let is_imminent = |threshold: &&ThresholdRecord| {
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
    evaluation.thresholds.iter().filter(is_imminent).filter_map(line).collect()
}

/// Truncates a duration to tenths of a second. The prediction is not more precise.
fn seconds(time: GoDuration) -> String {
    const TENTH: i64 = 100_000_000;
    GoDuration::from_nanos(time.as_nanos() / TENTH * TENTH).to_string()
}

/// Returns the unavailable signals and the conditions whose state is unknown.
pub(super) fn unavailable_signals(record: &DecisionRecord) -> Vec<String> {
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

/// Returns the state of a proposed policy.
pub(super) fn proposal(proposal: &ProposalState, at: Timestamp) -> Vec<String> {
    match proposal {
        ProposalState::Unchanged => vec!["the policy that was proposed is in force already".to_owned()],
        ProposalState::Applied => vec!["a changed policy is in force from now on".to_owned()],
        ProposalState::Pending { since, until, would_evict, would_reclaim } => {
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
    let in_unit = |number| amount(resource, number);
    match why {
        Implausible::NegativeCapacity => "there cannot be less than nothing in all".to_owned(),
        Implausible::NegativeAvailable => "less than nothing cannot be left".to_owned(),
        Implausible::AvailableAboveCapacity => "more cannot be left than there is in all".to_owned(),
        Implausible::CapacityChanged { before } => {
            format!("the capacity was {} a moment ago; rejected until it persists", in_unit(before))
        }
        Implausible::SuddenlyNothing { before } => {
            format!("{} were left a moment ago, and nothing explains the fall", in_unit(before))
        }
    }
}
