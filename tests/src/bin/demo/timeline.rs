//! The timeline of a story, counted from the crossing.

use serde_json::{Map, Value, json};

/// The moments of a story, in the order in which they were recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// The moment that counts as 0, nanoseconds of `CLOCK_MONOTONIC`.
    zero: u64,
    marks: Vec<Mark>,
}

/// One moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The key: `crossed`, `kernel`, `seen`, `decided`, `dead`, …
    pub(crate) key: &'static str,
    /// Microseconds since the crossing; negative before it.
    pub(crate) us: i64,
    /// The description.
    pub(crate) what: String,
}

impl Timeline {
    /// Begins the timeline at the crossing, by the growing process's own clock.
    pub(crate) fn crossed(at_ns: u64, what: impl Into<String>) -> Self {
        Self { zero: at_ns, marks: vec![Mark { key: "crossed", us: 0, what: what.into() }] }
    }

    /// Adds another moment.
    pub(crate) fn mark(&mut self, key: &'static str, at_ns: u64, what: impl Into<String>) {
        self.marks.push(Mark { key, us: self.us(at_ns), what: what.into() });
    }

    /// Returns the microseconds from the crossing to that moment, rounded down.
    fn us(&self, at_ns: u64) -> i64 {
        let distance = i128::from(at_ns) - i128::from(self.zero);
        i64::try_from(distance.div_euclid(1000)).unwrap_or(i64::MAX)
    }

    /// Returns the moments sorted by time.
    pub(crate) fn sorted(&self) -> Vec<&Mark> {
        let mut marks: Vec<&Mark> = self.marks.iter().collect();
        marks.sort_by_key(|mark| mark.us);
        marks
    }

    /// Returns `{"crossed_us": 0, …}`.
    pub(crate) fn json(&self) -> Value {
        let marks = self.marks.iter().map(|mark| (format!("{}_us", mark.key), json!(mark.us)));
        Value::Object(marks.collect::<Map<_, _>>())
    }
}

/// Formats microseconds as milliseconds.
pub(crate) fn millis(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    let us = us.unsigned_abs();
    format!("{sign}{}.{:02}", us / 1000, us % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_to_the_crossing() {
        let mut timeline = Timeline::crossed(5_000_000, "here");
        timeline.mark("decided", 6_234_567, "there");
        timeline.mark("kernel", 4_999_500, "a little early");
        let keys: Vec<_> = timeline.sorted().iter().map(|mark| (mark.key, mark.us)).collect();
        assert_eq!(keys, [("kernel", -1), ("crossed", 0), ("decided", 1234)]);
        assert_eq!(timeline.json(), json!({"crossed_us": 0, "decided_us": 1234, "kernel_us": -1}));
    }

    #[test]
    fn milliseconds_keep_their_sign() {
        assert_eq!(millis(0), "0.00");
        assert_eq!(millis(1234), "1.23");
        assert_eq!(millis(-70), "-0.07");
        assert_eq!(millis(2_004_006), "2004.00");
    }
}
