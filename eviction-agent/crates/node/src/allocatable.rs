//! The memory that is available to the cgroup of all pods: the signal `allocatableMemory.available`.
//!
//! The kubelet reports it where the cgroup has a limit (`pkg/kubelet/stats/helper.go:
//! cadvisorInfoToCPUandMemoryStats`). A fresh value takes a dozen reads of `memory.stat`, many times the cost
//! of the node's values. So it is read only when it may have come near a threshold: the kernel reported that,
//! or the timer expired.

use crate::cgroup::sampler::{MemoryUsage, Sampler};
use eviction_core::policy::{Policy, Threshold};
use eviction_core::reading::{Reading, UnknownReason};
use eviction_core::signal::Signal;
use eviction_core::snapshot::MemoryStats;
use eviction_core::threshold::ThresholdLevels;

use crate::clock::Instant;

/// The cgroup of all pods as it was read for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodsRootSample {
    /// Its cgroup id.
    pub id: u64,
    /// Its memory usage.
    pub seen: MemoryUsage,
    /// Its limit, in bytes.
    pub limit: u64,
}

/// Decides when the cgroup of all pods is sampled, and keeps its last values.
#[derive(Debug, Default)]
pub struct Allocatable {
    /// The thresholds on the signal.
    thresholds: Vec<Threshold>,
    /// The cgroup that `last` is about.
    id: Option<u64>,
    last: Reading<MemoryStats>,
    due_ns: u64,
    levels: ThresholdLevels,
    /// The limit that `levels` was computed for, in bytes.
    limit: u64,
}

impl Allocatable {
    /// Applies a policy, and discards the last values.
    pub fn apply_policy(&mut self, policy: &Policy) {
        let is_used = |it: &&Threshold| it.signal == Signal::AllocatableMemoryAvailable;
        let thresholds = policy.thresholds.iter().filter(is_used).cloned().collect();
        let limit = self.limit;
        *self = Self { thresholds, ..Self::default() };
        // The kernel thresholds of this policy may be set before the next read.
        self.set_limit(limit);
    }

    fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        let capacity = i64::try_from(limit).unwrap_or(i64::MAX);
        self.levels = ThresholdLevels::of(&self.thresholds, Signal::AllocatableMemoryAvailable, capacity);
    }

    /// Returns the cgroup of all pods, if a threshold uses the signal. A cgroup without a known pod may belong
    /// to another kubelet, so it is not used.
    pub fn group(&self, sampler: &Sampler) -> Option<u64> {
        let node = sampler.tree().groups().first()?.id;
        let pods = sampler.pods();
        let is_used = !self.thresholds.is_empty() && pods.pods_root_has_known_pods;
        pods.pods_root.filter(|id| is_used && *id != node)
    }

    /// Makes the cgroup due for the next sample.
    pub fn read_at_next_sample(&mut self) {
        self.due_ns = 0;
    }

    /// Sets the time at which the cgroup is due at the latest.
    pub fn wait_until(&mut self, due_ns: u64) {
        self.due_ns = due_ns;
    }

    /// Returns in how many nanoseconds the cgroup is due, if there is anything to read.
    pub fn due_in_ns(&self, now_ns: u64) -> Option<u64> {
        let is_there = !matches!(self.last, Reading::Unknown(UnknownReason::Absent));
        is_there.then(|| self.due_ns.saturating_sub(now_ns))
    }

    /// Reads the cgroup if it is due. Returns the new or the last stats, and the sample if it was read.
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        at: Instant,
        charged: &[u64],
    ) -> (Reading<MemoryStats>, Option<PodsRootSample>) {
        let group = self.group(sampler);
        if group != self.id {
            // The last values are about another cgroup.
            (self.id, self.last, self.due_ns) = (group, Reading::default(), 0);
        }
        let Some(id) = group else {
            return (Reading::Unknown(UnknownReason::Absent), None);
        };
        if at.mono_ns < self.due_ns {
            return (self.last, None);
        }
        let read = read(sampler, id, at, charged);
        self.last = read.map(|(stats, _)| stats).into();
        let root = read.ok().map(|(_, root)| root);
        if let Some(limit) = root.map(|root| root.limit).filter(|limit| *limit != self.limit) {
            self.set_limit(limit);
        }
        (self.last, root)
    }

    /// Returns the working sets at which the signal's thresholds are met, at the limit that was read last.
    pub fn working_sets(&self) -> impl Iterator<Item = u64> {
        self.levels.working_sets(self.limit)
    }

    /// Returns whether a threshold may be met, or held by its minimum reclaim, according to the last values.
    pub fn may_be_met(&self) -> bool {
        self.available().is_some_and(|available| self.levels.may_be_met(available))
    }

    /// Returns the headroom to the nearest threshold that is not met, in bytes.
    pub fn headroom(&self) -> Option<u64> {
        self.levels.distance(self.available()?)
    }

    fn available(&self) -> Option<i64> {
        i64::try_from(self.last.known()?.available?).ok()
    }
}

fn read(
    sampler: &mut Sampler,
    id: u64,
    at: Instant,
    charged: &[u64],
) -> Result<(MemoryStats, PodsRootSample), UnknownReason> {
    // A cgroup that was just removed; the next read of the tree shows it.
    let sample = sampler.sample_group(id, charged).ok_or(UnknownReason::Failed)?;
    let limit = sample.hard_limit.ok_or(UnknownReason::Absent)?;
    let seen = match MemoryUsage::of(sample.usage, sample.working_set) {
        Reading::Known(seen) => seen,
        Reading::Unknown(why) => return Err(why),
    };
    let stats = MemoryStats {
        available: Some(limit.saturating_sub(seen.working_set)),
        working_set: Some(seen.working_set),
        time: Some(at.wall),
    };
    Ok((stats, PodsRootSample { id, seen, limit }))
}
