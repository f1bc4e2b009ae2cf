//! Whether and when a pod may be evicted, as far as it follows from the pod and the policy: its annotations,
//! its priority, the operator's rules, and the key of its rate limits.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::pod::Pod;
use crate::policy::Rules;
use crate::policy::preferences::{EvictionOrder, ProtectionRule, RateLimitScope};
use crate::sorted_map::SortedMap;

/// Whether and when a pod may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodProtection {
    /// The eviction order of the pod. All pods of one order are evicted before any of the next.
    #[serde(serialize_with = "write_name")]
    pub order: EvictionOrder,
    /// The index in `policy.protection` of the rule that matches the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Whether no controller would recreate the pod, and its annotations do not allow its eviction. Similar
    /// pods with a controller are evicted first.
    pub without_controller: bool,
    /// The priority hint of the pod's annotation, from -100 to 100. Among similar pods, lower is evicted first.
    pub hint: i8,
    /// The key under which the pod's eviction counts against rate limits. Shared, so that storing it does not
    /// allocate.
    #[serde(skip)]
    pub rate_limit_key: Arc<RateLimitKey>,
    /// The pod's annotations that are ignored.
    #[serde(rename = "ignored_annotations", skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredAnnotation>,
}

impl PodProtection {
    /// Returns the protection of a pod under the rules. In the kubelet's profile no pod is protected.
    ///
    /// A rule with the order `Never` takes precedence, then the pod's opt-out. Any matching rule also takes
    /// precedence over a pod's wish to be evicted after others, so that no pod escapes `First` by an
    /// annotation.
    pub(crate) fn of(pod: &Pod, rules: &Rules) -> Self {
        let rate_limit_key = Arc::new(RateLimitKey::of(pod));
        let Some(preferences) = &rules.preferences else {
            return Self { rate_limit_key, ..Self::default() };
        };
        let rule = preferences.protection.iter().position(|rule| rule_matches(rule, pod));
        let configured = rule.and_then(|index| preferences.protection.get(index)).map(|rule| rule.order);
        let order = match configured {
            Some(EvictionOrder::Never) => EvictionOrder::Never,
            _ if opts_out(pod) => EvictionOrder::OptedOut,
            Some(order) => order,
            None if pod.annotations.contains_key(DESCHEDULER_PREFER_NO_EVICTION) => EvictionOrder::Last,
            None => EvictionOrder::Normal,
        };
        let mut ignored = Vec::new();
        let without_controller = !allows_eviction(&pod.annotations, &mut ignored) && pod.owner.is_none();
        let hint = priority_hint(&pod.annotations, &mut ignored);
        Self { order, rule, without_controller, hint, rate_limit_key, ignored }
    }
}

/// Serializes the order as records have it. The configuration has other names.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn write_name<S: Serializer>(order: &EvictionOrder, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(order.name())
}

/// Returns whether all conditions of a rule match. The configuration has checked that it has at least one.
fn rule_matches(rule: &ProtectionRule, pod: &Pod) -> bool {
    let ProtectionRule { namespaces, selector, priority_classes, order: _ } = rule;
    let is_empty_or_contains =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|one| one == name);
    is_empty_or_contains(namespaces, &pod.namespace)
        && is_empty_or_contains(priority_classes, &pod.priority_class)
        && selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
}

/// The annotation with the source from which the kubelet has a pod. If it is present and not `api`, the pod
/// is static.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The annotation of a mirror pod, which represents a static pod in the API server.
pub(super) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// The annotation of a static pod with the uid in its cgroup's name. It differs from the uid in the API.
pub(super) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Returns the uid in the cgroup's name of a static pod, if this is its mirror pod. A mirror pod has that uid
/// in both annotations (`pkg/kubelet/pod/mirror_client.go: CreateMirrorPod`). Users may set one of them on
/// their own pods, which does not make these mirror pods.
pub fn mirrored_uid(pod: &Pod) -> Option<&str> {
    let hash = pod.annotations.get(CONFIG_HASH)?;
    (pod.annotations.get(CONFIG_MIRROR)? == hash).then_some(hash)
}

/// Returns a pod from the API server as the kubelet has it. The kubelet sets the source annotation itself
/// (`pkg/kubelet/config/config.go: updatePodsFunc`), so a value in the object, which any user may have set,
/// is removed.
pub fn from_api(mut pod: Pod) -> Pod {
    if pod.annotations.contains_key(CONFIG_SOURCE) {
        let others = pod.annotations.iter().filter(|(key, _)| *key != CONFIG_SOURCE);
        pod.annotations = others.map(|(key, value)| (key.into(), value.clone())).collect();
    }
    pod
}

/// Returns whether anything depends on an annotation. Others are not stored: a pod may have 256 KiB of them.
pub fn is_used_annotation(annotation: &str) -> bool {
    [
        CONFIG_SOURCE,
        CONFIG_MIRROR,
        CONFIG_HASH,
        EVICT,
        PRIORITY_HINT,
        DESCHEDULER_EVICT,
        DESCHEDULER_PREFER_NO_EVICTION,
    ]
    .contains(&annotation)
}

/// `"false"`: the pod is not evicted. `"true"`: the pod may be evicted, although no controller would recreate it.
pub const EVICT: &str = "eviction-agent.io/evict";
/// An integer from -100 to 100. Among pods of the same class and priority, lower is evicted first, as with a
/// pod's priority.
pub const PRIORITY_HINT: &str = "eviction-agent.io/priority-hint";
/// An annotation of the descheduler: the pod may be evicted, even if checks forbid it. For the descheduler
/// its presence counts, whatever its value: `evictions/utils.go: HaveEvictAnnotation`.
pub const DESCHEDULER_EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
/// An annotation of the descheduler: another pod should be evicted first. Its presence counts, whatever its
/// value: `evictions/utils.go: HaveNoEvictionAnnotation`.
pub const DESCHEDULER_PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";

/// The range of a hint.
const MIN_HINT: i8 = -100;
const MAX_HINT: i8 = 100;
/// The number of characters of an invalid value that are stored.
const MAX_STORED_CHARS: usize = 64;

/// An annotation for evictions with a value that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IgnoredAnnotation {
    /// The name of the annotation.
    pub annotation: &'static str,
    /// The value, at most 64 characters of it.
    pub value: Box<str>,
    /// What is wrong with the value: `not_true_or_false`, `not_a_number_in_range`, or `says_false`. For the
    /// descheduler any value is a yes, but that one is most likely meant as a no.
    pub error: &'static str,
}

impl IgnoredAnnotation {
    fn new(annotation: &'static str, value: &str, error: &'static str) -> Self {
        let value: String = value.chars().take(MAX_STORED_CHARS).collect();
        Self { annotation, value: value.into(), error }
    }
}

/// Returns whether a pod must not be evicted by its own annotation.
pub(crate) fn opts_out(pod: &Pod) -> bool {
    pod.annotations.get(EVICT).is_some_and(|value| is_false(value))
}

/// Returns whether a value says no. `False` and `FALSE` are what YAML's booleans look like when they are quoted.
fn is_false(value: &str) -> bool {
    value.eq_ignore_ascii_case("false")
}

/// Returns whether a pod with these annotations may be evicted although it has no controller. The agent's own
/// annotation is the more specific one.
fn allows_eviction(annotations: &SortedMap<Box<str>>, ignored: &mut Vec<IgnoredAnnotation>) -> bool {
    let mut allows = false;
    if let Some(value) = annotations.get(DESCHEDULER_EVICT) {
        allows = !is_false(value);
        if !allows {
            ignored.push(IgnoredAnnotation::new(DESCHEDULER_EVICT, value, "says_false"));
        }
    }
    match annotations.get(EVICT) {
        Some(value) if is_false(value) => false,
        Some(value) if value.eq_ignore_ascii_case("true") => true,
        Some(value) => {
            ignored.push(IgnoredAnnotation::new(EVICT, value, "not_true_or_false"));
            allows
        }
        None => allows,
    }
}

/// Returns the priority hint in these annotations, 0 without a valid one.
fn priority_hint(annotations: &SortedMap<Box<str>>, ignored: &mut Vec<IgnoredAnnotation>) -> i8 {
    let Some(value) = annotations.get(PRIORITY_HINT) else { return 0 };
    match value.parse() {
        Ok(hint @ MIN_HINT..=MAX_HINT) => hint,
        _ => {
            ignored.push(IgnoredAnnotation::new(PRIORITY_HINT, value, "not_a_number_in_range"));
            0
        }
    }
}

/// `scheduling.SystemCriticalPriority`.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Returns whether a pod is critical: a static pod, a mirror pod, or a pod of system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let is_static = pod.annotations.get(CONFIG_SOURCE).is_some_and(|source| &**source != "api");
    is_static
        || pod.annotations.contains_key(CONFIG_MIRROR)
        || pod.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

/// The keys under which the eviction of a pod counts against rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitKey {
    /// The uid of the pod.
    pub uid: Box<str>,
    /// The namespace of the pod.
    pub namespace: Box<str>,
    /// The uid of the owner. If it has none, its namespace, kind and name.
    pub owner: Option<Box<str>>,
}

impl RateLimitKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { uid: pod.uid.clone(), namespace: pod.namespace.clone(), owner: owner(pod) }
    }

    pub(crate) fn counts_with(&self, other: &Self, scope: RateLimitScope) -> bool {
        match scope {
            RateLimitScope::Namespace => self.namespace == other.namespace,
            RateLimitScope::Owner => self.owner.is_some() && self.owner == other.owner,
        }
    }
}

/// Returns the key of a pod's owner. In a pod from a file, the owner may have no uid.
fn owner(pod: &Pod) -> Option<Box<str>> {
    let owner = pod.owner.as_ref()?;
    if owner.uid.is_empty() {
        return Some(format!("{}/{}/{}", pod.namespace, owner.kind, owner.name).into());
    }
    Some(owner.uid.clone())
}
