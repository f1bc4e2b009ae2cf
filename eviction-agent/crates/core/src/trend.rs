//! Where values are going: how fast they change, and when they will reach a threshold.
//!
//! A [`Trend`] keeps the last few samples of one value and the median of the slopes between
//! all pairs of them (the Theil–Sen estimator): a jump, a glitch or a few late samples do not
//! turn it, and samples need not come at regular intervals.

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::time::{Timestamp, since};
use crate::units::{GoDuration, Nanos};

/// Samples that are kept. Their slopes, one of each pair, are sorted on the stack.
const SAMPLES: usize = 12;
/// Samples closer together than this add noise and no knowledge.
const SPACING_NANOS: i64 = 100_000_000;
/// Samples older than this, counted from the newest, say nothing about the present.
const WINDOW_NANOS: i64 = 180_000_000_000;

/// The last samples of a value, and how fast it changes. Never allocates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trend {
    /// The oldest first.
    samples: [Sample; SAMPLES],
    len: usize,
    slope: Option<Slope>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: Timestamp,
    value: i64,
}

impl Trend {
    /// Takes a sample. One that comes within a tenth of a second of the last is left out. When
    /// the clock went back everything before is forgotten.
    pub fn observe(&mut self, at: Timestamp, value: i64) {
        if let Some(last) = self.samples[..self.len].last() {
            let passed = since(at, last.at).as_nanos();
            if passed < 0 {
                self.len = 0;
            } else if passed < SPACING_NANOS {
                return;
            }
        }
        let old = |sample: &Sample| since(at, sample.at).as_nanos() > WINDOW_NANOS;
        let room = usize::from(self.len == SAMPLES);
        let drop = self.samples[..self.len].iter().take_while(|sample| old(sample)).count().max(room);
        self.samples.copy_within(drop..self.len, 0);
        self.len -= drop;
        self.samples[self.len] = Sample { at, value };
        self.len += 1;
        self.slope = estimate(&self.samples[..self.len]);
    }

    /// How fast the value changes, if there are samples enough to tell.
    pub fn slope(&self) -> Option<Slope> {
        self.slope
    }
}

/// With fewer samples a single bad one decides.
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
    /// How many samples it was worked out from.
    pub samples: usize,
    /// From the first sample to the last.
    pub over: GoDuration,
}

fn estimate(samples: &[Sample]) -> Option<Slope> {
    let (first, last) = (samples.first()?, samples.last()?);
    if samples.len() < LEAST {
        return None;
    }
    let mut slopes = [0.0; PAIRS];
    let mut count = 0;
    for (index, a) in samples.iter().enumerate() {
        for b in &samples[index + 1..] {
            let seconds = since(b.at, a.at).as_nanos() as f64 / 1e9;
            let change = i128::from(b.value) - i128::from(a.value);
            slopes[count] = change as f64 / seconds;
            count += 1;
        }
    }
    let slopes = &mut slopes[..count];
    slopes.sort_unstable_by(f64::total_cmp);
    // The mean of the two in the middle where there is no middle one.
    let median = f64::midpoint(slopes[(count - 1) / 2], slopes[count / 2]);
    Some(Slope {
        per_second: median,
        low: slopes[count / 4],
        high: slopes[count - 1 - count / 4],
        samples: samples.len(),
        over: since(last.at, first.at),
    })
}

/// In how long something will happen if all goes on as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Eta {
    /// By the faster quarter of what was seen.
    pub soonest: GoDuration,
    /// By the median.
    pub expected: GoDuration,
    /// By the slower quarter; absent if that one never arrives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<GoDuration>,
}

impl Slope {
    /// When a value that has `distance` left will have lost it; nothing if it does not fall.
    /// A distance that is not above zero is there already.
    pub fn time_to_lose(&self, distance: Nanos) -> Option<Eta> {
        let time = |per_second: f64| {
            let falls = -per_second;
            let seconds = distance.get().max(0) as f64 / 1e9 / falls;
            // A conversion of floats ends at the greatest integer: 292 years.
            (falls > 0.0).then(|| GoDuration::from_nanos((seconds * 1e9) as i64))
        };
        let expected = time(self.per_second)?;
        Some(Eta { soonest: time(self.low).unwrap_or(expected), expected, latest: time(self.high) })
    }
}
