//! What the engine decides by: the resolved eviction settings of a node, and the profile's rules.

pub mod eviction_settings;
pub mod kill_on_growth;
pub mod preferences;
mod rules;

pub use rules::{
    DiskRanking, Plausibility, PodLevelRequests, ReclaimGoal, Rules, SoftGrace, TrendPolicy, Urgency,
    VictimsPerPass, WithoutStats,
};

use super::signal::Signal;
use super::units::{GoDuration, ThresholdValue};
use crate::policy::eviction_settings::EvictionSettings;
use crate::policy::eviction_settings::KernelKill;

/// Everything that the pipeline is told. Made by `config`, whole and valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// In the order of `ParseThresholdConfig`: hard, soft, then the copies of hard
    /// `memory.available` as `allocatableMemory.available`. Where the kubelet leaves the order
    /// to a map, by [`Signal`]. Thresholds of containerfs are as the user gave them; the
    /// engine derives the effective ones when it learns the disk layout.
    pub thresholds: Vec<Threshold>,
    /// Those of the kubelet on this node, before any margin; empty where the agent has its own. Only shown.
    pub kubelet_thresholds: Vec<Threshold>,
    /// How many thresholds can be appended before the kubelet's list moves, see
    /// [`room`](super::threshold::room).
    pub list_room: usize,
    /// How long a node condition outlives its cause. May be negative: then it never shows.
    pub pressure_transition_period: GoDuration,
    /// Upper bound in seconds of the grace that a soft eviction grants. May be negative.
    pub max_pod_grace_period_seconds: i64,
    /// Whether pods are held to their own local storage limits.
    pub local_storage_capacity_isolation: bool,
    /// Feature gates that decide.
    pub gates: Gates,
    /// Where the profiles differ.
    pub rules: Rules,
    /// Which decisions the kernel side may carry out by itself.
    pub reflex: KernelKill,
    /// How evictions are carried out.
    pub hands: EvictionSettings,
}

/// One line that an observation must not fall below.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Met when less than this is available.
    pub value: ThresholdValue,
    /// How long it must be met before it evicts. Zero makes it a hard threshold.
    pub grace_period: GoDuration,
    /// How much more than `value` must be available before it counts as resolved.
    pub min_reclaim: Option<ThresholdValue>,
}

impl Threshold {
    /// What `enforceNodeAllocatable` makes of it for all pods together, if it is a hard one of the
    /// node's memory: `helpers.go: addAllocatableThresholds`.
    pub fn copy_for_all_pods(&self) -> Option<Self> {
        let is_copied = self.signal == Signal::MemoryAvailable && self.is_hard();
        is_copied.then(|| Self { signal: Signal::AllocatableMemoryAvailable, ..self.clone() })
    }

    /// Whether it evicts at once: `helpers.go: isHardEvictionThreshold`.
    pub fn is_hard(&self) -> bool {
        self.grace_period == GoDuration::ZERO
    }
}

/// The kubelet's feature gates that change a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `PodLevelResources`: requests of the pod count, and hide those of its containers.
    pub pod_level_resources: bool,
    /// `KubeletSeparateDiskGC`: a split image file system is understood.
    pub separate_disk_gc: bool,
}

impl Default for Gates {
    /// As in v1.36.3.
    fn default() -> Self {
        Self { pod_level_resources: true, separate_disk_gc: true }
    }
}
