//! What happened when, counted from the crossing.

use serde_json::{Map, Value, json};

/// Moments of a story, in the order in which they were put down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// The moment that counts as 0, nanoseconds of `CLOCK_MONOTONIC`.
    zero: u64,
    marks: Vec<Mark>,
}

/// One moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// `crossed`, `kernel`, `seen`, `decided`, `dead`, …
    pub(crate) key: &'static str,
    /// Microseconds since the crossing; negative for what came before.
    pub(crate) us: i64,
    /// What it was, for people.
    pub(crate) what: String,
}

impl Timeline {
    /// The crossing, by the growing process's own clock: everything counts from here.
    pub(crate) fn crossed(at_ns: u64, what: impl Into<String>) -> Self {
        Self { zero: at_ns, marks: vec![Mark { key: "crossed", us: 0, what: what.into() }] }
    }

    /// Puts down another moment.
    pub(crate) fn mark(&mut self, key: &'static str, at_ns: u64, what: impl Into<String>) {
        self.marks.push(Mark { key, us: self.us(at_ns), what: what.into() });
    }

    /// Microseconds from the crossing to that moment, rounded down.
    fn us(&self, at_ns: u64) -> i64 {
        let distance = i128::from(at_ns) - i128::from(self.zero);
        i64::try_from(distance.div_euclid(1000)).unwrap_or(i64::MAX)
    }

    /// The moments in the order of time.
    pub(crate) fn sorted(&self) -> Vec<&Mark> {
        let mut marks: Vec<&Mark> = self.marks.iter().collect();
        marks.sort_by_key(|mark| mark.us);
        marks
    }

    /// `{"crossed_us": 0, …}`.
    pub(crate) fn json(&self) -> Value {
        let marks = self.marks.iter().map(|mark| (format!("{}_us", mark.key), json!(mark.us)));
        Value::Object(marks.collect::<Map<_, _>>())
    }
}

/// Milliseconds as people read them.
pub(crate) fn millis(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    let us = us.unsigned_abs();
    format!("{sign}{}.{:02}", us / 1000, us % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_count_from_the_crossing() {
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
