//! What a story of `cargo xtask e2e` has measured, reported as a line that the task reads.

use std::io::Write as _;

use serde_json::{Map, Value, json};

use crate::clock;

/// Figures of a running story. They are printed when it ends, also when it fails.
#[derive(Debug, Default)]
pub struct Story {
    /// Moments, nanoseconds of `CLOCK_MONOTONIC`.
    moments: Vec<(&'static str, u64)>,
    values: Map<String, Value>,
}

impl Story {
    /// One that has measured nothing yet.
    pub fn begin() -> Self {
        Self::default()
    }

    /// Something happens now. The first moment is the one that all others are counted from.
    pub fn mark(&mut self, what: &'static str) {
        self.mark_at(what, clock::now());
    }

    /// Something happened then, nanoseconds of `CLOCK_MONOTONIC`.
    pub fn mark_at(&mut self, what: &'static str, ns: u64) {
        self.moments.push((what, ns));
    }

    /// A figure.
    pub fn value(&mut self, name: &str, value: impl Into<Value>) {
        self.values.insert(name.to_owned(), value.into());
    }

    fn line(&self) -> Value {
        let zero = self.moments.first().map_or(0, |&(_, ns)| ns);
        // A moment may lie before the first one.
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
        // Past the test harness's capture, and in one piece.
        let line = format!("STORY {}\n", self.line());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_from_the_first() {
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
