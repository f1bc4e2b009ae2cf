//! The agent's conditions.

use super::{HEARTBEAT, condition_type};
use crate::node::{Condition, Node};
use crate::node_conditions::pressure::{CONDITIONS, Cause, Pressure, Severity, Status};
use crate::signal::NodeCondition;
use crate::threshold::ResolvedThreshold;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// The reason of a condition that only the transition period keeps; its message says since when.
const IN_TRANSITION: &str = "InPressureTransitionPeriod";
const UNTIL: &str = "eviction thresholds were met until ";

/// What a condition's text is made from.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInputs<'a> {
    /// How hard the node is pressed, by the place of the condition.
    pub pressures: &'a [Pressure; NodeCondition::COUNT],
    /// The thresholds that causes name.
    pub lines: &'a [ResolvedThreshold],
    /// The transition period.
    pub period: GoDuration,
}

/// What is to be done about conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// All three as they ought to be.
    pub all: [Condition; NodeCondition::COUNT],
    /// How pressing it is that they are written.
    pub due: Due,
    /// When they are to be written in any case.
    pub heartbeat: Timestamp,
}

/// How pressing it is that conditions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// They are as they ought to be.
    Not,
    /// They say the same, and were not written for long.
    Heartbeat,
    /// Their status is right, and not all that is said with it.
    Detail,
    /// A status is wrong, or a condition is not there.
    Status,
}

/// What the node's conditions ought to be; all times are those of the clock that shows `now`.
///
/// `lastTransitionTime` stays what it was as long as the status does, whoever wrote it: unless the
/// status was seen to change later, though nobody could be told then.
pub fn conditions(node: &Node, grounds: ConditionInputs<'_>, now: Timestamp) -> Conditions {
    let now = whole_seconds(now);
    let mut due = Due::Not;
    let mut heartbeat: Option<Timestamp> = None;
    let all = CONDITIONS.map(|condition| {
        let kind = condition_type(condition);
        let pressure = &grounds.pressures[condition as usize];
        let before = node.conditions.iter().find(|before| &*before.kind == kind);
        let (status, (reason, message)) = (pressure.status.name(), text(condition, pressure, grounds));
        let seen = pressure.since.map(|since| whole_seconds(since).min(now));
        let same = before.filter(|before| &*before.status == status);
        let transition = match same.and_then(|before| before.last_transition_time) {
            Some(said) => seen.map_or(said, |seen| seen.max(said)),
            None => seen.unwrap_or(now),
        };
        let is_as_said = |before: &&Condition| {
            &*before.reason == reason
                && *before.message == *message
                && before.last_transition_time == Some(transition)
        };
        due = due.max(match same {
            None => Due::Status,
            Some(before) if is_as_said(&before) => Due::Not,
            Some(_) => Due::Detail,
        });
        // A heartbeat of the future is of a clock that was set.
        let next = before
            .and_then(|before| before.last_heartbeat_time)
            .filter(|last| *last <= now)
            .and_then(|last| last.checked_add(jiff::SignedDuration::from_nanos(HEARTBEAT.as_nanos())).ok())
            .unwrap_or(now);
        heartbeat = Some(heartbeat.map_or(next, |first| first.min(next)));
        Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_heartbeat_time: Some(now),
            last_transition_time: Some(transition),
        }
    });
    let heartbeat = heartbeat.unwrap_or(now);
    if heartbeat <= now {
        due = due.max(Due::Heartbeat);
    }
    Conditions { all, due, heartbeat }
}

/// Since when no threshold is met, if this is the text of a condition that says so.
pub fn over_since(reason: &str, message: &str) -> Option<Timestamp> {
    let message = message.strip_prefix(UNTIL).filter(|_| reason == IN_TRANSITION)?;
    message.split_once(';')?.0.parse().ok()
}

/// Reason and message. Both change only when something did.
fn text(
    condition: NodeCondition,
    pressure: &Pressure,
    grounds: ConditionInputs<'_>,
) -> (&'static str, String) {
    match (pressure.status, pressure.cause) {
        (Status::True, Cause::Met { line }) => {
            let line = grounds.lines.get(usize::from(line)).map(|line| &line.threshold);
            let below = line.map(|threshold| {
                let grace = match threshold.is_hard() {
                    true => "hard threshold".to_owned(),
                    false => format!("soft threshold, grace period {}", threshold.grace_period),
                };
                format!("{} is below {} ({grace})", threshold.signal, threshold.value.configured())
            });
            let reason = match line.is_some_and(|threshold| threshold.is_hard()) {
                true => "HardEvictionThresholdMet",
                false => "SoftEvictionThresholdMet",
            };
            (reason, below.unwrap_or_else(|| "an eviction threshold is met".to_owned()))
        }
        (Status::True, Cause::Foreseen) => (
            "EvictionThresholdForeseen",
            "an eviction threshold will be met soon if all goes on as it did".to_owned(),
        ),
        (Status::True, Cause::Over { since: last }) => {
            let worst = match pressure.severity {
                Some(Severity::Hard) => "a hard one among them",
                Some(Severity::Soft) | None => "no hard one among them",
            };
            let message = format!(
                "{UNTIL}{}; {worst}; the condition holds for {} longer",
                whole_seconds(last),
                grounds.period
            );
            (IN_TRANSITION, message)
        }
        (Status::True, Cause::Calm | Cause::Blind) => {
            ("EvictionThresholdMet", "an eviction threshold is met".to_owned())
        }
        (Status::Unknown, _) => {
            ("SignalUnknown", format!("a signal of {} has been unknown for long", condition.name()))
        }
        (Status::False, _) => ("NoEvictionThresholdMet", "no eviction threshold is met".to_owned()),
    }
}

/// As the API has times.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
