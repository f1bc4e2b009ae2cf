//! What to arm in the kernel after a look, and when to look again whatever the kernel says.
//!
//! A line is a working set that a threshold does not allow. The nearest line above the present
//! working set is armed at its distance, less the grain of the rung; the nearest one below is
//! armed to see pressure end. Where a rung has blind spots the next look is due before the
//! fastest possible growth could have covered the distance.

use std::time::Duration;

use eviction_bpf::batch_bytes;
use eviction_core::policy::preferences::MemoryMeasure;
use eviction_node::sampler::MemoryUsage;

use super::token_bucket::WakeBucket;

/// Lower than these bytes a distance is not worth arming: page cache that comes and goes close to a line is charged all
/// the time, and would wake the agent without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MinRearm(u64);

impl MinRearm {
    /// For lines at which is decided: a batch of pages that a CPU charges.
    pub(crate) const CLOSE: Self = Self(256 << 10);

    /// Where that has woken the agent too often lately, on a machine of so many CPUs: each of them can charge.
    pub(crate) fn wide(cpus: usize) -> Self {
        let of_all = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(512 << 10);
        Self(of_all.max(Self::LEAST_WIDE))
    }

    const LEAST_WIDE: u64 = 1 << 20;

    /// For lines of which is only told, near a limit.
    pub(crate) fn of_limit(limit: u64) -> Self {
        Self((limit / 256).max(Self::LEAST_WIDE))
    }
}

/// How often it may be armed close to a line at which is decided. One look takes 0.15 ms, so this is a thirtieth of a CPU.
pub(crate) type RearmBucket = WakeBucket<200, 32>;

/// How a rung sees growth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GrowthSource {
    /// Gross charges can be armed, and bound the growth of the working set.
    pub(crate) sees_every_charge: bool,
    /// How much can be charged before the rung notices.
    pub(crate) grain_bytes: u64,
}

impl GrowthSource {
    /// The same for the machine's own figures: they have what processes touched, and what each of so many CPUs
    /// holds back (`MEMCG_CHARGE_BATCH` pages of each of so many groups) was told when it was charged. One of these
    /// batches is in the grain already.
    pub(crate) fn of_machine(self, cpus: usize, stocks: u32) -> Self {
        let all = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(stocks.into());
        let stock = all.saturating_sub(1).saturating_mul(batch_bytes());
        Self { grain_bytes: self.grain_bytes.saturating_add(stock), ..self }
    }
}

/// A line for what can be charged without getting there: the kernel's own estimate falls as well
/// by what nobody is charged for, so it is looked at again half-way.
pub(crate) fn sure_line(measure: MemoryMeasure, seen: MemoryUsage, line: u64) -> u64 {
    match measure {
        MemoryMeasure::WorkingSet | MemoryMeasure::WorkingSetMinusActiveFile => line,
        MemoryMeasure::MemAvailable => line - line.saturating_sub(seen.working_set) / 2,
    }
}

/// What to arm at a group; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThresholdPlan {
    /// Usage at which the kernel side wakes the agent.
    pub(crate) usage_above: Option<u64>,
    /// Gross charges at which it does.
    pub(crate) gross: Option<u64>,
    /// Usage below which it does.
    pub(crate) usage_below: Option<u64>,
    /// Usage at which the kernel's own v1 threshold fires: the line itself.
    pub(crate) v1_threshold: Option<u64>,
    /// How far the nearest line above is.
    pub(crate) distance: Option<u64>,
}

/// What to arm, given the working sets at which thresholds are met (any order).
pub(crate) fn plan(
    rung: GrowthSource,
    floor: MinRearm,
    seen: MemoryUsage,
    lines: impl IntoIterator<Item = u64>,
) -> ThresholdPlan {
    let (mut above, mut below) = (None::<u64>, None::<u64>);
    for line in lines {
        // A threshold is met by less than its value: at the line itself it is not crossed yet,
        // and the next page crosses it.
        if line >= seen.working_set {
            above = Some(above.map_or(line, |nearest| nearest.min(line)));
        } else {
            below = Some(below.map_or(line, |nearest| nearest.max(line)));
        }
    }
    let distance = above.map(|line| line - seen.working_set);
    // Within a grain of the line an early wake-up would come at once, and again at once: there
    // the line itself is armed and the timer is at its floor. Where each charge is seen the timer has none so low, and
    // half the way is armed, down to the floor.
    let early = distance.map(|far| match far > 2 * rung.grain_bytes {
        true => far - rung.grain_bytes,
        false if rung.sees_every_charge => far / 2,
        false => far,
    });
    let early = early.map(|far| far.max(floor.0));
    ThresholdPlan {
        usage_above: early.map(|far| seen.usage.saturating_add(far)),
        gross: early.filter(|_| rung.sees_every_charge),
        usage_below: below
            .map(|line| seen.usage.saturating_sub(seen.working_set - line))
            .filter(|at| *at > 0),
        v1_threshold: distance.map(|far| seen.usage.saturating_add(far)),
        distance,
    }
}

/// Whether a v1 threshold at `armed` still serves for one at `wanted`: registering one costs
/// more than a look, so it is left while it is off by little of the distance.
pub(crate) fn still_serves(armed: u64, wanted: u64, distance: u64) -> bool {
    armed.abs_diff(wanted) <= (distance / 16).max(MinRearm::CLOSE.0)
}

/// Process ids do not run away as memory does: each costs a fork.
const FORKS_PER_SECOND: u64 = 4_000;

/// How much later it is, with the line at a distance, where the fork that passes it is told: then it is a
/// check that it still is, and finds tasks that nobody reaps.
const TOLD: u32 = 4;
const AT_A_DISTANCE: Duration = Duration::from_millis(200);

/// When process ids must be looked at again: before the fastest forking seen, doubled, could
/// have used up `left`; later where forks are `told`.
pub(crate) fn pids_due(left: u64, seen_per_second: u64, told: bool) -> Duration {
    let rate = seen_per_second.saturating_mul(2).max(FORKS_PER_SECOND);
    let due = Duration::from_micros(left.saturating_mul(1_000_000) / rate).max(Duration::from_millis(5));
    if told && due >= AT_A_DISTANCE { due.saturating_mul(TOLD) } else { due }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WIDE: MinRearm = MinRearm(MinRearm::LEAST_WIDE);
    const RUNG_3: GrowthSource = GrowthSource { sees_every_charge: false, grain_bytes: 2 * MIB };

    #[test]
    fn the_nearest_line_above_is_armed_early_by_the_grain() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 300 * MIB };
        let arming = plan(RUNG_3, WIDE, seen, [900 * MIB, 400 * MIB]);
        assert_eq!(arming.distance, Some(100 * MIB));
        assert_eq!(arming.usage_above, Some(598 * MIB));
        assert_eq!(arming.v1_threshold, Some(600 * MIB));
        assert_eq!((arming.gross, arming.usage_below), (None, None));
    }

    #[test]
    fn a_rung_that_sees_every_charge_arms_gross_charges() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 300 * MIB };
        let rung = GrowthSource { sees_every_charge: true, grain_bytes: MIB };
        assert_eq!(plan(rung, WIDE, seen, [400 * MIB]).gross, Some(99 * MIB));
        assert_eq!(plan(rung, WIDE, seen, [300 * MIB]).gross, Some(MIB), "it never spins");
        assert_eq!(
            plan(rung, MinRearm::CLOSE, seen, [300 * MIB]).gross,
            Some(256 << 10),
            "now and then it may"
        );
    }

    #[test]
    fn what_cpus_hold_back_is_allowed_for_on_a_machine_of_many() {
        let rung = GrowthSource { sees_every_charge: true, grain_bytes: 256 << 10 };
        assert_eq!([rung.of_machine(1, 1), rung.of_machine(0, 1)], [rung, rung]);
        let batch = 64 * rustix::param::page_size() as u64;
        assert_eq!(rung.of_machine(65, 1).grain_bytes, (256 << 10) + 64 * batch);
        assert_eq!(rung.of_machine(65, 7).grain_bytes, (256 << 10) + (65 * 7 - 1) * batch, "from 6.16 on");
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 300 * MIB };
        let many = GrowthSource { grain_bytes: 16 * MIB, ..rung };
        let at = |far: u64| plan(many, WIDE, seen, [(300 + far) * MIB]).gross;
        assert_eq!([at(100), at(32), at(16), at(1)], [84, 16, 8, 1].map(|far| Some(far * MIB)));
    }

    #[test]
    fn another_measure_is_armed_at_its_own_distance() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 450 * MIB };
        let seen = seen.by_measure(1000 * MIB, Some(900 * MIB as i64));
        assert_eq!(seen, MemoryUsage { usage: 500 * MIB, working_set: 100 * MIB });
        assert_eq!(plan(RUNG_3, WIDE, seen, [300 * MIB]).v1_threshold, Some(700 * MIB));
        let sure = |measure, line| sure_line(measure, seen, line);
        assert_eq!(sure(MemoryMeasure::MemAvailable, 300 * MIB), 200 * MIB, "half-way");
        assert_eq!(sure(MemoryMeasure::MemAvailable, 50 * MIB), 50 * MIB, "passed");
        assert_eq!(sure(MemoryMeasure::WorkingSetMinusActiveFile, 300 * MIB), 300 * MIB);
        assert_eq!(seen.by_measure(1000 * MIB, None), seen, "not known: as before");
    }

    #[test]
    fn near_the_line_it_converges_and_stops_at_the_floor() {
        let seen = |working_set| MemoryUsage { usage: 500 * MIB, working_set };
        assert_eq!(plan(RUNG_3, WIDE, seen(397 * MIB), [400 * MIB]).usage_above, Some(503 * MIB));
        let last = plan(RUNG_3, WIDE, seen(400 * MIB - 4096), [400 * MIB]);
        assert_eq!(last.usage_above, Some(500 * MIB + MIB));
        assert_eq!(last.v1_threshold, Some(500 * MIB + 4096));
    }

    #[test]
    fn under_pressure_the_way_back_and_the_next_line_are_armed() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 450 * MIB };
        let arming = plan(RUNG_3, WIDE, seen, [400 * MIB, 350 * MIB, 600 * MIB]);
        assert_eq!(arming.usage_below, Some(450 * MIB));
        assert_eq!(arming.distance, Some(150 * MIB));
    }

    #[test]
    fn without_lines_nothing_is_armed() {
        let seen = MemoryUsage { usage: 5, working_set: 5 };
        assert_eq!(plan(RUNG_3, WIDE, seen, []), ThresholdPlan::default());
    }

    #[test]
    fn the_line_itself_is_armed_and_looked_at_again_at_once() {
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 400 * MIB };
        let arming = plan(RUNG_3, WIDE, seen, [400 * MIB]);
        assert_eq!(arming.distance, Some(0));
        assert_eq!(arming.usage_above, Some(500 * MIB + MIB));
        assert_eq!(arming.usage_below, None);
    }

    #[test]
    fn of_what_is_only_told_less_is_enough() {
        let seen = MemoryUsage { usage: 950 * MIB, working_set: 900 * MIB - 4096 };
        let rung = GrowthSource { sees_every_charge: true, grain_bytes: MIB };
        let near = |limit| plan(rung, MinRearm::of_limit(limit), seen, [900 * MIB]).gross;
        assert_eq!((near(1024 * MIB), near(16 * MIB)), (Some(4 * MIB), Some(MIB)));
    }

    #[test]
    fn the_more_cpus_can_charge_the_wider_is_the_floor_that_spares_the_agent() {
        assert_eq!([0, 1, 2, 128].map(|cpus| MinRearm::wide(cpus).0), [MIB, MIB, MIB, 64 * MIB]);
        assert_eq!(MinRearm::wide(usize::MAX), MinRearm(u64::MAX));
        let seen = MemoryUsage { usage: 500 * MIB, working_set: 300 * MIB };
        let arming = plan(RUNG_3, MinRearm::wide(usize::MAX), seen, [400 * MIB]);
        assert_eq!(arming.usage_above, Some(u64::MAX));
    }

    #[test]
    fn pids_are_looked_at_before_they_can_be_used_up() {
        for told in [false, true] {
            assert_eq!(pids_due(400, 0, told), Duration::from_millis(100));
            assert_eq!(pids_due(400, 20_000, told), Duration::from_millis(10));
            assert_eq!(pids_due(0, 0, told), Duration::from_millis(5));
            assert!(pids_due(u64::MAX, u64::MAX, told) >= Duration::from_millis(5));
        }
        assert_eq!(pids_due(4_000, 0, false), Duration::from_secs(1));
        assert_eq!(pids_due(4_000, 0, true), Duration::from_secs(4));
    }
}
