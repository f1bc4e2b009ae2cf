//! What the engine decides by: the resolved eviction settings of a node, and the profile's rules.

pub mod eviction_settings;
pub mod preferences;

use serde::{Deserialize, Serialize};

use eviction_settings::{EvictionSettings, KernelKillMode};
use preferences::{ApplyChanges, EvictionLimit, MemoryMeasure, MemoryPreferences, Prediction, Preferences};

use crate::signal::Signal;
use crate::units::{GoDuration, ThresholdValue};

/// Everything that an evaluation is decided by. Made by `config`, whole and valid.
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

/// A value that an observation must not fall below.
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

    /// `hard` or `soft`.
    pub fn kind(&self) -> &'static str {
        if self.is_hard() { "hard" } else { "soft" }
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

/// By whose rules the engine decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The settings of the enhanced profile. `None` is the kubelet's profile, to the letter: one victim
    /// in an evaluation, not remembered afterwards; no protection, no limits, no
    /// plausibility, no prediction.
    pub preferences: Option<Preferences>,
}

impl Rules {
    /// The kubelet's, to the letter.
    pub fn kubelet() -> Self {
        Self { preferences: None }
    }

    /// What an operator would want instead.
    pub fn enhanced(preferences: &Preferences) -> Self {
        Self { preferences: Some(preferences.clone()) }
    }

    /// Whether the kubelet's hold, to the letter. Else evictions are sized: as many pods go as cover the
    /// deficit, and what those terminating will free is taken off it.
    pub const fn are_kubelets(&self) -> bool {
        self.preferences.is_none()
    }

    /// How available memory is measured, and what else its thresholds ask for.
    pub fn memory(&self) -> &MemoryPreferences {
        static KUBELET: MemoryPreferences =
            MemoryPreferences { measure: MemoryMeasure::WorkingSet, psi: None, swap_used_at_least: None };
        self.preferences.as_ref().map_or(&KUBELET, |preferences| &preferences.memory)
    }

    /// What is done about thresholds that are about to be met, and how soon they must be
    /// expected to be. `None` where trends are not followed.
    pub fn prediction(&self) -> Option<Prediction> {
        self.preferences.as_ref().map(|preferences| preferences.prediction)
    }

    /// How many evictions of some pods there may be within a time. None in the kubelet's profile.
    pub fn rate_limits(&self) -> &[EvictionLimit] {
        self.preferences.as_ref().map_or(&[], |preferences| &preferences.rate_limits)
    }

    /// In how many samples in a row a signal may be unknown before it is unavailable. `None`
    /// where every reading is believed.
    pub fn max_unknown(&self) -> Option<u32> {
        self.preferences.as_ref().map(|preferences| preferences.unavailable_after_samples)
    }

    /// When a changed policy takes effect that would evict at once.
    pub fn apply_changes(&self) -> ApplyChanges {
        self.preferences.as_ref().map_or(ApplyChanges::Immediately, |preferences| preferences.apply_changes)
    }
}
