//! What the node's own object is to say of its pressure: conditions and taints of the agent's own.
//!
//! What is the kubelet's (`MemoryPressure`, `DiskPressure`, `PIDPressure` and the taints
//! `node.kubernetes.io/*`) is never written. Everything here is a pure function of the node's
//! object and of how hard it is pressed.

pub mod pressure;
#[cfg(test)]
mod tests;

use pressure::{CONDITIONS, Cause, Pressure, Severity, Status};

use crate::node::{Condition, Node, Taint};
use crate::policy::eviction_settings::NodeStatusSettings;
use crate::signal::NodeCondition;
use crate::threshold::ResolvedThreshold;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// Conditions that do not change are written anew after so long.
pub const HEARTBEAT: GoDuration = GoDuration::from_secs(300);

/// The type of the agent's own condition.
pub const fn condition_type(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "EvictionAgentDiskPressure",
        NodeCondition::MemoryPressure => "EvictionAgentMemoryPressure",
        NodeCondition::PidPressure => "EvictionAgentPIDPressure",
    }
}

/// The key of the agent's own taint.
pub const fn taint_key(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "eviction-agent.io/disk-pressure",
        NodeCondition::MemoryPressure => "eviction-agent.io/memory-pressure",
        NodeCondition::PidPressure => "eviction-agent.io/pid-pressure",
    }
}

/// The reason of a condition that only the transition period keeps; its message says since when.
const IN_TRANSITION: &str = "InPressureTransitionPeriod";
const UNTIL: &str = "eviction thresholds were met until ";

/// What a condition's text is made from.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInputs<'a> {
    /// How hard the node is pressed, by the index of the condition.
    pub pressures: &'a [Pressure; NodeCondition::COUNT],
    /// The thresholds that causes name.
    pub thresholds: &'a [ResolvedThreshold],
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
/// status was seen to change later, though it could not be written then.
pub fn conditions(node: &Node, inputs: ConditionInputs<'_>, now: Timestamp) -> Conditions {
    let now = whole_seconds(now);
    let mut due = Due::Not;
    let mut heartbeat: Option<Timestamp> = None;
    let all = CONDITIONS.map(|condition| {
        let kind = condition_type(condition);
        let pressure = &inputs.pressures[condition as usize];
        let before = node.conditions.iter().find(|before| &*before.kind == kind);
        let (status, (reason, message)) = (pressure.status.name(), text(condition, pressure, inputs));
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
pub fn transition_since(reason: &str, message: &str) -> Option<Timestamp> {
    let message = message.strip_prefix(UNTIL).filter(|_| reason == IN_TRANSITION)?;
    message.split_once(';')?.0.parse().ok()
}

/// Reason and message. Both change only when something did.
fn text(
    condition: NodeCondition,
    pressure: &Pressure,
    inputs: ConditionInputs<'_>,
) -> (&'static str, String) {
    match (pressure.status, pressure.cause) {
        (Status::True, Cause::Met { threshold: index }) => {
            let threshold = inputs.thresholds.get(usize::from(index)).map(|resolved| &resolved.threshold);
            let below = threshold.map(|threshold| {
                let grace = match threshold.is_hard() {
                    true => "hard threshold".to_owned(),
                    false => format!("soft threshold, grace period {}", threshold.grace_period),
                };
                format!("{} is below {} ({grace})", threshold.signal, threshold.value.configured())
            });
            let reason = match threshold.is_some_and(|threshold| threshold.is_hard()) {
                true => "HardEvictionThresholdMet",
                false => "SoftEvictionThresholdMet",
            };
            (reason, below.unwrap_or_else(|| "an eviction threshold is met".to_owned()))
        }
        (Status::True, Cause::Predicted) => (
            "EvictionThresholdForeseen",
            "an eviction threshold will be met soon if all goes on as it did".to_owned(),
        ),
        (Status::True, Cause::Transition { since: last }) => {
            let worst = match pressure.severity {
                Some(Severity::Hard) => "a hard one among them",
                Some(Severity::Soft) | None => "no hard one among them",
            };
            let message = format!(
                "{UNTIL}{}; {worst}; the condition holds for {} longer",
                whole_seconds(last),
                inputs.period
            );
            (IN_TRANSITION, message)
        }
        (Status::True, Cause::NoPressure | Cause::Unavailable) => {
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

crate::named_enum! {
    /// What a taint does to pods that do not tolerate it: those values of `v1.TaintEffect` that the
    /// agent writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Effect {
        /// The scheduler avoids the node.
        PreferNoSchedule = "PreferNoSchedule",
        /// The scheduler lets no pod on it.
        NoSchedule = "NoSchedule",
    }
}

impl Effect {
    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.name() == name)
    }
}

/// A change of the list of taints. They are made in their order, on the list as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintChange {
    /// The agent's taint of that key at that index gets another effect.
    Replace {
        /// Its index.
        index: usize,
        /// Its key.
        key: &'static str,
        /// The new effect.
        effect: Effect,
    },
    /// The agent's taint of that key at that index goes. Later indices come first.
    Remove {
        /// Its index.
        index: usize,
        /// Its key.
        key: &'static str,
        /// Its effect.
        effect: Effect,
    },
    /// A taint is added at the end.
    Add {
        /// Its key.
        key: &'static str,
        /// Its effect.
        effect: Effect,
    },
}

/// The effect of a taint, if it is one that the agent wrote for that condition.
fn own(taint: &Taint, condition: NodeCondition) -> Option<Effect> {
    let Taint { key, value, effect } = taint;
    Effect::named(effect).filter(|_| &**key == taint_key(condition) && value.is_empty())
}

/// The effects of the taints that the agent has on a node for a condition.
pub fn effects(node: &Node, condition: NodeCondition) -> impl Iterator<Item = Effect> {
    node.taints.iter().filter_map(move |taint| own(taint, condition))
}

/// What a condition's taint ought to do; nothing if there ought to be none.
pub fn wanted(pressure: &Pressure, marks: NodeStatusSettings) -> Option<Effect> {
    match pressure.severity? {
        Severity::Hard if marks.no_schedule => Some(Effect::NoSchedule),
        Severity::Hard | Severity::Soft => marks.prefer_no_schedule.then_some(Effect::PreferNoSchedule),
    }
}

/// What has to change so that the agent's taints are these, by the index of the condition.
pub fn taints(node: &Node, wanted: &[Option<Effect>; NodeCondition::COUNT]) -> Vec<TaintChange> {
    let (mut replaced, mut removed, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for condition in CONDITIONS {
        let key = taint_key(condition);
        let found = node.taints.iter().enumerate();
        let mut found: Vec<(usize, Effect)> =
            found.filter_map(|(index, taint)| Some((index, own(taint, condition)?))).collect();
        // There is one of each key and effect at most: what somebody else has said is said.
        let is_said = |effect: &Effect| {
            let mut others = node.taints.iter().filter(|taint| own(taint, condition).is_none());
            others.any(|taint| &*taint.key == key && *taint.effect == *effect.name())
        };
        if let Some(effect) = wanted[condition as usize].filter(|effect| !is_said(effect)) {
            let right = found.iter().position(|(_, own)| *own == effect);
            match (right, found.first().copied()) {
                (Some(right), _) => {
                    found.remove(right);
                }
                (None, Some((index, _))) => {
                    replaced.push(TaintChange::Replace { index, key, effect });
                    found.remove(0);
                }
                (None, None) => added.push(TaintChange::Add { key, effect }),
            }
        }
        removed.extend(found.into_iter().map(|(index, effect)| (index, key, effect)));
    }
    // What comes behind an index that is taken away moves up.
    removed.sort_by_key(|(index, ..)| std::cmp::Reverse(*index));
    let removed = removed.into_iter().map(|(index, key, effect)| TaintChange::Remove { index, key, effect });
    replaced.into_iter().chain(removed).chain(added).collect()
}
