//! The pressure on the node for each of its conditions, as it is published: a pure function of decisions.
//!
//! A condition holds for the transition period after its cause has ended, and counts as hard for that time after a
//! hard threshold was met: a pod that was evicted for a hard threshold does not come back while the condition holds
//! for that threshold.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::condition::RaisedCondition;
use crate::decision::{Decision, Evaluation};
use crate::node::{Condition, Node};
use crate::node_conditions;
use crate::node_conditions::{Effect, HEARTBEAT};
use crate::policy::Threshold;
use crate::signal::NodeCondition;
use crate::time::{Timestamp, later, since};
use crate::units::GoDuration;

/// The state of one condition that is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Whether the condition holds.
    pub status: Status,
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
    pub enum Status {
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
                        (None, _) if before.status == Status::True => before.cause,
                        (_, _) => Some(PressureCause::Transition { since: raised.at }),
                    };
                    (Status::True, cause)
                }
                None if is_unknown() => (Status::Unknown, None),
                None => (Status::False, None),
            };
            let lasts = |at: Timestamp| at == decision.at || since(decision.at, at) < period;
            let hard = status == Status::True && self.hard_at[index].is_some_and(lasts);
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
    pub status: Status,
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
            let found =
                node.conditions.iter().find(|it| *it.kind == *node_conditions::condition_type(condition))?;
            let status = match &*found.status {
                "True" => Status::True,
                "False" => Status::False,
                _ => Status::Unknown,
            };
            let raised_at = (status == Status::True).then(|| last_met(found).unwrap_or(now).min(now));
            let hard = node_conditions::effects(node, condition).any(|effect| effect == Effect::NoSchedule);
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
    let until = node_conditions::transition_since(&condition.reason, &condition.message);
    let next_heartbeat = || Some(later(published_at(condition)?, HEARTBEAT));
    until.or_else(next_heartbeat)
}
