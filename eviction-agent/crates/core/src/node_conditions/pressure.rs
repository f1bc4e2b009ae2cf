//! How hard the node is pressed for each of its conditions, as others are to be told: a pure
//! function of decisions.
//!
//! A condition outlives its cause by the transition period, and so does how hard the pressure was:
//! who was pushed off a node by a hard threshold does not come back as long as the condition holds
//! for it.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::condition::RaisedCondition;
use crate::decision::{Decision, Evaluation};
use crate::node::{Condition, Node};
use crate::node_conditions;
use crate::node_conditions::{Effect, HEARTBEAT};
use crate::signal::NodeCondition;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// All conditions; a condition as `usize` is its index.
pub const CONDITIONS: [NodeCondition; NodeCondition::COUNT] =
    [NodeCondition::DiskPressure, NodeCondition::MemoryPressure, NodeCondition::PidPressure];

/// What is to be said of one condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Whether it holds.
    pub status: Status,
    /// When that was last seen to change; nothing if it was not since the start.
    pub since: Option<Timestamp>,
    /// The worst threshold that is met, or was within the transition period; nothing if the
    /// condition does not hold.
    pub severity: Option<Severity>,
    /// Why.
    pub cause: Cause,
}

crate::named_enum! {
    /// Whether a condition holds.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Status {
        /// It holds.
        True = "True",
        /// It does not.
        #[default]
        False = "False",
        /// A signal that raises it has been unknown for long.
        Unknown = "Unknown",
    }
}

/// The worst threshold of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// One with a grace period, or one that is only about to be met.
    Soft,
    /// One that evicts at once.
    Hard,
}

/// Why a condition is as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// No threshold is met.
    #[default]
    NoPressure,
    /// This one is, by its index in the list of thresholds: the worst of them, the first of several.
    Met {
        /// Its index in [`Evaluation::thresholds`].
        threshold: u8,
    },
    /// One is about to be met.
    Predicted,
    /// None is any more; only the transition period keeps the condition.
    Transition {
        /// When one was met last.
        since: Timestamp,
    },
    /// A signal is unknown.
    Unavailable,
}

/// Follows decisions, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Pressures {
    now: [Pressure; NodeCondition::COUNT],
    /// When a hard threshold of each was last met.
    hard_at: [Option<Timestamp>; NodeCondition::COUNT],
    /// A decision was taken since the start or since a seed.
    has_decisions: bool,
}

impl Pressures {
    /// What is to be said after this decision; `period` is the transition period of its policy.
    pub fn update(&mut self, decision: &Decision, period: GoDuration) -> &[Pressure; NodeCondition::COUNT] {
        let evaluation = decision.evaluation();
        for condition in CONDITIONS {
            let index = condition as usize;
            let met = evaluation.and_then(|evaluation| worst(evaluation, condition));
            if let Some((_, Severity::Hard)) = met {
                self.hard_at[index] = Some(decision.at);
            }
            let raised = decision.conditions.iter().find(|raised| raised.condition == condition);
            let blind = || decision.unknown_conditions().any(|unknown| unknown == condition);
            let before = self.now[index];
            let (status, severity, cause) = match raised {
                Some(raised) => {
                    let cause = match (evaluation, met) {
                        (Some(_), Some((index, _))) => Cause::Met { threshold: index },
                        (Some(_), None) if raised.at == decision.at => Cause::Predicted,
                        // Nothing was looked at: what was the case still is, as far as is known.
                        (None, _) if before.status == Status::True => before.cause,
                        (_, _) => Cause::Transition { since: raised.at },
                    };
                    (Status::True, Some(self.severity(index, decision.at, period)), cause)
                }
                None if blind() => (Status::Unknown, None, Cause::Unavailable),
                None => (Status::False, None, Cause::NoPressure),
            };
            let changed = self.has_decisions && status != before.status;
            let since = if changed { Some(decision.at) } else { before.since };
            self.now[index] = Pressure { status, since, severity, cause };
        }
        self.has_decisions = true;
        &self.now
    }

    /// Takes over what was said before the start. A change of status against that is one.
    pub fn seed(&mut self, seed: &InitialConditions) {
        for condition in CONDITIONS {
            let index = condition as usize;
            let Some(InitialCondition { status, raised_at, hard, published_at: _ }) = seed.0[index] else {
                continue;
            };
            self.now[index] = Pressure { status, ..Pressure::default() };
            if hard {
                self.hard_at[index] = self.hard_at[index].max(raised_at);
            }
            self.has_decisions = true;
        }
    }

    fn severity(&self, index: usize, now: Timestamp, period: GoDuration) -> Severity {
        let lasts = |at: Timestamp| at == now || since(now, at) < period;
        if self.hard_at[index].is_some_and(lasts) { Severity::Hard } else { Severity::Soft }
    }
}

/// The worst threshold of a condition that is met, the first of several.
fn worst(evaluation: &Evaluation, condition: NodeCondition) -> Option<(u8, Severity)> {
    let mut worst: Option<(u8, Severity)> = None;
    for met in &evaluation.met {
        let Some(resolved) = evaluation.threshold(met.threshold) else { continue };
        if resolved.threshold.signal.condition() != condition {
            continue;
        }
        let severity = if resolved.threshold.is_hard() { Severity::Hard } else { Severity::Soft };
        if worst.is_none_or(|(_, before)| before < severity) {
            worst = Some((met.threshold, severity));
        }
    }
    worst
}

impl InitialConditions {
    /// The conditions that were raised, for [`Engine::seed_conditions`].
    ///
    /// [`Engine::seed_conditions`]: crate::engine::Engine::seed_conditions
    pub fn raised(&self) -> impl Iterator<Item = RaisedCondition> {
        let raised = |condition: NodeCondition| {
            let seeded = self.0[condition as usize]?;
            Some(RaisedCondition { condition, at: seeded.raised_at? })
        };
        CONDITIONS.into_iter().filter_map(raised)
    }
}

/// What was said of each condition before the start, by its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialConditions(pub [Option<InitialCondition>; NodeCondition::COUNT]);

/// What was said of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialCondition {
    /// Whether it held.
    pub status: Status,
    /// When a threshold was last met, if it held: the latest time that may have been.
    pub raised_at: Option<Timestamp>,
    /// A hard threshold was among them.
    pub hard: bool,
    /// When this was said.
    pub published_at: Option<Timestamp>,
}

impl InitialConditions {
    /// What this Node says. Its times are those of the clock that shows `now`.
    pub fn of(node: &Node, now: Timestamp) -> Self {
        Self(CONDITIONS.map(|condition| {
            let found =
                node.conditions.iter().find(|it| *it.kind == *node_conditions::condition_type(condition))?;
            let status = match &*found.status {
                "True" => Status::True,
                "False" => Status::False,
                _ => Status::Unknown,
            };
            let raised_at = (status == Status::True).then(|| last_met(found).unwrap_or(now).min(now));
            let hard = node_conditions::effects(node, condition).any(|effect| effect == Effect::NoSchedule);
            Some(InitialCondition { status, raised_at, hard, published_at: said_at(found) })
        }))
    }

    /// The same with other times.
    #[must_use]
    pub fn map(self, time: impl Fn(Timestamp) -> Timestamp) -> Self {
        let map = |seeded: InitialCondition| {
            let (raised_at, said_at) = (seeded.raised_at.map(&time), seeded.published_at.map(&time));
            InitialCondition { raised_at, published_at: said_at, ..seeded }
        };
        Self(self.0.map(|seeded| seeded.map(map)))
    }
}

fn said_at(condition: &Condition) -> Option<Timestamp> {
    condition.last_heartbeat_time.max(condition.last_transition_time)
}

/// The latest time at which a threshold may have been met: as the condition says it, or until the
/// next heartbeat would have been due. Nothing if it has no times at all.
fn last_met(condition: &Condition) -> Option<Timestamp> {
    let until = node_conditions::transition_since(&condition.reason, &condition.message);
    let alive =
        || said_at(condition)?.checked_add(jiff::SignedDuration::from_nanos(HEARTBEAT.as_nanos())).ok();
    until.or_else(alive)
}

/// What was said of a condition last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PublishedCondition {
    /// Whether it held.
    pub status: Status,
    /// [`Pressure::since`].
    pub since: Option<Timestamp>,
    /// When a hard threshold was met last.
    pub hard_at: Option<Timestamp>,
}

impl Pressures {
    /// What was said last of each condition, by its index; nothing before there was a decision.
    pub fn published(&self) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
        let said = |condition: NodeCondition| {
            let index = condition as usize;
            let Pressure { status, since, .. } = self.now[index];
            PublishedCondition { status, since, hard_at: self.hard_at[index] }
        };
        self.has_decisions.then(|| CONDITIONS.map(said))
    }

    /// Goes on where another agent ended. A change of status against that is one.
    pub fn restore(&mut self, said: &[PublishedCondition; NodeCondition::COUNT]) {
        for condition in CONDITIONS {
            let index = condition as usize;
            let PublishedCondition { status, since, hard_at } = said[index];
            self.now[index] = Pressure { status, since, ..Pressure::default() };
            self.hard_at[index] = hard_at;
        }
        self.has_decisions = true;
    }
}

impl InitialConditions {
    /// What was said after that time alone: until then it is known better.
    #[must_use]
    pub fn after(self, known: Timestamp) -> Self {
        let is_later = |seeded: &InitialCondition| seeded.published_at.is_some_and(|at| at > known);
        Self(self.0.map(|seeded| seeded.filter(is_later)))
    }
}
