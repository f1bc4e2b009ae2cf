//! Cgroups with a memory limit: the kernel thresholds on them, and which of them are near their limit.
//!
//! No eviction depends on it. The kernel kills at a limit; the agent reports beforehand that the limit is near.

mod watch;

use eviction_bpf::ThresholdCrossed;
use eviction_core::oom::LimitScope;
use eviction_node::cgroup::files::Limit;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::sample::GroupSample;
use eviction_node::cgroup::sampler::Sampler;

use eviction_node::sampler::MemoryUsage;

use super::memory_notifier::TokenBucket;
pub(crate) use watch::{LimitChange, LimitWatch};

/// The scopes whose limits are watched.
pub(crate) const OWNERS: [LimitScope; 4] =
    [LimitScope::Kubepods, LimitScope::Qos, LimitScope::Pod, LimitScope::Container];

/// For each of [`OWNERS`]: the numbers of watched limits, of cgroups with a threshold, and of limits that are
/// near.
pub(crate) type LimitCounts = [[i64; 3]; OWNERS.len()];

/// The watched cgroups, sorted by their ids.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// How near a limit is reported, in percent of it.
    near_percent: u8,
    watches: Vec<LimitWatch>,
    buffer: Vec<LimitWatch>,
    /// The rate limit of samples: each takes a wakeup and a read of one cgroup, and many cgroups may reach
    /// their limits together. The others are sampled later.
    sample_rate: TokenBucket<20, 64>,
    /// Whether any cgroup may have to be sampled, now or later.
    may_be_due: bool,
    /// The number of the programs in which thresholds are set.
    programs: u32,
}

impl Limits {
    /// Creates a monitor without cgroups.
    pub(crate) fn new(near_percent: u8) -> Self {
        Self { near_percent, ..Self::default() }
    }

    /// Updates the cgroups from a tree that was just read. Cgroups that were removed, or have no limit any
    /// more, are passed to `disarm`. New ones are to be sampled. The limit of the node's own cgroup is not
    /// watched, nor one above the node's memory.
    pub(crate) fn adopt(&mut self, sampler: &Sampler, memory: u64, mut disarm: impl FnMut(u64)) {
        let node = sampler.tree().groups().first().map(|group| group.id);
        let limit = |id| match sampler.group(id)?.hard_limit {
            Limit::At(limit) if limit > 0 && limit <= memory => Some(limit),
            Limit::At(_) | Limit::Unlimited => None,
        };
        let mut before = std::mem::replace(&mut self.watches, std::mem::take(&mut self.buffer));
        for (id, owner) in groups(sampler.pods()).filter(|(id, _)| Some(*id) != node) {
            let Some(limit) = limit(id) else { continue };
            let known = before.binary_search_by_key(&id, |watch| watch.id).ok();
            self.watches.push(
                known.map_or_else(|| LimitWatch::new(id, owner, limit, self.near_percent), |at| before[at]),
            );
        }
        self.watches.sort_unstable_by_key(|watch| watch.id);
        // While the kubelet's cgroup driver is being changed there are two of each, but never with one id.
        self.watches.dedup_by_key(|watch| watch.id);
        for watch in &before {
            // Also one whose threshold has fired: its fire token is kept until the threshold is set again.
            if self.find(watch.id).is_none() {
                disarm(watch.id);
            }
        }
        before.clear();
        self.buffer = before;
        self.update_due();
    }

    /// Forgets all thresholds if other programs are loaded, in which none is set.
    pub(crate) fn set_programs(&mut self, programs: u32) {
        if std::mem::replace(&mut self.programs, programs) != programs {
            self.watches.iter_mut().for_each(|watch| watch.armed = None);
        }
    }

    /// Handles a crossing that the kernel reported. Returns false if it is not of a present threshold.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        let fired = self.find_mut(crossed.cgroup_id).is_some_and(|watch| watch.fire(crossed));
        self.may_be_due |= fired;
        fired
    }

    /// Returns a cgroup that is to be sampled now, within the rate limit, and the kernel's timestamp if the
    /// kernel reported the crossing.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        if !self.may_be_due {
            return None;
        }
        let due = self.watches.iter().position(|watch| watch.due_ns().is_some_and(|due| due <= now_ns));
        let Some(watch) = due.and_then(|at| self.watches.get_mut(at)) else {
            self.update_due();
            return None;
        };
        self.sample_rate.take(now_ns).then(|| (watch.id, watch.record_sample(now_ns)))
    }

    /// Returns in how many nanoseconds a cgroup is to be sampled.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if !self.may_be_due {
            return None;
        }
        let due = self.watches.iter().filter_map(LimitWatch::due_ns).min()?;
        Some(due.max(self.sample_rate.next_ns(now_ns)).saturating_sub(now_ns))
    }

    /// Returns the cgroup with this id.
    pub(crate) fn find(&self, id: u64) -> Option<&LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get(at)
    }

    pub(crate) fn find_mut(&mut self, id: u64) -> Option<&mut LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get_mut(at)
    }

    /// Returns the id of the n-th cgroup.
    pub(crate) fn nth(&self, nth: usize) -> Option<u64> {
        self.watches.get(nth).map(|watch| watch.id)
    }

    pub(crate) fn counts(&self) -> LimitCounts {
        let mut counts = LimitCounts::default();
        for watch in &self.watches {
            let Some(place) = OWNERS.iter().position(|owner| *owner == watch.owner) else { continue };
            let [watched, armed, near] = &mut counts[place];
            *watched += 1;
            *armed += i64::from(watch.armed.is_some());
            *near += i64::from(watch.near_since_ns.is_some());
        }
        counts
    }

    /// Finds out whether any cgroup is to be sampled.
    pub(crate) fn update_due(&mut self) {
        self.may_be_due = self.watches.iter().any(|watch| watch.due_ns().is_some());
    }
}

/// Returns all cgroups that may have a limit, each with its scope.
fn groups(pods: &Pods) -> impl Iterator<Item = (u64, LimitScope)> + '_ {
    let above = pods.pods_root.map(|id| (id, LimitScope::Kubepods)).into_iter();
    let classes = pods.qos.iter().map(|(_, id)| (*id, LimitScope::Qos));
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
