//! Points over time, one per interval.

use eviction_core::time::Timestamp;
use serde::Serialize;

/// Values with their times in milliseconds since 1970, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Series {
    times_ms: Vec<i64>,
    values: Vec<i64>,
}

impl Series {
    /// Adds a value. Of the values in the same interval of `interval_ms`, the one that `select` returns is kept, the
    /// least or the greatest, with its time. A value with a time before the last one is ignored.
    pub(super) fn push(&mut self, at: Timestamp, value: i64, interval_ms: i64, select: fn(i64, i64) -> i64) {
        let at = at.as_millisecond();
        let interval = |time: i64| time.div_euclid(interval_ms.max(1));
        if let (Some(time), Some(kept)) = (self.times_ms.last_mut(), self.values.last_mut()) {
            if at < *time {
                return;
            }
            if interval(at) == interval(*time) {
                if select(*kept, value) != *kept {
                    (*time, *kept) = (at, value);
                }
                return;
            }
        }
        self.times_ms.push(at);
        self.values.push(value);
    }

    /// Adds a value that holds from this time on. A value equal to the last one is ignored.
    pub(super) fn step(&mut self, at: Timestamp, value: i64) {
        if self.values.last() != Some(&value) {
            self.push(at, value, 1, i64::max);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn last(&self) -> Option<i64> {
        self.values.last().copied()
    }

    pub(super) fn least(&self) -> Option<i64> {
        self.values.iter().copied().min()
    }

    pub(super) fn most(&self) -> Option<i64> {
        self.values.iter().copied().max()
    }

    /// Removes points before this time.
    pub(super) fn remove_before(&mut self, at: Timestamp) {
        let old = self.times_ms.partition_point(|time| *time < at.as_millisecond());
        self.times_ms.drain(..old);
        self.values.drain(..old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_keeps_the_least_value_of_each_interval_with_its_time() {
        let mut series = Series::default();
        let times = [0, 400, 900, 1000, 700, 2500];
        for (time, value) in times.into_iter().zip([5, 3, 4, 9, 1, 2]) {
            series.push(Timestamp::from_millisecond(time).unwrap(), value, 1000, i64::min);
        }
        assert_eq!((series.times_ms, series.values), (vec![400, 1000, 2500], vec![3, 9, 2]));
    }
}
