//! What a Node says from before the start.

use crate::node::{Condition, Node};
use crate::node_conditions::pressure::{CONDITIONS, Status};
use crate::node_conditions::{self, Effect, HEARTBEAT};
use crate::signal::NodeCondition;
use crate::time::Timestamp;

/// What was said of each condition before the start, by its place.
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
    pub said_at: Option<Timestamp>,
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
            Some(InitialCondition { status, raised_at, hard, said_at: said_at(found) })
        }))
    }

    /// The same with other times.
    #[must_use]
    pub fn map(self, time: impl Fn(Timestamp) -> Timestamp) -> Self {
        let map = |seeded: InitialCondition| {
            let (raised_at, said_at) = (seeded.raised_at.map(&time), seeded.said_at.map(&time));
            InitialCondition { raised_at, said_at, ..seeded }
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
    let until = node_conditions::over_since(&condition.reason, &condition.message);
    let alive =
        || said_at(condition)?.checked_add(jiff::SignedDuration::from_nanos(HEARTBEAT.as_nanos())).ok();
    until.or_else(alive)
}
