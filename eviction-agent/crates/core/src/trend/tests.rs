use proptest::prelude::*;

use super::*;
use crate::fixture::arbitrary::time;
use crate::fixture::at;
use crate::units::{GoDuration, Nanos};

fn trend(samples: impl IntoIterator<Item = (i64, i64)>) -> Trend {
    let mut trend = Trend::default();
    for (seconds, value) in samples {
        trend.observe(at(seconds), value);
    }
    trend
}

fn units(units: i64) -> Nanos {
    Nanos::from_units(i128::from(units))
}

#[test]
fn slope_of_a_line_is_found_at_uneven_intervals() {
    let slope = trend([0, 1, 7, 8, 20, 41].map(|second| (second, 1000 - 10 * second))).slope().unwrap();
    assert_eq!((slope.per_second, slope.low, slope.high), (-10.0, -10.0, -10.0));
    assert_eq!((slope.samples, slope.over), (6, GoDuration::from_secs(41)));
    let eta = slope.time_to_lose(units(500)).unwrap();
    assert_eq!((eta.soonest, eta.expected), (GoDuration::from_secs(50), GoDuration::from_secs(50)));
    assert_eq!(eta.latest, Some(GoDuration::from_secs(50)));
}

#[test]
fn one_outlier_does_not_change_the_slope() {
    let with_glitch = |second| (second, if second == 4 { 0 } else { 1000 - 10 * second });
    assert_eq!(trend((0..9).map(with_glitch)).slope().unwrap().per_second, -10.0);
}

#[test]
fn three_samples_give_no_slope() {
    let falling = |second| (second, 100 - second);
    assert_eq!(trend((0..3).map(falling)).slope(), None);
    assert!(trend((0..4).map(falling)).slope().is_some());
}

#[test]
fn values_that_do_not_fall_have_no_eta() {
    let rising = trend((0..6).map(|second| (second, second))).slope().unwrap();
    assert_eq!(rising.time_to_lose(units(1)), None);
    let flat = trend((0..6).map(|second| (second, 7))).slope().unwrap();
    assert_eq!(flat.time_to_lose(units(1)), None);
    let uneven = trend([(0, 100), (1, 90), (2, 99), (3, 85), (4, 99), (5, 80)]).slope().unwrap();
    let eta = uneven.time_to_lose(units(10)).unwrap();
    assert!(eta.soonest < eta.expected);
    assert_eq!(eta.latest, None, "a quarter of the pairs did not fall");
    assert_eq!(uneven.time_to_lose(units(-5)).unwrap().expected, GoDuration::ZERO);
}

#[test]
fn samples_are_dropped_when_old_and_when_the_clock_goes_back() {
    let old = trend((0..6).map(|second| (second, second)).chain([(1000, 0), (1001, 0), (1002, 0)]));
    assert_eq!(old.slope(), None, "three that are young enough");
    let back = trend((0..6).map(|second| (second, second)).chain([(3, 50)]));
    assert_eq!(back.slope(), None);
}

#[test]
fn frequent_samples_are_stored_100_ms_apart() {
    let mut trend = Trend::default();
    for millis in 0..3_000_i64 {
        trend.observe(at(0) + jiff::SignedDuration::from_millis(millis), millis);
    }
    let slope = trend.slope().unwrap();
    assert_eq!((slope.per_second, slope.samples), (1000.0, SAMPLES));
    assert_eq!(slope.over, GoDuration::from_nanos(1_100_000_000));
}

proptest! {
    /// This holds for any values at any times.
    #[test]
    fn slopes_are_finite_and_etas_are_ordered(
        samples in prop::collection::vec((time(), any::<i64>()), 0..40),
    ) {
        let mut trend = Trend::default();
        for (at, value) in samples {
            trend.observe(at, value);
            if let Some(slope) = trend.slope() {
                prop_assert!(slope.per_second.is_finite());
                prop_assert!(slope.low <= slope.per_second && slope.per_second <= slope.high);
                if let Some(eta) = slope.time_to_lose(units(1 << 40)) {
                    prop_assert!(GoDuration::ZERO <= eta.soonest && eta.soonest <= eta.expected);
                    prop_assert!(eta.latest.is_none_or(|latest| latest >= eta.expected));
                }
            }
        }
    }

    /// The slope of a line is found in spite of a fifth of arbitrary samples.
    #[test]
    fn slope_ignores_a_fifth_of_arbitrary_samples(
        per_second in -1_000_000..1_000_000_i64,
        bad in prop::array::uniform2((0..SAMPLES, any::<i32>())),
    ) {
        let value = |second: i64| {
            let arbitrary = bad.iter().find(|(index, _)| *index as i64 == second);
            arbitrary.map_or(per_second * second, |(_, value)| i64::from(*value))
        };
        let slope = trend((0..SAMPLES as i64).map(|second| (second, value(second)))).slope().unwrap();
        prop_assert_eq!(slope.per_second, per_second as f64);
    }
}
