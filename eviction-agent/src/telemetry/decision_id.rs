//! What decisions are called.

use serde::{Deserialize, Serialize};

use eviction_node::clock::Clock;

/// Names of decisions: the start of the first agent of those that went on with each other's numbers,
/// in milliseconds and hexadecimal digits, and a number. No other decision of this node is called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DecisionIds {
    first_start_ms: i64,
}

impl DecisionIds {
    /// Those of an agent that goes on with nobody's.
    pub(crate) fn of_this_start() -> Self {
        Self { first_start_ms: Clock::start().now().wall.as_millisecond() }
    }

    /// The name of the decision of this number.
    pub(crate) fn of(self, decision: u64) -> String {
        format!("{:x}-{decision}", self.first_start_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_of_two_starts_have_two_names() {
        let of = |first_start_ms| DecisionIds { first_start_ms }.of(3);
        assert_eq!((of(0x19a8f).as_str(), of(0x19a90).as_str()), ("19a8f-3", "19a90-3"));
    }
}
