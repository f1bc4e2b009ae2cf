//! The conditions and taints with which the agent reports pressure on its Node object: the pressure for each
//! condition, which follows from decisions, and what the Node object should contain because of it.
//!
//! A condition holds for the transition period after its cause has ended, and counts as hard for that time after a
//! hard threshold was met: a pod that was evicted for a hard threshold does not come back while the condition holds
//! for that threshold.
//!
//! The kubelet's conditions (`MemoryPressure`, `DiskPressure`, `PIDPressure`) and the taints
//! `node.kubernetes.io/*` are never written. Everything here is a pure function of the Node object and of
//! decisions.

#[cfg(test)]
mod pressure_tests;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::condition::RaisedCondition;
use crate::decision::{Decision, Evaluation};
use crate::node::{Condition, Node, Taint};
use crate::policy::Threshold;
use crate::policy::eviction_settings::NodeStatusSettings;
use crate::signal::NodeCondition;
use crate::time::{Timestamp, later, since};
use crate::units::GoDuration;

/// The state of one condition that is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// When the status was last seen to change. None if it has not changed since the start.
    pub since: Option<Timestamp>,
    /// Whether a hard threshold is met, or was met within the transition period. False if the condition does not
    /// hold.
    pub hard: bool,
    /// Why the condition holds. None if it does not, or if that is not known yet.
    pub cause: Option<PressureCause>,
}

crate::named_enum! {
    /// Whether a condition holds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum ConditionStatus {
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        #[default]
        False = "False",
        /// A signal that raises the condition has been unknown for long.
        Unknown = "Unknown",
    }
}

/// Why a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureCause {
    /// This threshold is met: the worst one, or the first of several.
    Met {
        /// Index into [`Evaluation::thresholds`].
        threshold: u8,
    },
    /// A threshold is predicted to be met soon.
    Predicted,
    /// No threshold is met any more. Only the transition period keeps the condition.
    Transition {
        /// When a threshold was met last.
        since: Timestamp,
    },
}

/// Tracks the pressure from decision to decision.
#[derive(Clone, Debug, Default)]
pub struct Pressures {
    now: [Pressure; NodeCondition::COUNT],
    /// When a hard threshold of each condition was last met.
    hard_at: [Option<Timestamp>; NodeCondition::COUNT],
    /// Whether there was a decision since the start, or the state was restored.
    has_decisions: bool,
}

impl Pressures {
    /// Updates the state by a decision and returns it. `period` is the transition period of the policy.
    pub fn update(&mut self, decision: &Decision, period: GoDuration) -> &[Pressure; NodeCondition::COUNT] {
        let evaluation = decision.evaluation();
        for condition in NodeCondition::ALL {
            let index = condition as usize;
            let met = evaluation.and_then(|evaluation| worst(evaluation, condition));
            if met.is_some_and(|(_, threshold)| threshold.is_hard()) {
                self.hard_at[index] = Some(decision.at);
            }
            let raised = decision.conditions.iter().find(|raised| raised.condition == condition);
            let is_unknown = || decision.unknown_conditions().any(|unknown| unknown == condition);
            let before = self.now[index];
            let (status, cause) = match raised {
                Some(raised) => {
                    let cause = match (evaluation, met) {
                        (Some(_), Some((index, _))) => Some(PressureCause::Met { threshold: index }),
                        (Some(_), None) if raised.at == decision.at => Some(PressureCause::Predicted),
                        // The decision is not an evaluation, so the last known cause still applies.
                        (None, _) if before.status == ConditionStatus::True => before.cause,
                        (_, _) => Some(PressureCause::Transition { since: raised.at }),
                    };
                    (ConditionStatus::True, cause)
                }
                None if is_unknown() => (ConditionStatus::Unknown, None),
                None => (ConditionStatus::False, None),
            };
            let lasts = |at: Timestamp| at == decision.at || since(decision.at, at) < period;
            let hard = status == ConditionStatus::True && self.hard_at[index].is_some_and(lasts);
            let changed = self.has_decisions && status != before.status;
            let since = if changed { Some(decision.at) } else { before.since };
            self.now[index] = Pressure { status, since, hard, cause };
        }
        self.has_decisions = true;
        &self.now
    }

    /// Continues from a condition that was published before the start. A different status later counts as a change.
    pub fn restore(&mut self, condition: NodeCondition, published: PublishedCondition) {
        let PublishedCondition { status, since, hard_at } = published;
        let index = condition as usize;
        self.now[index] = Pressure { status, since, ..Pressure::default() };
        self.hard_at[index] = self.hard_at[index].max(hard_at);
        self.has_decisions = true;
    }

    /// Returns the state of each condition that was published last, by its index. None before the first decision.
    pub fn published(&self) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
        let published = |condition: NodeCondition| {
            let index = condition as usize;
            let Pressure { status, since, .. } = self.now[index];
            PublishedCondition { status, since, hard_at: self.hard_at[index] }
        };
        self.has_decisions.then(|| NodeCondition::ALL.map(published))
    }
}

/// The state of a condition that was published last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PublishedCondition {
    /// Whether the condition held.
    pub status: ConditionStatus,
    /// [`Pressure::since`].
    pub since: Option<Timestamp>,
    /// When a hard threshold was met last.
    pub hard_at: Option<Timestamp>,
}

/// Returns the first hard threshold of a condition that is met, or else the first soft one.
fn worst(evaluation: &Evaluation, condition: NodeCondition) -> Option<(u8, &Threshold)> {
    let met = || {
        let all = evaluation.met.iter();
        let met = all.filter_map(|met| Some((met.threshold, evaluation.threshold(met.threshold)?)));
        met.filter(|(_, threshold)| threshold.signal.condition() == condition)
    };
    met().find(|(_, threshold)| threshold.is_hard()).or_else(|| met().next())
}

/// A condition of the Node object at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialCondition {
    /// The condition.
    pub condition: NodeCondition,
    /// Its state, as far as the Node object shows it.
    pub published: PublishedCondition,
    /// When a threshold was last met, if the condition held: the latest possible time.
    pub raised_at: Option<Timestamp>,
    /// When the condition was published.
    pub published_at: Option<Timestamp>,
}

impl InitialCondition {
    /// Reads the conditions of this Node. Its times are of the clock that shows `now`, and are converted by `time`.
    pub fn all(node: &Node, now: Timestamp, time: impl Fn(Timestamp) -> Timestamp) -> Vec<Self> {
        let read = |condition: NodeCondition| {
            let found = node.conditions.iter().find(|it| *it.kind == *condition_type(condition))?;
            let status = match &*found.status {
                "True" => ConditionStatus::True,
                "False" => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            };
            let raised_at =
                (status == ConditionStatus::True).then(|| last_met(found).unwrap_or(now).min(now));
            let hard = effects(node, condition).any(|effect| effect == TaintEffect::NoSchedule);
            let (raised_at, published_at) = (raised_at.map(&time), published_at(found).map(&time));
            let published = PublishedCondition { status, since: None, hard_at: raised_at.filter(|_| hard) };
            Some(Self { condition, published, raised_at, published_at })
        };
        NodeCondition::ALL.into_iter().filter_map(read).collect()
    }

    /// Returns the condition for [`Engine::seed_conditions`], if it was raised.
    ///
    /// [`Engine::seed_conditions`]: crate::engine::Engine::seed_conditions
    pub fn raised(&self) -> Option<RaisedCondition> {
        Some(RaisedCondition { condition: self.condition, at: self.raised_at? })
    }

    /// Returns whether the condition was published after this time. The state up to then is known from a better
    /// source.
    pub fn is_newer_than(&self, known: Timestamp) -> bool {
        self.published_at.is_some_and(|at| at > known)
    }
}

fn published_at(condition: &Condition) -> Option<Timestamp> {
    condition.last_heartbeat_time.max(condition.last_transition_time)
}

/// Returns the latest time at which a threshold may have been met: the time in the condition's message, or
/// the time at which the next heartbeat would have been due. None if the condition has no times.
fn last_met(condition: &Condition) -> Option<Timestamp> {
    let until = transition_since(&condition.reason, &condition.message);
    let next_heartbeat = || Some(later(published_at(condition)?, HEARTBEAT));
    until.or_else(next_heartbeat)
}

/// The interval after which unchanged conditions are written again.
const HEARTBEAT: GoDuration = GoDuration::from_secs(300);

/// Returns the type of the agent's own condition.
pub const fn condition_type(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "EvictionAgentDiskPressure",
        NodeCondition::MemoryPressure => "EvictionAgentMemoryPressure",
        NodeCondition::PidPressure => "EvictionAgentPIDPressure",
    }
}

/// Returns the key of the agent's own taint.
const fn taint_key(condition: NodeCondition) -> &'static str {
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
fn transition_since(reason: &str, message: &str) -> Option<Timestamp> {
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
        (ConditionStatus::True, Some(PressureCause::Met { threshold: index })) => {
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
        (ConditionStatus::True, Some(PressureCause::Predicted)) => (
            "EvictionThresholdForeseen",
            "an eviction threshold will be met soon if all goes on as it did".to_owned(),
        ),
        (ConditionStatus::True, Some(PressureCause::Transition { since: last })) => {
            let worst = if pressure.hard { "a hard one among them" } else { "no hard one among them" };
            let last = whole_seconds(last);
            let message = format!("{UNTIL}{last}; {worst}; the condition holds for {period} longer");
            (IN_TRANSITION, message)
        }
        (ConditionStatus::True, None) => ("EvictionThresholdMet", "an eviction threshold is met".to_owned()),
        (ConditionStatus::Unknown, _) => {
            ("SignalUnknown", format!("a signal of {} has been unknown for long", condition.name()))
        }
        (ConditionStatus::False, _) => ("NoEvictionThresholdMet", "no eviction threshold is met".to_owned()),
    }
}

/// Truncates a time to whole seconds, as in the API.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

crate::named_enum! {
    /// The effect of a taint on pods that do not tolerate it: the values of `v1.TaintEffect` that the agent writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TaintEffect {
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
        effect: TaintEffect,
    },
    /// Adds a taint at the end.
    Add {
        /// The key of the taint.
        key: &'static str,
        /// The effect of the taint.
        effect: TaintEffect,
    },
}

/// Returns the effect of a taint, if it is one that the agent wrote for this condition.
fn agent_effect(taint: &Taint, condition: NodeCondition) -> Option<TaintEffect> {
    let Taint { key, value, effect } = taint;
    let is_own = &**key == taint_key(condition) && value.is_empty();
    TaintEffect::ALL.into_iter().find(|known| is_own && known.name() == &**effect)
}

/// Returns the effects of the agent's taints for a condition on a node.
fn effects(node: &Node, condition: NodeCondition) -> impl Iterator<Item = TaintEffect> {
    node.taints.iter().filter_map(move |taint| agent_effect(taint, condition))
}

/// Returns the effect that a condition's taint should have. None if there should be no taint.
pub fn wanted(pressure: &Pressure, settings: NodeStatusSettings) -> Option<TaintEffect> {
    match pressure.status {
        ConditionStatus::True if pressure.hard && settings.no_schedule => Some(TaintEffect::NoSchedule),
        ConditionStatus::True => settings.prefer_no_schedule.then_some(TaintEffect::PreferNoSchedule),
        ConditionStatus::False | ConditionStatus::Unknown => None,
    }
}

/// Returns the changes that lead to the wanted taints of the agent. They are given by the index of the condition.
pub fn taints(node: &Node, wanted: &[Option<TaintEffect>; NodeCondition::COUNT]) -> Vec<TaintChange> {
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for condition in NodeCondition::ALL {
        let key = taint_key(condition);
        let found = node.taints.iter().enumerate();
        let mut found: Vec<(usize, TaintEffect)> =
            found.filter_map(|(index, taint)| Some((index, agent_effect(taint, condition)?))).collect();
        // The list can have only one taint of each key and effect. If another writer has set it, it is left alone.
        let is_set_by_other_writer = |effect: &TaintEffect| {
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
