//! What the group of all pods may still have: the signal `allocatableMemory.available`.
//!
//! The kubelet has it where the group has a limit (`pkg/kubelet/stats/helper.go:
//! cadvisorInfoToCPUandMemoryStats`). A fresh figure takes a dozen reads of `memory.stat`, many times
//! what the node takes, so it is read when it can have come near a threshold: the kernel told of
//! that, or the timer says so.

use crate::cgroup::files::Limit;
use crate::cgroup::sampler::Sampler;
use eviction_core::policy::Policy;
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::signal::Signal;
use eviction_core::snapshot::{MemoryStats, SourceId};
use eviction_core::threshold::ThresholdLevels;

use crate::cgroup::sample::MemoryUsage;
use crate::clock::Instant;

/// The group as it was read for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodsRootSample {
    /// Its cgroup id.
    pub id: u64,
    /// Its figures.
    pub seen: MemoryUsage,
    /// Its limit, bytes.
    pub limit: u64,
}

/// When that group is looked at, and how it was then.
#[derive(Debug, Default)]
pub struct Allocatable {
    /// Some threshold asks for it.
    is_asked_for: bool,
    /// The group that `last` is about.
    id: Option<u64>,
    last: Reading<MemoryStats>,
    due_ns: u64,
    lines: ThresholdLevels,
    /// The limit that the lines are for.
    limit: u64,
}

impl Allocatable {
    /// Follows a policy.
    pub fn follow(&mut self, policy: &Policy) {
        let mut thresholds = policy.thresholds.iter();
        let signal = Signal::AllocatableMemoryAvailable;
        self.is_asked_for = thresholds.any(|threshold| threshold.signal == signal);
        *self = Self { is_asked_for: self.is_asked_for, ..Self::default() };
    }

    /// The group, if a threshold is about what it may have. One without a known pod may be another
    /// kubelet's: for this signal there is none then.
    pub fn group(&self, sampler: &Sampler) -> Option<u64> {
        let node = sampler.tree().groups().first()?.id;
        let pods = sampler.pods();
        pods.pods_root.filter(|id| self.is_asked_for && pods.pods_root_has_known_pods && *id != node)
    }

    /// It is to be read for the next sample.
    pub fn hurry(&mut self) {
        self.due_ns = 0;
    }

    /// It is to be read at that time, at the latest.
    pub fn wait_until(&mut self, due_ns: u64) {
        self.due_ns = due_ns;
    }

    /// In how many nanoseconds it is to be read, if there is anything to read.
    pub fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let is_there = !matches!(self.last, Reading::Unknown(UnknownReason::Absent));
        is_there.then(|| self.due_ns.saturating_sub(now_ns))
    }

    /// Reads it if that is due. What there is of it now or was before, and the group if it was read.
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        at: Instant,
        charged: &[u64],
    ) -> (Reading<MemoryStats>, Option<PodsRootSample>) {
        let group = self.group(sampler);
        if group != self.id {
            // What is known is about another group.
            (self.id, self.last, self.due_ns) = (group, Reading::default(), 0);
        }
        let Some(id) = group else {
            return (Reading::Unknown(UnknownReason::Absent), None);
        };
        if at.mono_ns < self.due_ns {
            return (self.last, None);
        }
        let (stats, root) = read(sampler, id, at, charged);
        self.last = stats;
        (stats, root)
    }

    /// The lines of its thresholds, at this limit.
    pub fn lines(&mut self, policy: &Policy, limit: u64) -> &ThresholdLevels {
        if self.limit != limit {
            self.limit = limit;
            let capacity = i64::try_from(limit).unwrap_or(i64::MAX);
            self.lines = ThresholdLevels::of(policy, Signal::AllocatableMemoryAvailable, capacity);
        }
        &self.lines
    }

    /// Whether a threshold may be met or held by its minimum reclaim, by what is known.
    pub fn may_be_met(&self) -> bool {
        self.left().is_some_and(|left| self.lines.may_be_met(left))
    }

    /// How far the nearest threshold is that is not met.
    pub fn distance(&self) -> Option<u64> {
        self.lines.distance(self.left()?)
    }

    fn left(&self) -> Option<i64> {
        i64::try_from(self.last.known()?.available?).ok()
    }
}

fn read(
    sampler: &mut Sampler,
    id: u64,
    at: Instant,
    charged: &[u64],
) -> (Reading<MemoryStats>, Option<PodsRootSample>) {
    let Some(sample) = sampler.sample_group(id, charged) else {
        // It was just removed: the next reading of the tree says so.
        return (Reading::Unknown(UnknownReason::Failed), None);
    };
    let Limit::At(limit) = sample.hard_limit else {
        return (Reading::Unknown(UnknownReason::Absent), None);
    };
    let seen = match (sample.usage, sample.working_set) {
        (Reading::Known(usage), Reading::Known(working_set)) => MemoryUsage { usage, working_set },
        (Reading::Unknown(why), _) | (_, Reading::Unknown(why)) => return (Reading::Unknown(why), None),
    };
    let stats = MemoryStats {
        available: Some(limit.saturating_sub(seen.working_set)),
        working_set: Some(seen.working_set),
        time: Some(at.wall),
        source: SourceId::default(),
    };
    (Reading::Known(stats), Some(PodsRootSample { id, seen, limit }))
}
