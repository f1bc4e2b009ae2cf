//! The conditions and taints with which the agent reports pressure on its Node object.
//!
//! The kubelet's conditions (`MemoryPressure`, `DiskPressure`, `PIDPressure`) and the taints
//! `node.kubernetes.io/*` are never written. Everything here is a pure function of the Node object and of the
//! pressure on the node.

pub mod pressure;
#[cfg(test)]
mod tests;

use pressure::{Pressure, PressureCause, Status};

use crate::node::{Condition, Node, Taint};
use crate::policy::Threshold;
use crate::policy::eviction_settings::NodeStatusSettings;
use crate::signal::NodeCondition;
use crate::time::{Timestamp, later};
use crate::units::GoDuration;

/// The interval after which unchanged conditions are written again.
pub const HEARTBEAT: GoDuration = GoDuration::from_secs(300);

/// Returns the type of the agent's own condition.
pub const fn condition_type(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "EvictionAgentDiskPressure",
        NodeCondition::MemoryPressure => "EvictionAgentMemoryPressure",
        NodeCondition::PidPressure => "EvictionAgentPIDPressure",
    }
}

/// Returns the key of the agent's own taint.
pub const fn taint_key(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "eviction-agent.io/disk-pressure",
        NodeCondition::MemoryPressure => "eviction-agent.io/memory-pressure",
        NodeCondition::PidPressure => "eviction-agent.io/pid-pressure",
    }
}

/// The reason of a condition that only the transition period keeps. Its message contains the start of that period.
const IN_TRANSITION: &str = "InPressureTransitionPeriod";
const UNTIL: &str = "eviction thresholds were met until ";

/// The conditions that the node should have, and how urgent it is to write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredConditions {
    /// All three conditions as they should be.
    pub all: [Condition; NodeCondition::COUNT],
    /// How urgent it is to write the conditions.
    pub due: Due,
    /// When the conditions must be written in any case.
    pub heartbeat: Timestamp,
}

/// How urgent it is to write conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// The conditions on the node are up to date.
    Not,
    /// The conditions have not changed, but have not been written for long.
    Heartbeat,
    /// Each status is correct, but a reason, message or transition time is not.
    Detail,
    /// A status is wrong, or a condition is missing.
    Status,
}

/// Returns the conditions that the node should have. `pressures` is indexed by condition, and its causes are
/// indices into `thresholds`. `period` is the transition period. All times are of the clock that shows `now`.
///
/// `lastTransitionTime` stays as it is on the node while the status is the same, no matter what wrote it. The
/// exception is a later change of the status that could not be written at the time.
pub fn conditions(
    node: &Node,
    pressures: &[Pressure; NodeCondition::COUNT],
    thresholds: &[Threshold],
    period: GoDuration,
    now: Timestamp,
) -> DesiredConditions {
    let now = whole_seconds(now);
    let mut due = Due::Not;
    let mut heartbeat: Option<Timestamp> = None;
    let all = NodeCondition::ALL.map(|condition| {
        let kind = condition_type(condition);
        let pressure = &pressures[condition as usize];
        let before = node.conditions.iter().find(|before| &*before.kind == kind);
        let status = pressure.status.name();
        let (reason, message) = text(condition, pressure, thresholds, period);
        let seen = pressure.since.map(|since| whole_seconds(since).min(now));
        let same = before.filter(|before| &*before.status == status);
        let transition = match same.and_then(|before| before.last_transition_time) {
            Some(published) => seen.map_or(published, |seen| seen.max(published)),
            None => seen.unwrap_or(now),
        };
        let is_unchanged = |before: &&Condition| {
            &*before.reason == reason
                && *before.message == *message
                && before.last_transition_time == Some(transition)
        };
        due = due.max(match same {
            None => Due::Status,
            Some(before) if is_unchanged(&before) => Due::Not,
            Some(_) => Due::Detail,
        });
        // A heartbeat in the future was written before the clock was set back.
        let next = before
            .and_then(|before| before.last_heartbeat_time)
            .filter(|last| *last <= now)
            .map_or(now, |last| later(last, HEARTBEAT));
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
    DesiredConditions { all, due, heartbeat }
}

/// Returns since when no threshold is met, if this is the text of a condition in its transition period.
pub fn transition_since(reason: &str, message: &str) -> Option<Timestamp> {
    let message = message.strip_prefix(UNTIL).filter(|_| reason == IN_TRANSITION)?;
    message.split_once(';')?.0.parse().ok()
}

/// Returns the reason and the message. Both change only when the state changes.
fn text(
    condition: NodeCondition,
    pressure: &Pressure,
    thresholds: &[Threshold],
    period: GoDuration,
) -> (&'static str, String) {
    match (pressure.status, pressure.cause) {
        (Status::True, Some(PressureCause::Met { threshold: index })) => {
            let threshold = thresholds.get(usize::from(index));
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
        (Status::True, Some(PressureCause::Predicted)) => (
            "EvictionThresholdForeseen",
            "an eviction threshold will be met soon if all goes on as it did".to_owned(),
        ),
        (Status::True, Some(PressureCause::Transition { since: last })) => {
            let worst = if pressure.hard { "a hard one among them" } else { "no hard one among them" };
            let last = whole_seconds(last);
            let message = format!("{UNTIL}{last}; {worst}; the condition holds for {period} longer");
            (IN_TRANSITION, message)
        }
        (Status::True, None) => ("EvictionThresholdMet", "an eviction threshold is met".to_owned()),
        (Status::Unknown, _) => {
            ("SignalUnknown", format!("a signal of {} has been unknown for long", condition.name()))
        }
        (Status::False, _) => ("NoEvictionThresholdMet", "no eviction threshold is met".to_owned()),
    }
}

/// Truncates a time to whole seconds, as in the API.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

crate::named_enum! {
    /// The effect of a taint on pods that do not tolerate it: the values of `v1.TaintEffect` that the agent writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Effect {
        /// The scheduler avoids the node.
        PreferNoSchedule = "PreferNoSchedule",
        /// The scheduler places no pod on the node.
        NoSchedule = "NoSchedule",
    }
}

/// A change of the list of taints. Changes are applied in order. Indices refer to the list before any change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintChange {
    /// Removes the agent's taint with this key at this index. Later indices come first.
    Remove {
        /// The index of the taint.
        index: usize,
        /// The key of the taint.
        key: &'static str,
        /// The effect of the taint.
        effect: Effect,
    },
    /// Adds a taint at the end.
    Add {
        /// The key of the taint.
        key: &'static str,
        /// The effect of the taint.
        effect: Effect,
    },
}

/// Returns the effect of a taint, if it is one that the agent wrote for this condition.
fn agent_effect(taint: &Taint, condition: NodeCondition) -> Option<Effect> {
    let Taint { key, value, effect } = taint;
    let is_own = &**key == taint_key(condition) && value.is_empty();
    Effect::ALL.into_iter().find(|known| is_own && known.name() == &**effect)
}

/// Returns the effects of the agent's taints for a condition on a node.
pub fn effects(node: &Node, condition: NodeCondition) -> impl Iterator<Item = Effect> {
    node.taints.iter().filter_map(move |taint| agent_effect(taint, condition))
}

/// Returns the effect that a condition's taint should have. None if there should be no taint.
pub fn wanted(pressure: &Pressure, settings: NodeStatusSettings) -> Option<Effect> {
    match pressure.status {
        Status::True if pressure.hard && settings.no_schedule => Some(Effect::NoSchedule),
        Status::True => settings.prefer_no_schedule.then_some(Effect::PreferNoSchedule),
        Status::False | Status::Unknown => None,
    }
}

/// Returns the changes that lead to the wanted taints of the agent. They are given by the index of the condition.
pub fn taints(node: &Node, wanted: &[Option<Effect>; NodeCondition::COUNT]) -> Vec<TaintChange> {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for condition in NodeCondition::ALL {
        let key = taint_key(condition);
        let found = node.taints.iter().enumerate();
        let mut found: Vec<(usize, Effect)> =
            found.filter_map(|(index, taint)| Some((index, agent_effect(taint, condition)?))).collect();
        // The list can have only one taint of each key and effect. If another writer has set it, it is left alone.
        let is_set_by_other_writer = |effect: &Effect| {
            let mut others = node.taints.iter().filter(|taint| agent_effect(taint, condition).is_none());
            others.any(|taint| &*taint.key == key && *taint.effect == *effect.name())
        };
        if let Some(effect) = wanted[condition as usize].filter(|effect| !is_set_by_other_writer(effect)) {
            match found.iter().position(|(_, agent_effect)| *agent_effect == effect) {
                Some(right) => drop(found.remove(right)),
                None => added.push(TaintChange::Add { key, effect }),
            }
        }
        removed.extend(found.into_iter().map(|(index, effect)| (index, key, effect)));
    }
    // Removing a taint moves the following ones up, so the last index is removed first.
    removed.sort_by_key(|(index, ..)| std::cmp::Reverse(*index));
    let removed = removed.into_iter().map(|(index, key, effect)| TaintChange::Remove { index, key, effect });
    removed.chain(added).collect()
}
