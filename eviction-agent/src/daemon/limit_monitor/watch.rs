//! One cgroup with a limit: how near the limit is, and which kernel threshold to set.

use eviction_bpf::{KernelThreshold, ThresholdCrossed};
use eviction_core::oom::LimitScope;

use eviction_node::sampler::MemoryUsage;

use super::super::memory_notifier::{GrowthSource, min_rearm_of_limit, plan_thresholds};

/// How often a cgroup is sampled if its usage does not show that its limit comes near.
const POLL_INTERVAL_NS: u64 = 1_000_000_000;

/// The minimum time between two reports of a cgroup that comes near its limit again and again. All transitions
/// are counted.
const MIN_PUBLISH_INTERVAL_NS: u64 = 10_000_000_000;

/// Returns the working sets at which a limit becomes near, and below which it is not near any more.
fn near_and_away(limit: u64, near_percent: u8) -> (u64, u64) {
    let left = (u128::from(limit) * u128::from(near_percent) / 100) as u64;
    (limit - left, limit - left - left / 2)
}

/// A change of a cgroup: its limit is near now, or not near any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitChange {
    /// How long the limit was near, if it is not any more.
    pub(crate) near_ns: Option<u64>,
    /// Whether to report it.
    pub(crate) publish: bool,
}

/// A cgroup with a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitWatch {
    /// The scope of the limit.
    pub(crate) owner: LimitScope,
    /// The limit, bytes.
    pub(crate) limit: u64,
    /// How near it is reported, in percent of the limit.
    near_percent: u8,
    /// Since when the limit is near.
    pub(crate) near_since_ns: Option<u64>,
    /// The kernel threshold and its generation; `None` if it fired, could not be set, or those of evictions are
    /// set in its place.
    pub(crate) armed: Option<(u64, KernelThreshold)>,
    /// Whether the cgroup is to be sampled: its threshold fired, or it is new.
    fired: bool,
    /// Whether usage does not show that the limit comes near, since usage is near it all the time.
    needs_polling: bool,
    sampled_ns: u64,
    /// The kernel's timestamp of the crossing.
    crossed_ns: Option<u64>,
    /// Since when the limit was near in the last report.
    published_ns: Option<u64>,
}

impl LimitWatch {
    /// Creates a watch of a cgroup of which only the limit is known.
    pub(crate) fn new(owner: LimitScope, limit: u64, near_percent: u8) -> Self {
        Self {
            owner,
            limit,
            near_percent,
            near_since_ns: None,
            armed: None,
            fired: true,
            needs_polling: false,
            sampled_ns: 0,
            crossed_ns: None,
            published_ns: None,
        }
    }

    /// Evaluates a sample. A threshold that was set for another limit is discarded.
    pub(crate) fn evaluate(&mut self, limit: u64, working_set: u64, at_ns: u64) -> Option<LimitChange> {
        if self.limit != limit {
            self.limit = limit;
            self.armed = None;
        }
        let (near, away) = near_and_away(limit, self.near_percent);
        match self.near_since_ns {
            None if working_set >= near => {
                self.near_since_ns = Some(at_ns);
                self.armed = None;
                let again = |published: u64| at_ns.saturating_sub(published) >= MIN_PUBLISH_INTERVAL_NS;
                let publish = self.published_ns.is_none_or(again);
                if publish {
                    self.published_ns = Some(at_ns);
                }
                Some(LimitChange { near_ns: None, publish })
            }
            Some(since_ns) if working_set < away => {
                self.near_since_ns = None;
                self.armed = None;
                let publish = self.published_ns == Some(since_ns);
                Some(LimitChange { near_ns: Some(at_ns.saturating_sub(since_ns)), publish })
            }
            _ => None,
        }
    }

    /// Notes that it was not reported that the limit is near: then the end of that is not reported either.
    pub(crate) fn mark_unpublished(&mut self) {
        self.published_ns = None;
    }

    /// Returns the working set at which the state changes.
    pub(crate) fn level(&self) -> u64 {
        let (near, away) = near_and_away(self.limit, self.near_percent);
        if self.near_since_ns.is_some() { away } else { near }
    }

    /// Returns the kernel threshold to set, unless the present one is sufficient.
    pub(crate) fn threshold_to_set(
        &self,
        growth: GrowthSource,
        seen: MemoryUsage,
    ) -> Option<KernelThreshold> {
        let plan = plan_thresholds(growth, min_rearm_of_limit(self.limit), seen, [self.level()]);
        let wanted = plan.threshold;
        match self.armed {
            Some((_, armed)) if is_sufficient(&armed, &wanted, self.limit) => None,
            _ => Some(wanted),
        }
    }

    /// Handles a crossing that the kernel reported. Returns false if it is of an earlier threshold, or of
    /// another cgroup that had this id.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        let is_own = self.armed.is_some_and(|(own, _)| own == crossed.generation);
        if is_own {
            self.armed = None;
            self.fired = true;
            self.crossed_ns = Some(crossed.ktime_ns);
        }
        is_own
    }

    /// Returns when the cgroup is to be sampled; `None` if the kernel will report a change.
    pub(super) fn due_ns(&self) -> Option<u64> {
        match (self.fired, self.needs_polling) {
            (true, _) => Some(0),
            (false, true) => Some(self.sampled_ns.saturating_add(POLL_INTERVAL_NS)),
            (false, false) => None,
        }
    }

    /// Notes that the cgroup is sampled now. Returns the kernel's timestamp of the crossing.
    pub(crate) fn record_sample(&mut self, now_ns: u64) -> Option<u64> {
        self.fired = false;
        self.sampled_ns = now_ns;
        self.crossed_ns.take()
    }

    /// Notes whether a probe will report that the limit is near. A probe that sees usage does not if page cache
    /// fills the cgroup and makes room for the rest.
    pub(crate) fn update_polling(&mut self, growth: Option<GrowthSource>, seen: MemoryUsage) {
        let reported_up_to = match growth {
            Some(growth) if growth.sees_every_charge => u64::MAX,
            Some(_) => near_and_away(self.limit, self.near_percent).1,
            None => self.limit / 2,
        };
        self.needs_polling = self.near_since_ns.is_none() && seen.usage >= reported_up_to;
    }
}

/// Returns whether the present threshold does what the wanted one would. A sum of charges never fires too late,
/// since the headroom cannot shrink by more than is charged. A usage fires too late if page cache was reclaimed
/// meanwhile.
fn is_sufficient(armed: &KernelThreshold, wanted: &KernelThreshold, limit: u64) -> bool {
    let slack = limit / 128;
    let above = match (armed.usage_above, wanted.usage_above) {
        (Some(armed), Some(wanted)) => {
            armed <= wanted.saturating_add(slack) && wanted <= armed.saturating_add(4 * slack)
        }
        (None, None) => true,
        _ => false,
    };
    let below = match (armed.usage_below, wanted.usage_below) {
        (Some(armed), Some(wanted)) => armed.abs_diff(wanted) <= slack,
        (None, None) => true,
        _ => false,
    };
    above && below && armed.gross.is_some() == wanted.gross.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;
    const EVERY_CHARGE: GrowthSource = GrowthSource { sees_every_charge: true, granularity_bytes: MIB };
    const USAGE_ONLY: GrowthSource = GrowthSource { sees_every_charge: false, granularity_bytes: 2 * MIB };

    const NEAR: LimitChange = LimitChange { near_ns: None, publish: true };

    fn watch() -> LimitWatch {
        LimitWatch::new(LimitScope::Container, 1000 * MIB, 10)
    }

    fn crossed(generation: u64) -> ThresholdCrossed {
        ThresholdCrossed::upwards(7, generation)
    }

    fn seen(usage: u64, working_set: u64) -> MemoryUsage {
        MemoryUsage { usage: usage * MIB, working_set: working_set * MIB }
    }

    #[test]
    fn a_limit_is_near_from_90_percent_and_away_below_85_percent() {
        let mut watch = watch();
        let mut evaluate =
            |at: u64, working_set: u64| watch.evaluate(1000 * MIB, working_set * MIB, at * SECOND);
        assert_eq!(evaluate(1, 899), None);
        assert_eq!(evaluate(2, 900), Some(NEAR));
        assert_eq!(evaluate(3, 1000), None);
        assert_eq!(evaluate(4, 850), None, "what swings around the line is one nearness");
        assert_eq!(evaluate(5, 849), Some(LimitChange { near_ns: Some(3 * SECOND), publish: true }));
        assert_eq!(evaluate(6, 849), None);
    }

    #[test]
    fn frequent_changes_are_published_every_ten_seconds() {
        let mut watch = watch();
        let mut published = 0;
        for at in 0..40 {
            let working_set = if at % 2 == 0 { 950 } else { 500 };
            match watch.evaluate(1000 * MIB, working_set * MIB, at * SECOND) {
                Some(change) => published += u32::from(change.publish),
                None => panic!("each is counted"),
            }
        }
        assert_eq!(published, 8, "both ways, each ten seconds");
    }

    #[test]
    fn a_changed_limit_is_evaluated_at_once_and_its_threshold_set_again() {
        let mut watch = watch();
        let far = seen(500, 500);
        watch.evaluate(1000 * MIB, far.working_set, SECOND);
        watch.armed = Some((1, watch.threshold_to_set(EVERY_CHARGE, far).unwrap()));
        assert_eq!(watch.threshold_to_set(EVERY_CHARGE, far), None);
        assert_eq!(watch.evaluate(2000 * MIB, far.working_set, SECOND), None);
        let armed = watch.threshold_to_set(EVERY_CHARGE, far).unwrap();
        assert_eq!(armed.gross, Some(1299 * MIB));
        watch.armed = Some((2, armed));
        assert_eq!(watch.evaluate(520 * MIB, far.working_set, SECOND), Some(NEAR));
        let armed = watch.threshold_to_set(EVERY_CHARGE, far).unwrap();
        assert_eq!((armed.gross, armed.usage_below), (None, Some(442 * MIB)));
        assert!(!watch.fire(&crossed(2)), "that arming is of no use any more");
        assert!(matches!(
            watch.evaluate(1000 * MIB, far.working_set, SECOND),
            Some(LimitChange { near_ns: Some(_), .. })
        ));
    }

    #[test]
    fn only_the_present_threshold_fires_and_only_once() {
        let mut watch = watch();
        watch.armed = Some((5, watch.threshold_to_set(EVERY_CHARGE, seen(100, 100)).unwrap()));
        assert!(!watch.fire(&crossed(4)), "an earlier arming, perhaps of another group with this id");
        assert!(watch.armed.is_some());
        watch.record_sample(SECOND);
        assert_eq!(watch.due_ns(), None);
        assert!(watch.fire(&crossed(5)) && watch.fired && watch.armed.is_none());
        assert!(!watch.fire(&crossed(5)));
        assert_eq!(watch.due_ns(), Some(0));
    }

    #[test]
    fn gross_thresholds_are_kept_and_outdated_usage_thresholds_replaced() {
        let mut watch = watch();
        watch.armed = Some((1, watch.threshold_to_set(EVERY_CHARGE, seen(500, 300)).unwrap()));
        assert_eq!(watch.threshold_to_set(EVERY_CHARGE, seen(900, 600)), None);
        assert!(watch.threshold_to_set(USAGE_ONLY, seen(900, 600)).is_some(), "another growth");

        let armed = watch.threshold_to_set(USAGE_ONLY, seen(500, 300)).unwrap();
        assert_eq!(armed.usage_above, Some(1098 * MIB));
        watch.armed = Some((2, armed));
        assert_eq!(watch.threshold_to_set(USAGE_ONLY, seen(600, 400)), None);
        assert_eq!(watch.threshold_to_set(USAGE_ONLY, seen(600, 390)), None, "a little early");
        assert!(watch.threshold_to_set(USAGE_ONLY, seen(600, 420)).is_some(), "it would be late");
        assert!(watch.threshold_to_set(USAGE_ONLY, seen(700, 400)).is_some(), "it would be far too early");
    }

    #[test]
    fn a_cgroup_whose_near_limit_no_event_reports_is_polled() {
        let mut watch = watch();
        watch.record_sample(SECOND);
        let mut needs_polling = |growth, seen| {
            watch.update_polling(growth, seen);
            watch.due_ns() == Some(2 * SECOND)
        };
        assert!(needs_polling(Some(USAGE_ONLY), seen(990, 400)));
        assert!(!needs_polling(Some(USAGE_ONLY), seen(800, 400)));
        assert!(!needs_polling(Some(EVERY_CHARGE), seen(990, 400)));
        assert!(needs_polling(None, seen(800, 400)), "nothing tells of anything");
        watch.evaluate(1000 * MIB, 950 * MIB, SECOND);
        watch.update_polling(Some(USAGE_ONLY), seen(990, 950));
        assert_eq!(watch.due_ns(), None, "it is known already");
    }

    #[test]
    fn a_limit_of_zero_is_near() {
        let mut watch = LimitWatch::new(LimitScope::Pod, 0, 10);
        assert_eq!(watch.evaluate(0, 0, SECOND), Some(NEAR));
        assert!(watch.threshold_to_set(USAGE_ONLY, seen(0, 0)).is_some());
    }
}
