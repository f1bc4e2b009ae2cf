//! Cgroups with a memory limit: the kernel thresholds on them, and which of them are near their limit.
//!
//! Nothing is decided by it. The kernel kills at a limit; the agent reports beforehand that the limit is near.

mod watch;

use eviction_bpf::ThresholdCrossed;
use eviction_core::oom::LimitScope;
use eviction_core::reading::Reading;
use eviction_node::cgroup::files::Limit;
use eviction_node::cgroup::pods::Pods;
use eviction_node::cgroup::sample::GroupSample;
use eviction_node::cgroup::sampler::Sampler;

use eviction_node::sampler::MemoryUsage;

use super::memory_notifier::TokenBucket;
pub(crate) use watch::{LimitChange, LimitWatch};

/// Whose limits are watched.
pub(crate) const OWNERS: [LimitScope; 4] =
    [LimitScope::Kubepods, LimitScope::Qos, LimitScope::Pod, LimitScope::Container];

/// For each of [`OWNERS`]: how many limits are watched, on how many cgroups a threshold is set, and how many are near.
pub(crate) type LimitCounts = [[i64; 3]; OWNERS.len()];

/// The cgroups, by their ids.
#[derive(Debug)]
pub(crate) struct Limits {
    /// How near a limit is reported, in percent of it.
    near_percent: u8,
    watches: Vec<LimitWatch>,
    spare: Vec<LimitWatch>,
    /// Each takes a wakeup and a read of one cgroup; many may come to their limits together. The others are sampled later.
    wakes: TokenBucket<20, 64>,
    /// An upper bound of how many are to be sampled.
    fired: usize,
    /// How many there are whose usage does not show that the limit comes near.
    blind: usize,
    /// The programs in which thresholds are set.
    programs: u32,
}

impl Limits {
    /// None yet.
    pub(crate) fn new(near_percent: u8) -> Self {
        Self {
            near_percent,
            watches: Vec::new(),
            spare: Vec::new(),
            wakes: TokenBucket::default(),
            fired: 0,
            blind: 0,
            programs: 0,
        }
    }

    /// Follows a tree that was just read. Cgroups that are gone, or have no limit any more, are passed to `disarm`; new
    /// ones are to be sampled. The limit of the node's own cgroup is not watched, nor one above the node's memory.
    pub(crate) fn adopt(&mut self, sampler: &Sampler, memory: u64, mut disarm: impl FnMut(u64)) {
        let node = sampler.tree().groups().first().map(|group| group.id);
        let limit = |id| match sampler.group(id)?.hard_limit {
            Limit::At(limit) if limit > 0 && limit <= memory => Some(limit),
            Limit::At(_) | Limit::Unlimited => None,
        };
        let mut before = std::mem::replace(&mut self.watches, std::mem::take(&mut self.spare));
        for (id, owner) in groups(sampler.pods()).filter(|(id, _)| Some(*id) != node) {
            let Some(limit) = limit(id) else { continue };
            let known = before.binary_search_by_key(&id, |watch| watch.id).ok();
            self.watches.push(
                known.map_or_else(|| LimitWatch::new(id, owner, limit, self.near_percent), |at| before[at]),
            );
        }
        self.watches.sort_unstable_by_key(|watch| watch.id);
        // There are two of them while the kubelet's driver is being changed, but never with one id.
        self.watches.dedup_by_key(|watch| watch.id);
        for watch in &before {
            // Also one that has fired: its fire token is kept until the threshold is set again.
            if self.find(watch.id).is_none() {
                disarm(watch.id);
            }
        }
        before.clear();
        self.spare = before;
        self.recount();
    }

    /// Other programs are loaded, in which no threshold is set.
    pub(crate) fn follow(&mut self, programs: u32) {
        if std::mem::replace(&mut self.programs, programs) != programs {
            self.watches.iter_mut().for_each(LimitWatch::is_disarmed);
        }
    }

    /// The kernel reported a crossing. False if it is not of a present threshold.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        let fired = self.find_mut(crossed.cgroup_id).is_some_and(|watch| watch.fire(crossed));
        self.fired += usize::from(fired);
        fired
    }

    /// A cgroup that is to be sampled now, within the rate limit; with the kernel's timestamp, if it reported the crossing.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        if self.fired == 0 && self.blind == 0 {
            return None;
        }
        let due = self.watches.iter().position(|watch| watch.due_ns().is_some_and(|due| due <= now_ns));
        let Some(watch) = due.and_then(|at| self.watches.get_mut(at)) else {
            self.recount();
            return None;
        };
        self.wakes.take(now_ns).then(|| (watch.id, watch.note_sample(now_ns)))
    }

    /// In how many nanoseconds there is one.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if self.fired == 0 && self.blind == 0 {
            return None;
        }
        let due = self.watches.iter().filter_map(LimitWatch::due_ns).min()?;
        Some(due.max(self.wakes.next_ns(now_ns)).saturating_sub(now_ns))
    }

    /// The cgroup with this id.
    pub(crate) fn find(&self, id: u64) -> Option<&LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get(at)
    }

    pub(crate) fn find_mut(&mut self, id: u64) -> Option<&mut LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get_mut(at)
    }

    /// The id of the n-th cgroup.
    pub(crate) fn nth(&self, nth: usize) -> Option<u64> {
        self.watches.get(nth).map(|watch| watch.id)
    }

    pub(crate) fn counts(&self) -> LimitCounts {
        let mut counts = LimitCounts::default();
        for watch in &self.watches {
            let Some(place) = OWNERS.iter().position(|owner| *owner == watch.owner) else { continue };
            let [watched, armed, near] = &mut counts[place];
            *watched += 1;
            *armed += i64::from(watch.is_armed());
            *near += i64::from(watch.near_since_ns.is_some());
        }
        counts
    }

    /// Counts those that are to be sampled.
    pub(crate) fn recount(&mut self) {
        self.fired = self.watches.iter().filter(|watch| watch.has_fired()).count();
        self.blind = self.watches.iter().filter(|watch| watch.is_blind).count();
    }
}

/// All cgroups that may have a limit, each with its scope.
fn groups(pods: &Pods) -> impl Iterator<Item = (u64, LimitScope)> + '_ {
    let above = pods.pods_root.map(|id| (id, LimitScope::Kubepods)).into_iter();
    let classes = pods.qos.iter().map(|(_, id)| (*id, LimitScope::Qos));
    let of_pods = pods.pods.iter().flat_map(|pod| {
        let containers = pod.containers.iter().map(|it| (it.cgroup_id, LimitScope::Container));
        std::iter::once((pod.cgroup_id, LimitScope::Pod)).chain(containers)
    });
    above.chain(classes).chain(of_pods)
}

/// Usage and working set of a sample, and the limit; `None` where one of them is not known.
pub(crate) fn usage_and_limit(sample: &GroupSample) -> Option<(MemoryUsage, u64)> {
    let (Reading::Known(usage), Reading::Known(working_set), Limit::At(limit)) =
        (sample.usage, sample.working_set, sample.hard_limit)
    else {
        return None;
    };
    Some((MemoryUsage { usage, working_set }, limit))
}
