//! When a falling figure will have lost a distance.

use serde::Serialize;

use super::Slope;
use crate::milli_units::Nanos;
use crate::units::GoDuration;

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
    /// When a figure that has `distance` left will have lost it; nothing if it does not fall.
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
