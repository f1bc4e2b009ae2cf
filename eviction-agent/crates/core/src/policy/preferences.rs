//! The settings of the enhanced profile: the `policy` section of an `AgentConfiguration`.
//!
//! These types are the only definition of its fields, defaults and documentation: the schema and the checks
//! of `config` are made from them. All values here have been checked there.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::signal::Signal;
use crate::sorted_map::SortedMap;
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
    pub order: EvictionOrder,
}

// `metav1.LabelSelector`.
/// Fits if all of its parts do; an empty one fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<Box<str>, Box<str>>,
    /// Other conditions on labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: Box<str>,
    /// How it is compared.
    pub operator: Operator,
    /// What it is compared with: at least one value for `In` and `NotIn`, none for the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Box<str>>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// It is there and has one of the values.
    In,
    /// It is not there, or has none of the values.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl LabelSelector {
    /// Returns whether a pod with these labels matches.
    pub fn matches(&self, labels: &SortedMap<Box<str>>) -> bool {
        let Self { match_labels, match_expressions } = self;
        match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &SortedMap<Box<str>>) -> bool {
        let label = labels.get(&self.key);
        let listed = || label.is_some_and(|label| self.values.contains(label));
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
        }
    }
}

crate::named_enum! {
    /// When a pod is evicted, compared with others.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    // The name in the published schema.
    #[schemars(rename = "Protection")]
    pub enum EvictionOrder {
        /// Before all others.
        First = "first",
        /// As it ranks.
        #[default]
        Normal = "normal",
        /// After all others.
        Last = "last",
        /// The pod opted out. If it is evicted at all, then after all pods that did not. No rule has this order.
        #[serde(skip_deserializing)]
        OptedOut = "opted_out",
        /// Not at all.
        Never = "never",
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> LabelSelector {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let labels = |pairs: &[(&str, &str)]| -> SortedMap<Box<str>> {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        let web = labels(&[("app", "web"), ("tier", "front")]);
        let none = labels(&[]);
        for (json, matches_web, matches_none) in [
            (serde_json::json!({}), true, true),
            (serde_json::json!({"matchLabels": {"app": "web"}}), true, false),
            (serde_json::json!({"matchLabels": {"app": "web", "tier": "back"}}), false, false),
            (expression("app", "In", &["db", "web"]), true, false),
            (expression("app", "In", &["db"]), false, false),
            (expression("app", "NotIn", &["web"]), false, true),
            (expression("app", "NotIn", &["db"]), true, true),
            (expression("app", "Exists", &[]), true, false),
            (expression("app", "DoesNotExist", &[]), false, true),
        ] {
            let selector = selector(json.clone());
            assert_eq!(
                (selector.matches(&web), selector.matches(&none)),
                (matches_web, matches_none),
                "{json}"
            );
        }
    }

    #[test]
    fn no_rule_has_the_order_of_a_pod_that_opted_out() {
        let order = |name: &str| serde_json::from_value::<EvictionOrder>(name.into());
        assert_eq!(order("Never").unwrap(), EvictionOrder::Never);
        let error = order("OptedOut").unwrap_err().to_string();
        assert_eq!(error, "unknown variant `OptedOut`, expected one of `First`, `Normal`, `Last`, `Never`");
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> serde_json::Value {
        serde_json::json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }
}
