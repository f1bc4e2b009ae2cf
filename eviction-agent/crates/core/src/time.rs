//! Times as they arrive with inputs. The core has no clock.

use std::time::Duration;

use jiff::SignedDuration;

use super::units::GoDuration;

/// A point in time, UTC, to the nanosecond.
pub type Timestamp = jiff::Timestamp;

/// Go's zero `time.Time`, the start of year 1. For the kubelet it means "no time".
pub const GO_ZERO: Timestamp = Timestamp::constant(-62_135_596_800, 0);

/// Returns whether the time of a statistic is unset: absent, or Go's zero time.
pub fn is_unset(time: Option<Timestamp>) -> bool {
    time.is_none_or(|time| time == GO_ZERO)
}

/// Returns `now − then`, negative if the clock was set back: Go's `Time.Sub`, which is limited to ±292 years.
pub fn since(now: Timestamp, then: Timestamp) -> GoDuration {
    let nanos = now.as_nanosecond() - then.as_nanosecond();
    let nearest = if nanos < 0 { i64::MIN } else { i64::MAX };
    GoDuration::from_nanos(i64::try_from(nanos).unwrap_or(nearest))
}

/// Returns `time + by`. If that is out of range, the time stays as it is.
pub fn later(time: Timestamp, by: GoDuration) -> Timestamp {
    time.checked_add(SignedDuration::from_nanos(by.as_nanos())).unwrap_or(time)
}

/// Returns a duration in nanoseconds, as in monotonic timestamps. A duration that does not fit 64 bits
/// becomes the maximum.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
