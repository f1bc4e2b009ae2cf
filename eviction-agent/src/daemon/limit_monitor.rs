//! Cgroups with a memory limit: the kernel thresholds on them, and which of them are near their limit.
//!
//! No eviction depends on it. The kernel kills at a limit; the agent reports beforehand that the limit is near.

mod watch;

use std::collections::BTreeMap;

use eviction_bpf::ThresholdCrossed;
use eviction_core::oom::LimitScope;
use eviction_core::time::TokenBucket;
use eviction_node::cgroup::files::Limit;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::sampler::{GroupSample, Sampler};

use eviction_node::sampler::MemoryUsage;

use crate::telemetry::metrics::Metrics;
pub(crate) use watch::{LimitChange, LimitWatch};

/// The scopes whose limits are watched.
pub(crate) const OWNERS: [LimitScope; 4] =
    [LimitScope::Kubepods, LimitScope::Qos, LimitScope::Pod, LimitScope::Container];

/// The states of limits in metrics.
const STATES: [&str; 3] = ["watched", "armed", "near"];

/// The watched cgroups.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// How near a limit is reported, in percent of it.
    near_percent: u8,
    /// By the ids of the cgroups.
    watches: BTreeMap<u64, LimitWatch>,
    /// The rate limit of samples: each takes a wakeup and a read of one cgroup, and many cgroups may reach
    /// their limits together. The others are sampled later. 64 at once, and 20 a second.
    sample_rate: TokenBucket<50_000_000, 64>,
}

impl Limits {
    /// Creates a monitor without cgroups.
    pub(crate) fn new(near_percent: u8) -> Self {
        Self { near_percent, ..Self::default() }
    }

    /// Updates the cgroups from a tree that was just read. Cgroups that were removed, or have no limit any
    /// more, are passed to `disarm`. New ones are to be sampled. The limit of the node's own cgroup is not
    /// watched, nor one above the node's memory.
    pub(crate) fn adopt(&mut self, sampler: &Sampler, memory: u64, disarm: impl FnMut(u64)) {
        let node = sampler.tree().groups().first().map(|group| group.id);
        let limit = |id| match sampler.group(id)?.hard_limit {
            Limit::At(limit) if limit > 0 && limit <= memory => Some(limit),
            Limit::At(_) | Limit::Unlimited => None,
        };
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
    let Limit::At(limit) = sample.hard_limit else { return None };
    Some((MemoryUsage::of(sample.usage, sample.working_set).known()?, limit))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use eviction_bpf::KernelThreshold;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns so many cgroups that are sampled every second, since nothing reports growth.
    fn polled(cgroups: u64) -> Limits {
        let mut limits = Limits::new(10);
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
}
