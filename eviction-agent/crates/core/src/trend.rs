//! The trends of values: how fast they change, and when they will reach a threshold.
//!
//! A [`Trend`] stores the last few samples of one value, and the median of the slopes between all pairs of
//! them (the Theil–Sen estimator). A jump, a glitch or a few late samples do not change its direction, and
//! samples need not arrive at regular intervals.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::time::{Timestamp, since};
use crate::units::{GoDuration, Nanos};

/// The number of samples that are stored. Their slopes, one for each pair, are sorted on the stack.
const SAMPLES: usize = 12;
/// Samples closer together than this add noise, but no information.
const SPACING_NANOS: i64 = 100_000_000;
/// Samples older than this, counted from the newest, do not describe the present.
const WINDOW_NANOS: i64 = 180_000_000_000;

/// The last samples of a value, and how fast it changes. Never allocates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trend {
    /// The samples, each with its time, the oldest first.
    samples: [(Timestamp, i64); SAMPLES],
    len: usize,
    slope: Option<Slope>,
}

impl Trend {
    /// Adds a sample. A sample within a tenth of a second of the last one is ignored. If the clock was set
    /// back, all former samples are dropped.
    pub fn observe(&mut self, at: Timestamp, value: i64) {
        if let Some((last, _)) = self.samples[..self.len].last() {
            let passed = since(at, *last).as_nanos();
            if passed < 0 {
                self.len = 0;
            } else if passed < SPACING_NANOS {
                return;
            }
        }
        let old = |(time, _): &&(Timestamp, i64)| since(at, *time).as_nanos() > WINDOW_NANOS;
        let room = usize::from(self.len == SAMPLES);
        let drop = self.samples[..self.len].iter().take_while(old).count().max(room);
        self.samples.copy_within(drop..self.len, 0);
        self.len -= drop;
        self.samples[self.len] = (at, value);
        self.len += 1;
        self.slope = estimate(&self.samples[..self.len]);
    }

    /// Returns how fast the value changes, if there are enough samples.
    pub fn slope(&self) -> Option<Slope> {
        self.slope
    }
}

/// The smallest number of samples. With fewer, a single bad one determines the result.
const LEAST: usize = 4;
const PAIRS: usize = SAMPLES * (SAMPLES - 1) / 2;

/// How fast a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slope {
    /// Units per second; negative for a value that falls. The median over all pairs of samples.
    pub per_second: f64,
    /// A quarter of the pairs changes slower than this, or falls faster.
    pub low: f64,
    /// A quarter of the pairs changes faster than this.
    pub high: f64,
    /// The number of samples that the slope is based on.
    pub samples: usize,
    /// The time from the first sample to the last.
    pub over: GoDuration,
}

fn estimate(samples: &[(Timestamp, i64)]) -> Option<Slope> {
    let ((first, _), (last, _)) = (samples.first()?, samples.last()?);
    if samples.len() < LEAST {
        return None;
    }
    let mut slopes = [0.0; PAIRS];
    let mut count = 0;
    for (index, (before, from)) in samples.iter().enumerate() {
        for (after, to) in &samples[index + 1..] {
            let seconds = since(*after, *before).as_nanos() as f64 / 1e9;
            let change = i128::from(*to) - i128::from(*from);
            slopes[count] = change as f64 / seconds;
            count += 1;
        }
    }
    let slopes = &mut slopes[..count];
    slopes.sort_unstable_by(f64::total_cmp);
    // If there is no slope in the middle, the median is the mean of the two around it.
    let median = f64::midpoint(slopes[(count - 1) / 2], slopes[count / 2]);
    Some(Slope {
        per_second: median,
        low: slopes[count / 4],
        high: slopes[count - 1 - count / 4],
        samples: samples.len(),
        over: since(*last, *first),
    })
}

/// The time until something happens if the trend continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Eta {
    /// By the faster quarter of the slopes.
    pub soonest: GoDuration,
    /// By the median slope.
    pub expected: GoDuration,
    /// By the slower quarter of the slopes. Absent if it never happens by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<GoDuration>,
}

impl Slope {
    /// Returns the time until a value has lost `distance`. None if the value does not fall. A distance of
    /// zero or less is reached at once.
    pub fn time_to_lose(&self, distance: Nanos) -> Option<Eta> {
        let time = |per_second: f64| {
            let falls = -per_second;
            let seconds = distance.get().max(0) as f64 / 1e9 / falls;
            // The conversion of a float is limited to the largest integer: 292 years.
            (falls > 0.0).then(|| GoDuration::from_nanos((seconds * 1e9) as i64))
        };
        let expected = time(self.per_second)?;
        Some(Eta { soonest: time(self.low).unwrap_or(expected), expected, latest: time(self.high) })
    }
}
