//! How hard the node is pressed for each of its conditions, as others are to be told: a pure
//! function of decisions.
//!
//! A condition outlives its cause by the transition period, and so does how hard the pressure was:
//! who was pushed off a node by a hard threshold does not come back as long as the condition holds
//! for it.

mod initial;
mod published;
#[cfg(test)]
mod tests;

pub use initial::{InitialCondition, InitialConditions};
pub use published::PublishedCondition;

use serde::{Deserialize, Serialize};

use crate::condition::Raised;
use crate::decision::{Decision, Evaluation};
use crate::signal::NodeCondition;
use crate::time::{Timestamp, since};
use crate::units::GoDuration;

/// All conditions; a condition as `usize` is its place.
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

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    #[default]
    False,
    /// A signal that raises it has been unknown for long.
    Unknown,
}

impl Status {
    /// As the API has it: `v1.ConditionStatus`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
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
    Calm,
    /// This one is, by its place in the list of thresholds: the worst of them, the first of several.
    Met {
        /// Its place in [`Evaluation::lines`].
        line: u8,
    },
    /// One is about to be met.
    Foreseen,
    /// None is any more; only the transition period keeps the condition.
    Over {
        /// When one was met last.
        since: Timestamp,
    },
    /// A signal is unknown.
    Blind,
}

/// Follows decisions, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Pressures {
    now: [Pressure; NodeCondition::COUNT],
    /// When a hard threshold of each was last met.
    hard_at: [Option<Timestamp>; NodeCondition::COUNT],
    /// A decision was taken since the start or since a seed.
    follows: bool,
}

impl Pressures {
    /// What is to be said after this decision; `period` is the transition period of its policy.
    pub fn take(&mut self, decision: &Decision, period: GoDuration) -> &[Pressure; NodeCondition::COUNT] {
        let pass = decision.pass();
        for condition in CONDITIONS {
            let place = condition as usize;
            let met = pass.and_then(|pass| worst(pass, condition));
            if let Some((_, Severity::Hard)) = met {
                self.hard_at[place] = Some(decision.at);
            }
            let raised = decision.conditions.iter().find(|raised| raised.condition == condition);
            let blind = || decision.unknown_conditions().any(|unknown| unknown == condition);
            let before = self.now[place];
            let (status, severity, cause) = match raised {
                Some(raised) => {
                    let cause = match (pass, met) {
                        (Some(_), Some((line, _))) => Cause::Met { line },
                        (Some(_), None) if raised.at == decision.at => Cause::Foreseen,
                        // Nothing was looked at: what was the case still is, as far as is known.
                        (None, _) if before.status == Status::True => before.cause,
                        (_, _) => Cause::Over { since: raised.at },
                    };
                    (Status::True, Some(self.severity(place, decision.at, period)), cause)
                }
                None if blind() => (Status::Unknown, None, Cause::Blind),
                None => (Status::False, None, Cause::Calm),
            };
            let changed = self.follows && status != before.status;
            let since = if changed { Some(decision.at) } else { before.since };
            self.now[place] = Pressure { status, since, severity, cause };
        }
        self.follows = true;
        &self.now
    }

    /// Takes over what was said before the start. A change of status against that is one.
    pub fn seed(&mut self, seed: &InitialConditions) {
        for condition in CONDITIONS {
            let place = condition as usize;
            let Some(InitialCondition { status, raised_at, hard, said_at: _ }) = seed.0[place] else {
                continue;
            };
            self.now[place] = Pressure { status, ..Pressure::default() };
            if hard {
                self.hard_at[place] = self.hard_at[place].max(raised_at);
            }
            self.follows = true;
        }
    }

    fn severity(&self, place: usize, now: Timestamp, period: GoDuration) -> Severity {
        let lasts = |at: Timestamp| at == now || since(now, at) < period;
        if self.hard_at[place].is_some_and(lasts) { Severity::Hard } else { Severity::Soft }
    }
}

/// The worst threshold of a condition that is met, the first of several.
fn worst(pass: &Evaluation, condition: NodeCondition) -> Option<(u8, Severity)> {
    let mut worst: Option<(u8, Severity)> = None;
    for met in &pass.met {
        let Some(line) = pass.line(met.line) else { continue };
        if line.threshold.signal.condition() != condition {
            continue;
        }
        let severity = if line.threshold.is_hard() { Severity::Hard } else { Severity::Soft };
        if worst.is_none_or(|(_, before)| before < severity) {
            worst = Some((met.line, severity));
        }
    }
    worst
}

impl InitialConditions {
    /// The conditions that were raised, for [`Engine::seed_conditions`].
    ///
    /// [`Engine::seed_conditions`]: crate::engine::Engine::seed_conditions
    pub fn raised(&self) -> impl Iterator<Item = Raised> {
        let raised = |condition: NodeCondition| {
            let seeded = self.0[condition as usize]?;
            Some(Raised { condition, at: seeded.raised_at? })
        };
        CONDITIONS.into_iter().filter_map(raised)
    }
}
