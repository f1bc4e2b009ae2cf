//! The policy of the engine: the resolved eviction settings of a node, and the rules of the profile.

pub mod eviction_settings;
pub mod preferences;

use serde::{Deserialize, Serialize};

use eviction_settings::{EvictionSettings, KernelKillMode};
use preferences::{
    ApplyChanges, EvictionLimit, MemoryMeasure, MemoryPreferences, Prediction, Preferences, Profile,
};

use crate::signal::Signal;
use crate::units::{GoDuration, ThresholdValue};

/// Everything that an evaluation is based on. Created by `config`, complete and valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// The thresholds in the order of `ParseThresholdConfig`: hard, soft, then the copies of hard
    /// `memory.available` as `allocatableMemory.available`. Where the kubelet uses the order of a map, they
    /// are ordered by [`Signal`]. Thresholds of containerfs are as the user configured them; the engine
    /// derives the effective ones when the disk layout is known.
    pub thresholds: Vec<Threshold>,
    /// The kubelet's thresholds on this node, before any margin. Empty if the agent has its own. Only for display.
    pub kubelet_thresholds: Vec<Threshold>,
    /// How many thresholds can be appended before the kubelet's list moves, see
    /// [`room`](super::threshold::room).
    pub list_room: usize,
    /// How long a node condition holds after its cause has ended. If negative, it never holds.
    pub pressure_transition_period: GoDuration,
    /// The longest grace period of a soft eviction, in seconds. May be negative.
    pub max_pod_grace_period_seconds: i64,
    /// Whether the local storage limits of pods are enforced.
    pub local_storage_capacity_isolation: bool,
    /// The feature gates that affect decisions.
    pub gates: Gates,
    /// The rules in which the profiles differ.
    pub rules: Rules,
    /// Which evictions a BPF program may carry out in the kernel.
    pub kernel_kill: KernelKillMode,
    /// How evictions are carried out.
    pub eviction: EvictionSettings,
}

/// A value that an observation must not fall below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// The signal that is measured.
    pub signal: Signal,
    /// The threshold is met when less than this is available.
    pub value: ThresholdValue,
    /// How long the threshold must be met before it evicts. Zero makes it a hard threshold.
    pub grace_period: GoDuration,
    /// How much more than `value` must be available before the threshold counts as resolved.
    pub min_reclaim: Option<ThresholdValue>,
}

impl Threshold {
    /// Returns the copy for all pods together that `enforceNodeAllocatable` adds, if this is a hard threshold
    /// of the node's memory: `helpers.go: addAllocatableThresholds`.
    pub fn copy_for_all_pods(&self) -> Option<Self> {
        let is_copied = self.signal == Signal::MemoryAvailable && self.is_hard();
        is_copied.then(|| Self { signal: Signal::AllocatableMemoryAvailable, ..self.clone() })
    }

    /// Returns whether the threshold evicts at once: `helpers.go: isHardEvictionThreshold`.
    pub fn is_hard(&self) -> bool {
        self.grace_period == GoDuration::ZERO
    }

    /// Returns `hard` or `soft`.
    pub fn kind(&self) -> &'static str {
        if self.is_hard() { "hard" } else { "soft" }
    }
}

/// The kubelet's feature gates that affect decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gates {
    /// `PodLevelResources`: requests of a pod count, and hide those of its containers.
    pub pod_level_resources: bool,
    /// `KubeletSeparateDiskGC`: a split image file system is supported.
    pub separate_disk_gc: bool,
}

impl Default for Gates {
    /// Returns the defaults of v1.36.3.
    fn default() -> Self {
        Self { pod_level_resources: true, separate_disk_gc: true }
    }
}

/// The rules that the engine decides by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The settings of the enhanced profile. `None` is exactly the kubelet's profile: one victim per
    /// evaluation, which later evaluations do not take into account; no protection, no rate limits, no
    /// plausibility check, no prediction.
    pub preferences: Option<Preferences>,
}

impl Rules {
    /// Returns exactly the kubelet's rules.
    pub fn kubelet() -> Self {
        Self { preferences: None }
    }

    /// Returns the rules of the enhanced profile.
    pub fn enhanced(preferences: &Preferences) -> Self {
        Self { preferences: Some(preferences.clone()) }
    }

    /// Returns whether exactly the kubelet's rules apply. Otherwise an evaluation evicts as many pods as
    /// cover the deficit, from which the expected release of terminating pods is subtracted.
    pub const fn are_kubelets(&self) -> bool {
        self.preferences.is_none()
    }

    /// Returns the profile of the rules.
    pub const fn profile(&self) -> Profile {
        if self.are_kubelets() { Profile::Kubelet } else { Profile::Enhanced }
    }

    /// Returns how available memory is measured, and the further conditions of its thresholds.
    pub fn memory(&self) -> &MemoryPreferences {
        static KUBELET: MemoryPreferences =
            MemoryPreferences { measure: MemoryMeasure::WorkingSet, psi: None, swap_used_at_least: None };
        self.preferences.as_ref().map_or(&KUBELET, |preferences| &preferences.memory)
    }

    /// Returns the reaction to thresholds that are predicted to be met, and the prediction horizon. None if
    /// trends are not tracked.
    pub fn prediction(&self) -> Option<Prediction> {
        self.preferences.as_ref().map(|preferences| preferences.prediction)
    }

    /// Returns how many evictions of some pods are allowed within a time. Empty in the kubelet's profile.
    pub fn rate_limits(&self) -> &[EvictionLimit] {
        self.preferences.as_ref().map_or(&[], |preferences| &preferences.rate_limits)
    }

    /// Returns after how many samples in a row without a value a signal becomes unavailable. None if every
    /// reading is accepted.
    pub fn max_unknown(&self) -> Option<u32> {
        self.preferences.as_ref().map(|preferences| preferences.unavailable_after_samples)
    }

    /// Returns when a changed policy takes effect that would evict at once.
    pub fn apply_changes(&self) -> ApplyChanges {
        self.preferences.as_ref().map_or(ApplyChanges::Immediately, |preferences| preferences.apply_changes)
    }
}
