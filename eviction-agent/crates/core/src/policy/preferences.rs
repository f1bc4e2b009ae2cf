//! The settings of the enhanced profile: the `policy` section of an `AgentConfiguration`.
//!
//! These types are the only definition of its fields, defaults and documentation: the schema and the checks
//! of `config` are made from them. All values here have been checked there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::label_selector::LabelSelector;
use crate::signal::Signal;
use crate::units::{GoDuration, Limit};

crate::named_enum! {
    /// The rules that the agent decides by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Profile {
        /// The kubelet's own rules. `policy` is not used.
        #[default]
        Kubelet = "Kubelet",
        /// The agent's rules, set by `policy`.
        Enhanced = "Enhanced",
    }
}

/// How the enhanced profile decides. Everything has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Preferences {
    /// Thresholds of the agent's own. They replace those of the kubelet's configuration for
    /// their signal; signals that are not named here keep the kubelet's.
    pub signals: Vec<SignalThresholds>,
    /// How available memory is measured.
    pub memory: MemoryPreferences,
    /// Evictions for soft thresholds.
    pub soft: SoftEvictions,
    /// Evictions for hard thresholds.
    pub hard: HardEvictions,
    /// The most pods that one sync may evict. A hard threshold may evict more if the node would run out
    /// before the first pod is gone.
    #[schemars(range(min = 1, max = 100))]
    pub max_evictions_per_sync: u32,
    /// Which pods are evicted first, last or never. The first rule that matches a pod counts; a pod
    /// that no rule matches is `Normal`.
    pub protection: Vec<ProtectionRule>,
    /// For how long a pod is not evicted after the kernel killed one of its processes for lack
    /// of memory, so that the OOM kill is not hidden by an eviction. Zero is off.
    #[schemars(with = "String", extend("format" = "duration"))]
    pub cool_down_after_oom_kill: GoDuration,
    /// How many pods of one owner or one namespace may be evicted within a time.
    pub rate_limits: Vec<EvictionLimit>,
    /// After how many samples in a row without a value a signal is reported as unavailable.
    #[schemars(range(min = 1, max = 1000))]
    pub unavailable_after_samples: u32,
    /// When a changed configuration is applied that would evict at once.
    pub apply_changes: ApplyChanges,
    /// What is done about thresholds that will soon be met.
    pub prediction: Prediction,
}

impl Default for Preferences {
    fn default() -> Self {
        Self {
            signals: Vec::new(),
            memory: MemoryPreferences::default(),
            soft: SoftEvictions::default(),
            hard: HardEvictions::default(),
            max_evictions_per_sync: 3,
            protection: Vec::new(),
            cool_down_after_oom_kill: GoDuration::from_secs(300),
            rate_limits: vec![EvictionLimit {
                scope: RateLimitScope::Owner,
                max_evictions: 3,
                window: GoDuration::from_secs(600),
            }],
            unavailable_after_samples: 3,
            apply_changes: ApplyChanges::default(),
            prediction: Prediction::default(),
        }
    }
}

/// The thresholds of one signal. At least one of `hard` and `soft` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalThresholds {
    /// What is measured.
    pub signal: Signal,
    /// Below this pods are evicted at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "threshold"))]
    pub hard: Option<Limit>,
    /// Below this pods are evicted after `gracePeriod`. More than `hard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "threshold"))]
    pub soft: Option<Limit>,
    /// How long the soft threshold must be met before it evicts, more than zero. Goes with
    /// `soft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "positive-duration"))]
    pub grace_period: Option<GoDuration>,
    /// How much more than the threshold must be available before it counts as resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "threshold"))]
    pub min_reclaim: Option<Limit>,
}

/// How available memory is measured. All measures appear in every report, whichever decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryPreferences {
    /// What `memory.available` is.
    pub measure: MemoryMeasure,
    /// If set, a memory threshold is met only while tasks stall on memory as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<MemoryPsi>,
    /// If set, a memory threshold is met only while at least this much swap is used. A node
    /// without swap has used all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "threshold"))]
    pub swap_used_at_least: Option<Limit>,
}

/// What `memory.available` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemoryMeasure {
    /// Capacity less working set (usage without inactive file pages), as the kubelet has it:
    /// active page cache counts as used.
    #[default]
    WorkingSet,
    /// The kernel's own estimate, `MemAvailable` of /proc/meminfo.
    MemAvailable,
    /// Capacity less working set, active file pages not counted either.
    WorkingSetMinusActiveFile,
}

/// Memory stalls by the kernel's pressure stall information (PSI). Exactly one of `avg10` and
/// `trigger` is given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryPsi {
    /// Which stalls count.
    #[serde(default)]
    pub kind: PsiKind,
    /// The share of the last ten seconds, in percent, that must have been lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01, max = 100.0))]
    pub avg10: Option<f64>,
    /// A stall of some length within a window, by the kernel's total of stalled time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<PsiTrigger>,
}

/// Which stalls count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PsiKind {
    /// At least one task waits.
    #[default]
    Some,
    /// All tasks wait at once.
    Full,
}

/// A stall of some length within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PsiTrigger {
    /// How long tasks must stall, more than zero and at most `window`.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub stall: GoDuration,
    /// Within which time, 500ms to 10s.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub window: GoDuration,
}

/// Evictions for soft thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SoftEvictions {
    /// The most time that a pod gets to end. Absent: its own `terminationGracePeriodSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "duration"))]
    pub grace_period_cap: Option<GoDuration>,
    /// Whether pods without a controller may be evicted, although nothing recreates them.
    pub evict_pods_without_controller: bool,
}

/// Evictions for hard thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HardEvictions {
    /// Whether a hard memory threshold may evict pods that opted out by annotation, once there
    /// is no other pod.
    pub override_opt_out: bool,
}

/// A rule about pods. All conditions that are given must fit; at least one is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProtectionRule {
    /// The pod is in one of these namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The pod's labels fit. An empty selector fits every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The pod has one of these priority classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority_classes: Vec<String>,
    /// When such pods are evicted.
    pub order: Protection,
}

/// When a pod is evicted, compared with others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Protection {
    /// Before all others.
    First,
    /// As it ranks.
    #[default]
    Normal,
    /// After all others.
    Last,
    /// Not at all.
    Never,
}

/// How many pods of one owner or one namespace may be evicted within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvictionLimit {
    /// What the pods have in common.
    pub scope: RateLimitScope,
    /// The most evictions, at least 1.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_evictions: u32,
    /// The time, more than zero.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub window: GoDuration,
}

/// What pods have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RateLimitScope {
    /// The namespace.
    Namespace,
    /// The owner, such as a ReplicaSet. Pods without one are not limited.
    Owner,
}

/// When a changed configuration is applied that would evict at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApplyChanges {
    /// After the pressure transition period, or earlier by hand.
    #[default]
    AfterTransitionPeriod,
    /// Only by hand.
    Manually,
    /// At once.
    Immediately,
}

/// What is done about thresholds that will soon be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Prediction {
    /// What is done about them.
    pub mode: PredictionMode,
    /// How soon: within this time at the present trend.
    #[schemars(with = "String", extend("format" = "positive-duration"))]
    pub horizon: GoDuration,
}

impl Default for Prediction {
    fn default() -> Self {
        Self { mode: PredictionMode::default(), horizon: GoDuration::from_secs(30) }
    }
}

/// What is done about thresholds that will soon be met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PredictionMode {
    /// They are reported only.
    #[default]
    Off,
    /// The node condition is set.
    Condition,
    /// Pods are evicted as if the threshold were met.
    Evict,
}
