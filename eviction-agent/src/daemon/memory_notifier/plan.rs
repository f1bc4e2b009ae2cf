//! Which kernel thresholds to set, and which on-demand probes to attach after a sample.
//!
//! A level is a working set at which an eviction threshold is met. The nearest level above the present working set is
//! set at its headroom, less the granularity of the backend; the nearest one below is set to see pressure end.

use std::time::Duration;

use eviction_bpf::{KernelThreshold, batch_bytes};
use eviction_config::Probes;
use eviction_core::policy::preferences::MemoryMeasure;
use eviction_core::time::TokenBucket;
use eviction_node::sampler::MemoryUsage;

/// The minimum headroom that is set for eviction thresholds, bytes: a batch of pages that a CPU charges. Page cache
/// close to a threshold is charged and released all the time, and would wake the agent without a pause.
pub(crate) const MIN_REARM: u64 = 256 << 10;

const LEAST_WIDE_REARM: u64 = 1 << 20;

/// Returns the minimum headroom for eviction thresholds that were crossed too often recently, on a machine with
/// `cpus` CPUs: each can charge.
pub(crate) fn wide_min_rearm(cpus: usize) -> u64 {
    let of_all = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(512 << 10);
    of_all.max(LEAST_WIDE_REARM)
}

/// Returns the minimum headroom for a memory limit: the agent only reports that it is near.
pub(crate) fn min_rearm_of_limit(limit: u64) -> u64 {
    (limit / 256).max(LEAST_WIDE_REARM)
}

/// How a backend detects growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GrowthSource {
    /// Whether gross charges can be counted. They bound the growth of the working set.
    pub(crate) sees_every_charge: bool,
    /// How many bytes can be charged before the backend notices.
    pub(crate) granularity_bytes: u64,
}

impl GrowthSource {
    /// Returns the source for the machine's own values. These have what processes touched. What each CPU caches
    /// (`MEMCG_CHARGE_BATCH` pages for each of `charge_caches` cgroups) was reported when it was charged. One of these
    /// batches is in the granularity already.
    pub(crate) fn of_machine(self, cpus: usize, charge_caches: u32) -> Self {
        let all = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(charge_caches.into());
        let cached = all.saturating_sub(1).saturating_mul(batch_bytes());
        Self { granularity_bytes: self.granularity_bytes.saturating_add(cached), ..self }
    }
}

/// Returns the level that cannot be passed without a charge. The kernel's own estimate also falls by memory
/// that is charged to no cgroup, so a sample is taken half-way.
pub(crate) fn conservative_level(measure: MemoryMeasure, usage: MemoryUsage, level: u64) -> u64 {
    match measure {
        MemoryMeasure::WorkingSet | MemoryMeasure::WorkingSetMinusActiveFile => level,
        MemoryMeasure::MemAvailable => level - level.saturating_sub(usage.working_set) / 2,
    }
}

/// The kernel threshold to set on one cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThresholdPlan {
    /// The threshold for the BPF programs.
    pub(crate) threshold: KernelThreshold,
    /// The headroom from the present working set to the nearest level above, bytes.
    pub(crate) headroom: Option<u64>,
}

/// Returns the kernel threshold to set, given the working sets at which thresholds are met (any order).
pub(crate) fn plan(
    growth: GrowthSource,
    min_rearm: u64,
    memory: MemoryUsage,
    levels: impl IntoIterator<Item = u64>,
) -> ThresholdPlan {
    let MemoryUsage { usage, working_set } = memory;
    let (mut above, mut below) = (None::<u64>, None::<u64>);
    for level in levels {
        // A threshold is met by less than its value: at the level itself it is not crossed yet, and the next page
        // crosses it.
        if level >= working_set {
            above = Some(above.map_or(level, |nearest| nearest.min(level)));
        } else {
            below = Some(below.map_or(level, |nearest| nearest.max(level)));
        }
    }
    let headroom = above.map(|level| level - working_set);
    // Within the granularity of the level an early notification would come at once, again and again. There the
    // level itself is set, and the timer fires every millisecond. If each charge is seen the timer fires later,
    // and half of the headroom is set, down to the minimum.
    let early = headroom.map(|bytes| match bytes > 2 * growth.granularity_bytes {
        true => bytes - growth.granularity_bytes,
        false if growth.sees_every_charge => bytes / 2,
        false => bytes,
    });
    let early = early.map(|bytes| bytes.max(min_rearm));
    // If each charge is seen, gross charges bound the growth; usage would be late.
    let (usage_above, gross) = match growth.sees_every_charge {
        true => (None, early),
        false => (early.map(|bytes| usage.saturating_add(bytes)), None),
    };
    let usage_below = below.map(|level| usage.saturating_sub(working_set - level)).filter(|at| *at > 0);
    ThresholdPlan { threshold: KernelThreshold { usage_above, usage_below, gross }, headroom }
}

/// The minimum fork rate that is assumed. Process ids are used up more slowly than memory, since each takes a
/// fork.
const FORKS_PER_SECOND: u64 = 4_000;

/// How much later a sample is due far from the threshold if the fork that passes it is reported. The sample
/// then checks that forks are still reported, and finds tasks that are never reaped.
const REPORTED_FACTOR: u32 = 4;
const MIN_FAR: Duration = Duration::from_millis(200);

/// Returns when process ids must be sampled again: before the fastest forking seen, doubled, could have used up
/// `left`; later if forks are `reported`.
pub(crate) fn pids_due(left: u64, seen_per_second: u64, reported: bool) -> Duration {
    let rate = seen_per_second.saturating_mul(2).max(FORKS_PER_SECOND);
    let due = Duration::from_micros(left.saturating_mul(1_000_000) / rate).max(Duration::from_millis(5));
    if reported && due >= MIN_FAR { due.saturating_mul(REPORTED_FACTOR) } else { due }
}

/// Limits how often kernel thresholds may wake the agent: 32 times at once, and 200 times a second. Page cache
/// near a threshold crosses it again and again.
pub(crate) type CrossingRate = TokenBucket<5_000_000, 32>;

/// The minimum headroom within which a threshold is near: attaching takes a moment, in which memory fills.
const MIN_NEAR_BYTES: u64 = 64 << 20;

/// Decides when an on-demand probe is attached. Such a probe makes page faults several percent slower, and sees what
/// the permanent probe misses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttachPolicy {
    near_percent: f64,
    detach_after_ns: u64,
    unused_since_ns: Option<u64>,
}

impl AttachPolicy {
    pub(super) fn new(probes: &Probes) -> Self {
        let detach_after_ns = u64::try_from(probes.detach_after.as_nanos()).unwrap_or(0);
        Self { near_percent: probes.near_threshold_percent, detach_after_ns, unused_since_ns: None }
    }

    /// Returns whether a threshold is near. `headroom` is that to the nearest threshold that is not met, and
    /// `capacity` that of memory or of the disk, both in bytes.
    pub(super) fn is_near(&self, is_attached: bool, headroom: Option<u64>, capacity: u64) -> bool {
        let near = self.near_bytes(capacity);
        // Twice as far for detaching, so that a headroom around the limit does not attach and detach the probe
        // all the time.
        headroom.is_some_and(|bytes| bytes <= if is_attached { near.saturating_mul(2) } else { near })
    }

    /// Returns whether the probe is to be attached: while it is needed, and for some time after that.
    pub(super) fn wants(&mut self, is_attached: bool, is_needed: bool, now_ns: u64) -> bool {
        if is_needed {
            self.unused_since_ns = None;
            return true;
        }
        let since = *self.unused_since_ns.get_or_insert(now_ns);
        is_attached && now_ns.saturating_sub(since) < self.detach_after_ns
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share need not be exact, and a float out of range is the nearest integer"
    )]
    fn near_bytes(&self, capacity: u64) -> u64 {
        ((capacity as f64 * self.near_percent / 100.0) as u64).max(MIN_NEAR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;
    const WIDE: u64 = LEAST_WIDE_REARM;
    const SEEN: MemoryUsage = MemoryUsage { usage: 500 * MIB, working_set: 300 * MIB };
    const COARSE: GrowthSource = GrowthSource { sees_every_charge: false, granularity_bytes: 2 * MIB };

    #[test]
    fn a_threshold_is_set_below_the_nearest_level_by_the_granularity() {
        let plan = plan(COARSE, WIDE, SEEN, [900 * MIB, 400 * MIB]);
        assert_eq!(plan.headroom, Some(100 * MIB));
        let expected = KernelThreshold { usage_above: Some(598 * MIB), ..KernelThreshold::default() };
        assert_eq!(plan.threshold, expected);
    }

    #[test]
    fn a_backend_that_sees_every_charge_counts_gross_charges() {
        let growth = GrowthSource { sees_every_charge: true, granularity_bytes: MIB };
        let set = |min_rearm, level| plan(growth, min_rearm, SEEN, [level]).threshold;
        let gross = |bytes| KernelThreshold { gross: Some(bytes), ..KernelThreshold::default() };
        assert_eq!(set(WIDE, 400 * MIB), gross(99 * MIB));
        assert_eq!(set(WIDE, 300 * MIB), gross(MIB), "it never spins");
        assert_eq!(set(MIN_REARM, 300 * MIB), gross(256 << 10), "now and then it may");
    }

    #[test]
    fn the_granularity_includes_the_charge_caches_of_all_cpus() {
        let growth = GrowthSource { sees_every_charge: true, granularity_bytes: 256 << 10 };
        assert_eq!([growth.of_machine(1, 1), growth.of_machine(0, 1)], [growth, growth]);
        let batch = 64 * rustix::param::page_size() as u64;
        assert_eq!(growth.of_machine(65, 1).granularity_bytes, (256 << 10) + 64 * batch);
        assert_eq!(
            growth.of_machine(65, 7).granularity_bytes,
            (256 << 10) + (65 * 7 - 1) * batch,
            "from 6.16 on"
        );
        let many = GrowthSource { granularity_bytes: 16 * MIB, ..growth };
        let at = |far: u64| plan(many, WIDE, SEEN, [(300 + far) * MIB]).threshold.gross;
        assert_eq!([at(100), at(32), at(16), at(1)], [84, 16, 8, 1].map(|far| Some(far * MIB)));
    }

    #[test]
    fn thresholds_use_the_headroom_of_the_configured_measure() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 450 * MIB };
        let seen = seen.by_measure(1000 * MIB, Some(900 * MIB as i64));
        assert_eq!(seen, MemoryUsage { usage: 500 * MIB, working_set: 100 * MIB });
        assert_eq!(plan(COARSE, WIDE, seen, [300 * MIB]).headroom, Some(200 * MIB));
        let level = |measure, line| conservative_level(measure, seen, line);
        assert_eq!(level(MemoryMeasure::MemAvailable, 300 * MIB), 200 * MIB, "half-way");
        assert_eq!(level(MemoryMeasure::MemAvailable, 50 * MIB), 50 * MIB, "passed");
        assert_eq!(level(MemoryMeasure::WorkingSetMinusActiveFile, 300 * MIB), 300 * MIB);
        assert_eq!(seen.by_measure(1000 * MIB, None), seen, "not known: as before");
    }

    #[test]
    fn near_a_level_the_headroom_set_shrinks_to_the_minimum() {
        let seen = |working_set| MemoryUsage { usage: 500 * MIB, working_set };
        let near = plan(COARSE, WIDE, seen(397 * MIB), [400 * MIB]);
        assert_eq!(near.threshold.usage_above, Some(503 * MIB));
        let last = plan(COARSE, WIDE, seen(400 * MIB - 4096), [400 * MIB]);
        assert_eq!((last.threshold.usage_above, last.headroom), (Some(501 * MIB), Some(4096)));
    }

    #[test]
    fn under_pressure_the_levels_below_and_above_are_set() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 450 * MIB };
        let plan = plan(COARSE, WIDE, seen, [400 * MIB, 350 * MIB, 600 * MIB]);
        assert_eq!(plan.threshold.usage_below, Some(450 * MIB));
        assert_eq!(plan.headroom, Some(150 * MIB));
    }

    #[test]
    fn without_levels_no_threshold_is_set() {
        let seen = MemoryUsage { usage: 5, working_set: 5 };
        assert_eq!(plan(COARSE, WIDE, seen, []), ThresholdPlan::default());
    }

    #[test]
    fn at_a_level_the_minimum_rearm_distance_is_set() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 400 * MIB };
        let ThresholdPlan { threshold, headroom } = plan(COARSE, WIDE, seen, [400 * MIB]);
        assert_eq!(headroom, Some(0));
        assert_eq!((threshold.usage_above, threshold.usage_below), (Some(501 * MIB), None));
    }

    #[test]
    fn the_minimum_rearm_distance_of_a_limit_depends_on_its_size() {
        let seen = MemoryUsage { usage: 950 * MIB, working_set: 900 * MIB - 4096 };
        let growth = GrowthSource { sees_every_charge: true, granularity_bytes: MIB };
        let near = |limit| plan(growth, min_rearm_of_limit(limit), seen, [900 * MIB]).threshold.gross;
        assert_eq!((near(1024 * MIB), near(16 * MIB)), (Some(4 * MIB), Some(MIB)));
    }

    #[test]
    fn the_wide_minimum_rearm_distance_grows_with_the_cpus() {
        assert_eq!([0, 1, 2, 128].map(wide_min_rearm), [MIB, MIB, MIB, 64 * MIB]);
        assert_eq!(wide_min_rearm(usize::MAX), u64::MAX);
        let plan = plan(COARSE, wide_min_rearm(usize::MAX), SEEN, [400 * MIB]);
        assert_eq!(plan.threshold.usage_above, Some(u64::MAX));
    }

    #[test]
    fn pids_are_sampled_before_they_can_be_used_up() {
        for reported in [false, true] {
            assert_eq!(pids_due(400, 0, reported), Duration::from_millis(100));
            assert_eq!(pids_due(400, 20_000, reported), Duration::from_millis(10));
            assert_eq!(pids_due(0, 0, reported), Duration::from_millis(5));
            assert!(pids_due(u64::MAX, u64::MAX, reported) >= Duration::from_millis(5));
        }
        assert_eq!(pids_due(4_000, 0, false), Duration::from_secs(1));
        assert_eq!(pids_due(4_000, 0, true), Duration::from_secs(4));
    }

    #[test]
    fn a_probe_is_attached_at_once_and_detached_after_a_delay() {
        let probes = Probes { near_threshold_percent: 3.125, ..Probes::default() };
        let mut policy = AttachPolicy::new(&probes);
        let mut is_attached = false;
        for (seconds, headroom, expected) in [
            (0, Some(2 * GIB + 1), false),
            (1, Some(2 * GIB), true),
            (2, Some(4 * GIB), true),
            (3, Some(5 * GIB), true),
            (12, None, true),
            (13, None, false),
            (14, Some(3 * GIB), false),
            (15, Some(0), true),
        ] {
            let is_near = policy.is_near(is_attached, headroom, 64 * GIB);
            is_attached = policy.wants(is_attached, is_near, seconds * SECOND);
            assert_eq!(is_attached, expected, "after {seconds} s");
        }
    }

    #[test]
    fn a_small_node_has_time_to_attach() {
        let probes = Probes { near_threshold_percent: 0.0, ..Probes::default() };
        let policy = AttachPolicy::new(&probes);
        assert!(policy.is_near(false, Some(64 << 20), 1 << 20));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_detach_a_probe() {
        let mut policy = AttachPolicy::new(&Probes::default());
        assert!(policy.wants(true, false, 10 * SECOND));
        assert!(policy.wants(true, false, SECOND));
    }
}
