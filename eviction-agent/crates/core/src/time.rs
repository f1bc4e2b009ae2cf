//! Instants as they arrive with inputs. The core has no clock.

use std::time::Duration;

use super::units::GoDuration;

/// A point in time, UTC, to the nanosecond.
pub type Timestamp = jiff::Timestamp;

/// Go's zero `time.Time`, which the kubelet takes for "no time": the start of year 1.
pub const GO_ZERO: Timestamp = Timestamp::constant(-62_135_596_800, 0);

/// Whether an instant of a statistic says nothing: absent, or Go's zero time.
pub fn is_unset(time: Option<Timestamp>) -> bool {
    time.is_none_or(|time| time == GO_ZERO)
}

/// `now − then`, negative when the clock went back: Go's `Time.Sub`, which ends at ±292 years.
pub fn since(now: Timestamp, then: Timestamp) -> GoDuration {
    let nanos = now.as_nanosecond() - then.as_nanosecond();
    let nearest = if nanos < 0 { i64::MIN } else { i64::MAX };
    GoDuration::from_nanos(i64::try_from(nanos).unwrap_or(nearest))
}

/// Nanoseconds as monotonic stamps count them; more than 64 bits hold is for ever.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
