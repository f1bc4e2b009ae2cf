//! What was said of conditions, for the agent that comes after this one.

use serde::{Deserialize, Serialize};

use crate::node_conditions::pressure::{
    CONDITIONS, InitialCondition, InitialConditions, Pressure, Pressures, Status,
};
use crate::signal::NodeCondition;
use crate::time::Timestamp;

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
    /// What was said last of each condition, by its place; nothing before there was a decision.
    pub fn said(&self) -> Option<[PublishedCondition; NodeCondition::COUNT]> {
        let said = |condition: NodeCondition| {
            let place = condition as usize;
            let Pressure { status, since, .. } = self.now[place];
            PublishedCondition { status, since, hard_at: self.hard_at[place] }
        };
        self.follows.then(|| CONDITIONS.map(said))
    }

    /// Goes on where another agent ended. A change of status against that is one.
    pub fn recall(&mut self, said: &[PublishedCondition; NodeCondition::COUNT]) {
        for condition in CONDITIONS {
            let place = condition as usize;
            let PublishedCondition { status, since, hard_at } = said[place];
            self.now[place] = Pressure { status, since, ..Pressure::default() };
            self.hard_at[place] = hard_at;
        }
        self.follows = true;
    }
}

impl InitialConditions {
    /// What was said after that time alone: until then it is known better.
    #[must_use]
    pub fn after(self, known: Timestamp) -> Self {
        let is_later = |seeded: &InitialCondition| seeded.said_at.is_some_and(|at| at > known);
        Self(self.0.map(|seeded| seeded.filter(is_later)))
    }
}
