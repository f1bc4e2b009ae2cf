//! Cgroups with a memory limit: the kernel thresholds on them, and which of them are near their limit.
//!
//! No eviction depends on it. The kernel kills at a limit; the agent reports beforehand that the limit is near.

use std::collections::BTreeMap;

use eviction_bpf::{KernelThreshold, ThresholdCrossed};
use eviction_core::oom::LimitScope;
use eviction_core::time::TokenBucket;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::sampler::{GroupSample, Sampler};

use eviction_node::sampler::MemoryUsage;

use super::memory_notifier::{GrowthSource, min_rearm_of_limit, plan_thresholds};
use crate::telemetry::metrics::Metrics;

/// The scopes whose limits are watched.
pub(crate) const OWNERS: [LimitScope; 4] =
    [LimitScope::Kubepods, LimitScope::Qos, LimitScope::Pod, LimitScope::Container];

/// The states of limits in metrics.
const STATES: [&str; 3] = ["watched", "armed", "near"];

/// The watched cgroups.
#[derive(Debug, Default)]
pub(crate) struct LimitMonitor {
    /// How near a limit is reported, in percent of it.
    near_percent: u8,
    /// By the ids of the cgroups.
    watches: BTreeMap<u64, LimitWatch>,
    /// The rate limit of samples: each takes a wakeup and a read of one cgroup, and many cgroups may reach
    /// their limits together. The others are sampled later. 64 at once, and 20 a second.
    sample_rate: TokenBucket<50_000_000, 64>,
}

impl LimitMonitor {
    /// Creates a monitor without cgroups.
    pub(crate) fn new(near_percent: u8) -> Self {
        Self { near_percent, ..Self::default() }
    }

    /// Updates the cgroups from a tree that was just read. Cgroups that were removed, or have no limit any
    /// more, are passed to `disarm`. New ones are to be sampled. The limit of the node's own cgroup is not
    /// watched, nor one above the node's memory.
    pub(crate) fn adopt(&mut self, sampler: &Sampler, memory: u64, disarm: impl FnMut(u64)) {
        let node = sampler.tree().groups().first().map(|group| group.id);
        let limit = |id| sampler.group(id)?.hard_limit.filter(|limit| (1..=memory).contains(limit));
        let mut before = std::mem::take(&mut self.watches);
        for (id, owner) in groups(sampler.pods()).filter(|(id, _)| Some(*id) != node) {
            let Some(limit) = limit(id) else { continue };
            let known = before.remove(&id);
            self.watches
                .entry(id)
                .or_insert_with(|| known.unwrap_or_else(|| LimitWatch::new(owner, limit, self.near_percent)));
        }
        // Also those whose thresholds have fired: a fire token is kept until the threshold is set again.
        before.into_keys().for_each(disarm);
    }

    /// Forgets all thresholds: other programs are loaded, in which none is set.
    pub(crate) fn forget_thresholds(&mut self) {
        self.watches.values_mut().for_each(|watch| watch.armed = None);
    }

    /// Handles a crossing that the kernel reported. Returns false if it is not of a present threshold.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        self.find_mut(crossed.cgroup_id).is_some_and(|watch| watch.fire(crossed))
    }

    /// Returns the cgroup that is to be sampled now and has waited longest, within the rate limit, and the kernel's
    /// timestamp if the kernel reported the crossing.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        let due = self.watches.iter_mut().filter_map(|(id, watch)| Some((watch.due_ns()?, id, watch)));
        let (_, id, watch) =
            due.filter(|(due, ..)| *due <= now_ns).min_by_key(|(due, id, _)| (*due, **id))?;
        self.sample_rate.take(now_ns).then(|| (*id, watch.record_sample(now_ns)))
    }

    /// Returns in how many nanoseconds a cgroup is to be sampled.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let due = self.watches.values().filter_map(LimitWatch::due_ns).min()?;
        Some(due.max(self.sample_rate.next_ns(now_ns)).saturating_sub(now_ns))
    }

    /// Returns the cgroup with this id.
    pub(crate) fn find(&self, id: u64) -> Option<&LimitWatch> {
        self.watches.get(&id)
    }

    pub(crate) fn find_mut(&mut self, id: u64) -> Option<&mut LimitWatch> {
        self.watches.get_mut(&id)
    }

    /// Returns the ids of all cgroups.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.watches.keys().copied().collect()
    }

    /// Exports the numbers of watched limits, of cgroups with a threshold, and of limits that are near.
    pub(crate) fn export(&self, metrics: &Metrics) {
        for owner in OWNERS {
            let watches = self.watches.values().filter(|watch| watch.owner == owner);
            let armed = watches.clone().filter(|watch| watch.armed.is_some()).count();
            let near = watches.clone().filter(|watch| watch.near_since_ns.is_some()).count();
            for (state, count) in STATES.into_iter().zip([watches.count(), armed, near]) {
                let gauge = metrics.memory_limits.with([owner.name(), state]);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }
}

/// Returns all cgroups that may have a limit, each with its scope.
fn groups(pods: &Pods) -> impl Iterator<Item = (u64, LimitScope)> + '_ {
    let above = pods.pods_root.map(|id| (id, LimitScope::Kubepods)).into_iter();
    let classes = pods.qos.iter().map(|id| (*id, LimitScope::Qos));
    let of_pods = pods.pods.iter().flat_map(|pod| {
        let containers = pod.containers.iter().map(|it| (it.cgroup_id, LimitScope::Container));
        std::iter::once((pod.cgroup_id, LimitScope::Pod)).chain(containers)
    });
    above.chain(classes).chain(of_pods)
}

/// Returns usage, working set and limit of a sample; `None` if one of them is not known.
pub(crate) fn usage_and_limit(sample: &GroupSample) -> Option<(MemoryUsage, u64)> {
    Some((MemoryUsage::of(sample.usage, sample.working_set).known()?, sample.hard_limit?))
}

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
    fn due_ns(&self) -> Option<u64> {
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
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;
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

    /// Returns so many cgroups that are sampled every second, since nothing reports growth.
    fn polled(cgroups: u64) -> LimitMonitor {
        let mut limits = LimitMonitor::new(10);
        for id in 1..=cgroups {
            let mut watch = LimitWatch::new(LimitScope::Container, 1000, 10);
            watch.record_sample(0);
            watch.update_polling(None, MemoryUsage { usage: 800, working_set: 400 });
            limits.watches.insert(id, watch);
        }
        limits
    }

    #[test]
    fn a_reported_crossing_comes_first_and_each_polled_cgroup_is_sampled_in_turn() {
        let mut limits = polled(100);
        limits.find_mut(99).unwrap().armed = Some((5, KernelThreshold::default()));
        assert!(limits.fire(&ThresholdCrossed::upwards(99, 5)));
        assert_eq!(limits.next_due(SECOND).map(|(id, _)| id), Some(99));
        let mut sampled = BTreeSet::from([99]);
        for second in 1..6 {
            sampled.extend(std::iter::from_fn(|| limits.next_due(second * SECOND)).map(|(id, _)| id));
        }
        assert_eq!(sampled.len(), 100, "64 at once, and 20 a second");
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
