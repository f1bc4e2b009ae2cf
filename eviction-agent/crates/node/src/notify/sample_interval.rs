//! Computes when the next sample is due.
//!
//! Some backends do not see all growth, so a timer guarantees that the next sample comes before the threshold
//! can be reached at the greatest rate at which memory can fill.
#![forbid(unsafe_code)]

use std::time::Duration;

use eviction_core::time::nanos;

/// The minimum time until a sample.
pub const FLOOR: Duration = Duration::from_millis(1);

/// The interval of full samples of a node that is near a threshold, or under pressure.
pub const FULL_NEAR: Duration = Duration::from_secs(1);

/// The interval of full samples of a node that is calm and far from every threshold.
pub const FULL_CALM: Duration = Duration::from_secs(10);

/// The minimum time until a sample where a backend sees every charge.
const MIN_WITH_EVENTS: Duration = Duration::from_millis(100);

/// A threshold that may be reached within this time is near.
const NEAR: Duration = Duration::from_millis(333);

/// The rate at which one CPU of many can clear memory, in bytes per second.
const PER_CPU: u64 = 2_000_000_000;

/// The lowest fill rate that is assumed, in bytes per second. One CPU alone clears huge pages at 5 GB/s and
/// small ones at 2 GB/s; faster CPUs exist.
const MIN_RATE: u64 = 12_000_000_000;

/// The minimum time between two observations, in nanoseconds. A rate over less time is noise, since CPUs cache
/// their counts and report them all at once.
const MIN_ELAPSED_NS: u64 = 5_000_000;

/// The minimum time for which an observed rate counts; it counts at most twice as long. Otherwise a calm node
/// would be sampled each millisecond from its busiest moment on.
const RATE_PERIOD: Duration = Duration::from_secs(60);

/// The greatest rate at which memory can fill, from observations and from what the CPUs can do.
#[derive(Clone, Copy, Debug)]
pub struct FillRate {
    bound: u64,
    /// The greatest rates in the current [`RATE_PERIOD`] and in the one before.
    greatest_observed: [u64; 2],
    period_ends_ns: u64,
    last: Option<(u64, u64)>,
}

impl FillRate {
    /// Creates a rate for a machine with `cpus` CPUs, without observations.
    pub fn new(cpus: usize) -> Self {
        let cpus = u64::try_from(cpus).unwrap_or(u64::MAX);
        Self::at_least(PER_CPU.saturating_mul(cpus).max(MIN_RATE))
    }

    /// Creates a rate with a lower bound per second, in the unit that is observed.
    pub fn at_least(bound: u64) -> Self {
        Self { bound, greatest_observed: [0; 2], period_ends_ns: 0, last: None }
    }

    /// Records a working set. It is ignored for the rate if the clock stands still or goes back, or after less
    /// than 5 ms.
    pub fn observe(&mut self, at_ns: u64, working_set: u64) {
        if let Some((last_ns, last)) = self.last {
            let elapsed = at_ns.saturating_sub(last_ns);
            if elapsed < MIN_ELAPSED_NS && at_ns >= last_ns {
                return;
            }
            if let Some(grown) = working_set.checked_sub(last).filter(|_| elapsed > 0) {
                let rate = u128::from(grown) * 1_000_000_000 / u128::from(elapsed);
                if at_ns >= self.period_ends_ns {
                    self.greatest_observed = [0, self.greatest_observed[0]];
                    self.period_ends_ns = at_ns.saturating_add(nanos(RATE_PERIOD));
                }
                self.greatest_observed[0] =
                    self.greatest_observed[0].max(u64::try_from(rate).unwrap_or(u64::MAX));
            }
        }
        self.last = Some((at_ns, working_set));
    }

    /// Returns the rate to assume, in bytes per second: twice the greatest observed lately, and at least what
    /// the CPUs can clear.
    pub fn bytes_per_second(&self) -> u64 {
        let [now, before] = self.greatest_observed;
        now.max(before).saturating_mul(2).max(self.bound)
    }

    /// Returns the time in which `distance` bytes fill at the greatest rate observed lately; `None` if there is
    /// none.
    pub fn time_at_observed_rate(&self, distance: u64) -> Option<Duration> {
        let [now, before] = self.greatest_observed;
        let ns = (u128::from(distance) * 1_000_000_000).checked_div(u128::from(now.max(before)))?;
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Returns the minimum time in which `distance` bytes can fill.
    pub fn time_to_fill(&self, distance: u64) -> Duration {
        let ns = u128::from(distance) * 1_000_000_000 / u128::from(self.bytes_per_second());
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// The times until the next samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleSchedule {
    /// Time until the next sample of the cgroup that the threshold is about.
    pub sample: Duration,
    /// Time until the next full sample, counted from the last one.
    pub full: Duration,
}

/// Returns when the next samples are due.
///
/// `headroom` is from the working set to the nearest level above it in bytes, `None` if that is unknown or
/// there is no threshold; `calm` means that no threshold is met. A threshold that cannot be reached within a
/// third of a second is far. With an unknown headroom there is nothing to decide, so the intervals are those
/// near a threshold. Where a backend sees every charge, a sample only checks that it still does, and that no
/// memory grows without a charge.
pub fn due(headroom: Option<u64>, rate: &FillRate, calm: bool, sees_every_charge: bool) -> SampleSchedule {
    let Some(time) = headroom.map(|headroom| rate.time_to_fill(headroom)) else {
        return SampleSchedule { sample: FULL_NEAR, full: FULL_NEAR };
    };
    let full = if calm && time > NEAR { FULL_CALM } else { FULL_NEAR };
    let sample = match sees_every_charge {
        false => time.clamp(FLOOR, full),
        true if full == FULL_CALM => full,
        true => time.clamp(MIN_WITH_EVENTS, full),
    };
    SampleSchedule { sample, full }
}

/// Returns the rest of `due` after `passed`, but at least half of `due`: samples that take long must not follow
/// each other without a pause.
pub fn remaining(due: Duration, passed: Duration) -> Duration {
    due.saturating_sub(passed).max(due / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn less_headroom_makes_the_sample_due_sooner() {
        let rate = FillRate::new(2);
        assert_eq!(rate.bytes_per_second(), MIN_RATE);
        assert_eq!(due(Some(0), &rate, true, false), SampleSchedule { sample: FLOOR, full: FULL_NEAR });
        assert_eq!(due(Some(1_200 * 1_000_000), &rate, true, false).sample, Duration::from_millis(100));
        assert_eq!(
            due(Some(24_000_000_000), &rate, true, false),
            SampleSchedule { sample: Duration::from_secs(2), full: FULL_CALM }
        );
        assert_eq!(
            due(Some(24_000_000_000), &rate, false, false),
            SampleSchedule { sample: FULL_NEAR, full: FULL_NEAR }
        );
        assert_eq!(
            due(Some(u64::MAX), &rate, true, false),
            SampleSchedule { sample: FULL_CALM, full: FULL_CALM }
        );
        assert_eq!(due(None, &rate, true, false), SampleSchedule { sample: FULL_NEAR, full: FULL_NEAR });
    }

    #[test]
    fn observed_rate_counts_double() {
        let mut rate = FillRate::new(2);
        rate.observe(1_000_000_000, 100 * MIB);
        rate.observe(1_000_000_000, 900 * MIB);
        assert_eq!(rate.bytes_per_second(), MIN_RATE, "no time has passed");
        rate.observe(1_001_000_000, 900 * MIB);
        assert_eq!(rate.bytes_per_second(), MIN_RATE, "what CPUs cached comes at once");
        rate.observe(1_010_000_000, 200 * MIB);
        assert_eq!(rate.bytes_per_second(), 2 * 10 * MIB * 1000);
        rate.observe(500_000_000, 800 * MIB);
        rate.observe(510_000_000, 801 * MIB);
        assert_eq!(rate.bytes_per_second(), 2 * 10 * MIB * 1000, "a clock that went back teaches nothing");
        assert_eq!(FillRate::new(64).bytes_per_second(), 64 * PER_CPU);
    }

    #[test]
    fn old_observed_rate_is_forgotten() {
        let mut rate = FillRate::new(2);
        rate.observe(0, 0);
        rate.observe(10_000_000, 100 * MIB);
        let fast = 2 * 100 * MIB * 100;
        assert_eq!(rate.bytes_per_second(), fast);
        for second in 1..=60 {
            rate.observe(second * 1_000_000_000, 100 * MIB);
            assert_eq!(rate.bytes_per_second(), fast, "after {second} s");
        }
        (61..=130).for_each(|second| rate.observe(second * 1_000_000_000, 100 * MIB));
        assert_eq!(rate.bytes_per_second(), MIN_RATE);
    }

    #[test]
    fn samples_are_rarer_where_a_backend_sees_every_charge() {
        let rate = FillRate::new(2);
        let sample = |distance, calm| due(distance, &rate, calm, true).sample;
        assert_eq!(sample(Some(0), true), MIN_WITH_EVENTS);
        assert_eq!(sample(Some(2_400_000_000), true), Duration::from_millis(200));
        assert_eq!(sample(Some(8_000_000_000), true), FULL_CALM);
        assert_eq!(sample(Some(24_000_000_000), false), FULL_NEAR);
        assert_eq!(sample(None, true), FULL_NEAR);
    }

    #[test]
    fn passed_time_shortens_the_wait_by_at_most_half() {
        let ms = Duration::from_millis;
        let cases = [(0, 10), (3, 7), (5, 5), (9, 5), (1_000, 5)];
        assert!(cases.into_iter().all(|(passed, is_left)| remaining(ms(10), ms(passed)) == ms(is_left)));
        assert_eq!(remaining(Duration::ZERO, ms(1)), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_threshold_is_never_passed_between_samples(distance: u64, cpus in 1..512_usize, grown in 0..1_u64 << 40) {
            let mut rate = FillRate::new(cpus);
            rate.observe(0, 0);
            rate.observe(1_000_000_000, grown);
            let due = due(Some(distance), &rate, true, false);
            prop_assert!(due.sample >= FLOOR && due.sample <= FULL_CALM);
            let filled = u128::from(rate.bytes_per_second()) * due.sample.as_nanos() / 1_000_000_000;
            prop_assert!(filled <= u128::from(distance) || due.sample == FLOOR);
        }

        #[test]
        fn arbitrary_observations_cause_no_panic(steps: Vec<(u64, u64)>, distance: u64) {
            let mut rate = FillRate::new(usize::MAX);
            for (at_ns, working_set) in steps {
                rate.observe(at_ns, working_set);
            }
            due(Some(distance), &rate, false, false);
        }
    }
}
