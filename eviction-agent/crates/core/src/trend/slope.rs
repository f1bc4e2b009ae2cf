//! The median of the slopes between all pairs of samples.

use serde::Serialize;

use super::{SAMPLES, Sample};
use crate::time::since;
use crate::units::GoDuration;

/// With fewer samples a single bad one decides.
const LEAST: usize = 4;
const PAIRS: usize = SAMPLES * (SAMPLES - 1) / 2;

/// How fast a figure changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slope {
    /// Units per second; negative for a figure that falls. The median over all pairs of samples.
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

pub(super) fn estimate(samples: &[Sample]) -> Option<Slope> {
    let (first, last) = (samples.first()?, samples.last()?);
    if samples.len() < LEAST {
        return None;
    }
    let mut slopes = [0.0; PAIRS];
    let mut count = 0;
    for (place, a) in samples.iter().enumerate() {
        for b in &samples[place + 1..] {
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
