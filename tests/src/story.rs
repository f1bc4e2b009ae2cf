//! The measurements of a story of `cargo xtask e2e`, printed as a line that the task parses.

use std::io::Write as _;

use serde_json::{Map, Value, json};

use crate::clock;

/// The measurements of a running story. They are printed when it ends, also when it fails.
#[derive(Debug, Default)]
pub struct Story {
    /// Moments, nanoseconds of `CLOCK_MONOTONIC`.
    moments: Vec<(&'static str, u64)>,
    values: Map<String, Value>,
}

impl Story {
    /// Begins a story without measurements.
    pub fn begin() -> Self {
        Self::default()
    }

    /// Records that something happens now. All other moments are counted from the first one.
    pub fn mark(&mut self, what: &'static str) {
        self.mark_at(what, clock::now());
    }

    /// Records when something happened, nanoseconds of `CLOCK_MONOTONIC`.
    pub fn mark_at(&mut self, what: &'static str, ns: u64) {
        self.moments.push((what, ns));
    }

    /// Records a value.
    pub fn value(&mut self, name: &str, value: impl Into<Value>) {
        self.values.insert(name.to_owned(), value.into());
    }

    fn line(&self) -> Value {
        let zero = self.moments.first().map_or(0, |&(_, ns)| ns);
        // A moment may be before the first one.
        let us = |ns: u64| (i128::from(ns) - i128::from(zero)) / 1000;
        let timeline: Map<String, Value> = self
            .moments
            .iter()
            .map(|&(what, ns)| (format!("{what}_us"), json!(i64::try_from(us(ns)).unwrap_or(i64::MAX))))
            .collect();
        json!({"timeline": timeline, "values": self.values})
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        // The test harness does not capture this. The line is written in one piece.
        let line = format!("STORY {}\n", self.line());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_is_relative_to_the_first_moment() {
        let mut story = Story::begin();
        story.mark_at("crossed", 5_000_000);
        story.mark_at("dead", 7_500_000);
        story.mark_at("written", 4_000_000);
        story.value("pods", 3);
        assert_eq!(
            story.line(),
            json!({"timeline": {"crossed_us": 0, "dead_us": 2500, "written_us": -1000}, "values": {"pods": 3}})
        );
    }
}
