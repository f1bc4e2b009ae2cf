//! What is short, and what follows from it for the node: thresholds and conditions.

use crate::reading::UnknownReason;
use crate::record::{
    ConditionRecord, DeficitRecord, EvaluationRecord, MetRecord, RaiserRecord, SignalRecord, ThresholdRecord,
};
use crate::signal::Signal;
use crate::time::Timestamp;
use crate::units::GoDuration;

use super::amount::{amount, clock, quantity};

/// Every threshold that is met, the one that drives the evaluation first.
pub(super) fn met(evaluation: &EvaluationRecord, at: Timestamp) -> Vec<String> {
    let mut met: Vec<_> =
        evaluation.thresholds.iter().filter_map(|threshold| Some((threshold, threshold.met?))).collect();
    met.sort_by_key(|(_, met)| !met.handled);
    let signal = |of: Signal| evaluation.signals.iter().find(|seen| seen.signal == of);
    met.into_iter().map(|(threshold, met)| line(threshold, met, signal(threshold.signal), at)).collect()
}

/// Signals that have thresholds and are not known, which keeps these from ever being met.
pub(super) fn blind(evaluation: &EvaluationRecord) -> Vec<String> {
    let guarded = |signal| evaluation.thresholds.iter().any(|threshold| threshold.signal == signal);
    let unknown_ones = evaluation.signals.iter().filter(|seen| guarded(seen.signal));
    unknown_ones.filter_map(|seen| Some(format!("{}: {}", seen.signal, unknown(seen.unknown?)))).collect()
}

fn line(threshold: &ThresholdRecord, met: MetRecord, seen: Option<&SignalRecord>, at: Timestamp) -> String {
    let signal = threshold.signal;
    let mut parts = vec![value(signal, seen)];
    let line = named(threshold);
    let lacks = amount(signal.resource(), met.lacks);
    let min_reclaim = threshold.min_reclaim.as_deref().map(|text| quantity(signal.resource(), text));
    parts.push(match min_reclaim {
        _ if met.by_prediction => format!("not yet below {line}, but about to be"),
        Some(more) if met.by_min_reclaim => {
            format!("above {line} again, but {lacks} below it and its minimum reclaim of {more}")
        }
        Some(more) => format!("{lacks} below {line} and its minimum reclaim of {more}"),
        None => format!("{lacks} below {line}"),
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
        parts.push("its value is no newer than in the last pass, so it evicts no pod".to_owned());
    }
    if let Some(age) = seen.and_then(|seen| seen.age) {
        parts.push(aged(age));
    }
    format!("{signal} {}", parts.join("; "))
}

/// `hard 1Gi`, `soft 10% (1.5Gi)`.
fn named(threshold: &ThresholdRecord) -> String {
    let kind = if threshold.is_hard() { "hard" } else { "soft" };
    let resource = threshold.signal.resource();
    let configured = quantity(resource, &threshold.configured);
    match &threshold.quantity {
        Some(text) if threshold.configured.ends_with('%') => {
            format!("the {kind} threshold of {configured} ({})", quantity(resource, text))
        }
        _ => format!("the {kind} threshold of {configured}"),
    }
}

/// `512Mi of 8Gi`.
pub(super) fn value(signal: Signal, seen: Option<&SignalRecord>) -> String {
    let tell = |number| amount(signal.resource(), number);
    match seen {
        Some(SignalRecord { available: Some(available), capacity: Some(capacity), .. }) => {
            format!("is {} of {}", tell(*available), tell(*capacity))
        }
        Some(SignalRecord { unknown: Some(why), .. }) => format!("is unknown: {}", unknown(*why)),
        _ => "is unknown".to_owned(),
    }
}

fn aged(age: GoDuration) -> String {
    match age.as_nanos() {
        0 => "seen just now".to_owned(),
        1.. => format!("seen {age} ago"),
        _ => format!("seen {} in the future", GoDuration::from_nanos(age.as_nanos().saturating_neg())),
    }
}

/// Why nothing is known.
pub(super) fn unknown(why: UnknownReason) -> String {
    match why {
        UnknownReason::Absent => "no source reports it".to_owned(),
        UnknownReason::Failed => "the source returned an error".to_owned(),
        UnknownReason::Unreadable(number) => format!("it could not be read (error {number})"),
        UnknownReason::Unparsable => "its text could not be parsed".to_owned(),
        UnknownReason::Stale => "its value is too old".to_owned(),
        UnknownReason::Implausible => "its value is implausible".to_owned(),
    }
}

/// Why a condition holds, and for how long.
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

/// The sum with its parts.
pub(super) fn deficit(deficit: &DeficitRecord) -> String {
    let DeficitRecord { signal, threshold, min_reclaim, available, total } = *deficit;
    let tell = |number| amount(signal.resource(), number);
    let reclaim = match min_reclaim {
        0 => String::new(),
        more => format!(" + {} minimum reclaim", tell(more)),
    };
    format!("{} = {} threshold{reclaim} − {} available", tell(total), tell(threshold), tell(available))
}
