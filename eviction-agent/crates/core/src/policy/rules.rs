//! Where the two profiles differ: every choice of the pipeline that is not the same in both.
//!
//! The pipeline is one. It asks these rules where the kubelet's way is not what an operator
//! would want, and nothing outside of this file asks for the profile. Each enhanced choice is
//! justified in docs/reference/profiles.md and has scenarios in tests/scenarios/enhanced.

use crate::policy::preferences::{ApplyChanges, MemoryPreferences, PredictionMode, Preferences};
use crate::units::GoDuration;

/// The choices of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Which of the thresholds that are met drives a pass.
    pub urgency: Urgency,
    /// How much time a soft eviction grants.
    pub soft_grace: SoftGrace,
    /// How many pods go in one pass.
    pub victims: VictimsPerPass,
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
    pub belief: Plausibility,
    /// What is done about thresholds that are about to be met.
    pub prediction: TrendPolicy,
    /// When a changed policy takes effect that would evict at once.
    pub accept_changes: ApplyChanges,
    /// What else the enhanced profile was told. `None` is the kubelet's profile: no
    /// protection, no limits, no plausibility, no prediction.
    pub preferences: Option<Preferences>,
}

/// Which of the thresholds that are met drives a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The last one of memory, else the first: `helpers.go: byEvictionPriority`, as far as it
    /// is an order.
    Kubelet,
    /// Hard before soft, memory before the rest, then as configured.
    HardFirst,
}

/// How much time a soft eviction grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftGrace {
    /// The pod's own, up to `evictionMaxPodGracePeriod`, which is 0 unless it is set.
    Bounded,
    /// The pod's own, up to a cap in seconds if there is one.
    Own {
        /// The cap.
        cap: Option<i64>,
    },
}

/// How many pods go in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimsPerPass {
    /// One. Nothing is known of it afterwards.
    One,
    /// As many as cover the deficit. Those on their way are remembered, and what they will
    /// free is taken off the deficit.
    Sized {
        /// The most of them; a hard threshold may take more if time runs out.
        most: u32,
    },
}

/// Where pods without statistics rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutStats {
    /// Before all others.
    First,
    /// As pods within their request, behind those of their priority of which more is known. A
    /// figure that is absent is not known.
    BehindExceeding,
}

/// What usage of a file system is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskRanking {
    /// Bytes and inodes against requested bytes; images that no eviction frees evict too.
    Kubelet,
    /// Inodes by inodes alone, and nobody goes whose removal frees nothing.
    ByWhatIsFreed,
}

/// What requests at the level of the pod do to those of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLevelRequests {
    /// Any of them hides all, also of resources that it does not name.
    HideAll,
    /// Each replaces those of its own resource: KEP-2837.
    HideTheirOwn,
}

/// When node-level reclaim was enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimGoal {
    /// When every threshold of the node is resolved.
    EveryThreshold,
    /// When the threshold that it was for is, whatever other signals are short of.
    ItsOwnSignal,
}

/// Which readings are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plausibility {
    /// All.
    Everything,
    /// Those that can be true. One that is not known for long is reported.
    Plausible {
        /// In how many passes in a row a signal may be unknown before it is blind.
        max_unknown: u32,
    },
}

/// What is done about thresholds that are about to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrendPolicy {
    /// Nobody looks ahead.
    None,
    /// Figures are followed, and the trend is in every report.
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
            victims: VictimsPerPass::One,
            without_stats: WithoutStats::First,
            disk_ranking: DiskRanking::Kubelet,
            pod_level_requests: PodLevelRequests::HideAll,
            reclaim: ReclaimGoal::EveryThreshold,
            memory: MemoryPreferences::default(),
            belief: Plausibility::Everything,
            prediction: TrendPolicy::None,
            accept_changes: ApplyChanges::Immediately,
            preferences: None,
        }
    }

    /// What an operator would want instead.
    pub fn enhanced(preferences: &Preferences) -> Self {
        let cap = preferences.soft.grace_period_cap.map(|cap| cap.as_nanos() / 1_000_000_000);
        Self {
            urgency: Urgency::HardFirst,
            soft_grace: SoftGrace::Own { cap },
            victims: VictimsPerPass::Sized { most: preferences.max_evictions_per_sync },
            without_stats: WithoutStats::BehindExceeding,
            disk_ranking: DiskRanking::ByWhatIsFreed,
            pod_level_requests: PodLevelRequests::HideTheirOwn,
            reclaim: ReclaimGoal::ItsOwnSignal,
            memory: preferences.memory.clone(),
            belief: Plausibility::Plausible { max_unknown: preferences.unavailable_after_samples },
            prediction: TrendPolicy::Trend {
                predict: preferences.prediction.mode,
                within: preferences.prediction.horizon,
            },
            accept_changes: preferences.apply_changes,
            preferences: Some(preferences.clone()),
        }
    }
}
