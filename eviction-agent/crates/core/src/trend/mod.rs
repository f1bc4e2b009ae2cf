//! Where figures are going: how fast they change, and when they will reach a line.
//!
//! A [`Trend`] keeps the last few samples of one figure and the median of the slopes between
//! all pairs of them (the Theil–Sen estimator): a jump, a glitch or a few late samples do not
//! turn it, and samples need not come at regular intervals.

mod eta;
mod slope;
#[cfg(test)]
mod tests;

pub use eta::Eta;
pub use slope::Slope;

use super::time::{Timestamp, since};
use slope::estimate;

/// Samples that are kept. Their slopes, one of each pair, are sorted on the stack.
const SAMPLES: usize = 12;
/// Samples closer together than this add noise and no knowledge.
const SPACING_NANOS: i64 = 100_000_000;
/// Samples older than this, counted from the newest, say nothing about the present.
const WINDOW_NANOS: i64 = 180_000_000_000;

/// The last samples of a figure, and how fast it changes. Never allocates.
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

    /// How fast the figure changes, if there are samples enough to tell.
    pub fn slope(&self) -> Option<Slope> {
        self.slope
    }
}
