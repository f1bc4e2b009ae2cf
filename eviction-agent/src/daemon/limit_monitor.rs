//! Groups with a memory limit of their own: what is armed on them, and which are near it.
//!
//! Nothing is decided by it. A kill at a limit is the kernel's own affair; but that it comes can be
//! seen, and told, before.

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

/// The groups, by their ids.
#[derive(Debug)]
pub(crate) struct Limits {
    /// How near a limit is told of, in percent of it.
    near_percent: u8,
    watches: Vec<LimitWatch>,
    spare: Vec<LimitWatch>,
    /// Each is a wake-up and a read of one group; many may come to their limits together. What is beyond is armed again later.
    wakes: TokenBucket<20, 64>,
    /// How many are to be looked at, at the most.
    fired: usize,
    /// How many there are that usage tells nothing of.
    blind: usize,
    /// Which programs know what is armed.
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

    /// Takes over the groups of a tree that was just read. Those that are gone, or have no limit any
    /// more, are handed to `disarm`; new ones are to be looked at. No limit of the node's own group
    /// is watched, and none that the node's memory does not reach.
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
            // Also what has fired: the right to do so is kept until it is armed again.
            if self.find(watch.id).is_none() {
                disarm(watch.id);
            }
        }
        before.clear();
        self.spare = before;
        self.recount();
    }

    /// Other programs are loaded, which know nothing of what was armed.
    pub(crate) fn follow(&mut self, programs: u32) {
        if std::mem::replace(&mut self.programs, programs) != programs {
            self.watches.iter_mut().for_each(LimitWatch::is_disarmed);
        }
    }

    /// The kernel told of a crossing. False if it is of no arming that stands.
    pub(crate) fn fire(&mut self, crossed: &ThresholdCrossed) -> bool {
        let fired = self.find_mut(crossed.level_id).is_some_and(|watch| watch.fire(crossed));
        self.fired += usize::from(fired);
        fired
    }

    /// A group that is to be looked at now, as often as that may be; with the kernel's stamp, if it
    /// told of it.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<(u64, Option<u64>)> {
        if self.fired == 0 && self.blind == 0 {
            return None;
        }
        let due = self.watches.iter().position(|watch| watch.due_ns().is_some_and(|due| due <= now_ns));
        let Some(watch) = due.and_then(|at| self.watches.get_mut(at)) else {
            self.recount();
            return None;
        };
        self.wakes.take(now_ns).then(|| (watch.id, watch.is_looked_at(now_ns)))
    }

    /// In how many nanoseconds there is one.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        if self.fired == 0 && self.blind == 0 {
            return None;
        }
        let due = self.watches.iter().filter_map(LimitWatch::due_ns).min()?;
        Some(due.max(self.wakes.next_ns(now_ns)).saturating_sub(now_ns))
    }

    /// The group with this id.
    pub(crate) fn find(&self, id: u64) -> Option<&LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get(at)
    }

    pub(crate) fn find_mut(&mut self, id: u64) -> Option<&mut LimitWatch> {
        let at = self.watches.binary_search_by_key(&id, |watch| watch.id).ok()?;
        self.watches.get_mut(at)
    }

    /// The id of the n-th group.
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

    /// Counts those that are to be looked at.
    pub(crate) fn recount(&mut self) {
        self.fired = self.watches.iter().filter(|watch| watch.has_fired()).count();
        self.blind = self.watches.iter().filter(|watch| watch.is_blind).count();
    }
}

/// All groups that may have a limit, and what each is.
fn groups(pods: &Pods) -> impl Iterator<Item = (u64, LimitScope)> + '_ {
    let above = pods.pods_root.map(|id| (id, LimitScope::Kubepods)).into_iter();
    let classes = pods.qos.iter().map(|(_, id)| (*id, LimitScope::Qos));
    let of_pods = pods.pods.iter().flat_map(|pod| {
        let containers = pod.containers.iter().map(|it| (it.cgroup_id, LimitScope::Container));
        std::iter::once((pod.cgroup_id, LimitScope::Pod)).chain(containers)
    });
    above.chain(classes).chain(of_pods)
}

/// Usage and working set of a sample, and the limit; nothing where one of them is not known.
pub(crate) fn figures(sample: &GroupSample) -> Option<(MemoryUsage, u64)> {
    let (Reading::Known(usage), Reading::Known(working_set), Limit::At(limit)) =
        (sample.usage, sample.working_set, sample.hard_limit)
    else {
        return None;
    };
    Some((MemoryUsage { usage, working_set }, limit))
}
