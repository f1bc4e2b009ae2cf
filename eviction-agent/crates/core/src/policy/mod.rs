//! What the engine decides by: the resolved eviction settings of a node, and the profile's rules.

pub mod eviction_settings;
pub mod preferences;

use serde::{Deserialize, Serialize};

use eviction_settings::{EvictionSettings, KernelKillMode};
use preferences::{ApplyChanges, MemoryPreferences, PredictionMode, Preferences};

use crate::signal::Signal;
use crate::units::{GoDuration, ThresholdValue};

/// Everything that the pipeline is told. Made by `config`, whole and valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    pub kernel_kill: KernelKillMode,
    /// How evictions are carried out.
    pub eviction: EvictionSettings,
}

/// One line that an observation must not fall below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

/// The choices of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    /// Which of the thresholds that are met drives an evaluation.
    pub urgency: Urgency,
    /// How much time a soft eviction grants.
    pub soft_grace: SoftGrace,
    /// How many pods go in one evaluation.
    pub victims: VictimsPerSync,
    /// Where pods without statistics rank.
    pub without_stats: WithoutStats,
    /// What usage of a file system is held against.
    pub disk_ranking: DiskRanking,
    /// What requests at the level of the pod do to those of its containers.
    pub pod_level_requests: PodLevelRequests,
    /// When node-level reclaim was enough.
    pub reclaim: ReclaimGoal,
    /// How available memory is measured, and what else its thresholds ask for.
    pub memory: MemoryPreferences,
    /// Which readings are believed.
    pub plausibility: Plausibility,
    /// What is done about thresholds that are about to be met.
    pub prediction: TrendPolicy,
    /// When a changed policy takes effect that would evict at once.
    pub apply_changes: ApplyChanges,
    /// What else the enhanced profile was told. `None` is the kubelet's profile: no
    /// protection, no limits, no plausibility, no prediction.
    pub preferences: Option<Preferences>,
}

/// Which of the thresholds that are met drives an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Urgency {
    /// The last one of memory, else the first: `helpers.go: byEvictionPriority`, as far as it
    /// is an order.
    Kubelet,
    /// Hard before soft, memory before the rest, then as configured.
    HardFirst,
}

/// How much time a soft eviction grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SoftGrace {
    /// The pod's own, up to `evictionMaxPodGracePeriod`, which is 0 unless it is set.
    Bounded,
    /// The pod's own, up to a cap in seconds if there is one.
    Own {
        /// The cap.
        cap: Option<i64>,
    },
}

/// How many pods go in one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimsPerSync {
    /// One. Nothing is known of it afterwards.
    One,
    /// As many as cover the deficit. Those terminating are remembered, and what they will
    /// free is taken off the deficit.
    Sized {
        /// The most of them; a hard threshold may take more if time runs out.
        most: u32,
    },
}

/// Where pods without statistics rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithoutStats {
    /// Before all others.
    First,
    /// As pods within their request, behind those of their priority of which more is known. A
    /// value that is absent is not known.
    BehindExceeding,
}

/// What usage of a file system is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskRanking {
    /// Bytes and inodes against requested bytes; images that no eviction frees evict too.
    Kubelet,
    /// Inodes by inodes alone, and nobody goes whose removal frees nothing.
    ByWhatIsFreed,
}

/// What requests at the level of the pod do to those of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodLevelRequests {
    /// Any of them hides all, also of resources that it does not name.
    HideAll,
    /// Each replaces those of its own resource: KEP-2837.
    HideTheirOwn,
}

/// When node-level reclaim was enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimGoal {
    /// When every threshold of the node is resolved.
    EveryThreshold,
    /// When the threshold that it was for is, whatever other signals are short of.
    ItsOwnSignal,
}

/// Which readings are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plausibility {
    /// All.
    Everything,
    /// Those that can be true. One that is not known for long is reported.
    Plausible {
        /// In how many evaluations in a row a signal may be unknown before it is unavailable.
        max_unknown: u32,
    },
}

/// What is done about thresholds that are about to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrendPolicy {
    /// Nobody looks ahead.
    None,
    /// Values are followed, and the trend is in every report.
    Trend {
        /// What is done about it.
        predict: PredictionMode,
        /// How soon a threshold must be expected to be met.
        within: GoDuration,
    },
}

impl Rules {
    /// The kubelet's, to the letter.
    pub fn kubelet() -> Self {
        Self {
            urgency: Urgency::Kubelet,
            soft_grace: SoftGrace::Bounded,
            victims: VictimsPerSync::One,
            without_stats: WithoutStats::First,
            disk_ranking: DiskRanking::Kubelet,
            pod_level_requests: PodLevelRequests::HideAll,
            reclaim: ReclaimGoal::EveryThreshold,
            memory: MemoryPreferences::default(),
            plausibility: Plausibility::Everything,
            prediction: TrendPolicy::None,
            apply_changes: ApplyChanges::Immediately,
            preferences: None,
        }
    }

    /// What an operator would want instead.
    pub fn enhanced(preferences: &Preferences) -> Self {
        let cap = preferences.soft.grace_period_cap.map(|cap| cap.as_nanos() / 1_000_000_000);
        Self {
            urgency: Urgency::HardFirst,
            soft_grace: SoftGrace::Own { cap },
            victims: VictimsPerSync::Sized { most: preferences.max_evictions_per_sync },
            without_stats: WithoutStats::BehindExceeding,
            disk_ranking: DiskRanking::ByWhatIsFreed,
            pod_level_requests: PodLevelRequests::HideTheirOwn,
            reclaim: ReclaimGoal::ItsOwnSignal,
            memory: preferences.memory.clone(),
            plausibility: Plausibility::Plausible { max_unknown: preferences.unavailable_after_samples },
            prediction: TrendPolicy::Trend {
                predict: preferences.prediction.mode,
                within: preferences.prediction.horizon,
            },
            apply_changes: preferences.apply_changes,
            preferences: Some(preferences.clone()),
        }
    }
}
