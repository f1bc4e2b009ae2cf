//! Whether and when a pod may be evicted, as far as it follows from the pod and the policy: its
//! annotations, its priority, the operator's rules, and what its eviction counts against.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pod::Pod;
use crate::policy::Rules;
use crate::policy::preferences::{Protection, ProtectionRule, RateLimitScope};
use crate::sorted_map::SortedMap;
use crate::time::Timestamp;

/// When it is a pod's turn to be evicted. All of one turn go before any of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionOrder {
    /// Before all others.
    First,
    /// As it ranks.
    #[default]
    Normal,
    /// After all others.
    Last,
    /// It opted out; if it goes at all then after all that did not.
    OptedOut,
    /// It does not go.
    Never,
}

/// Whether and when a pod may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodProtection {
    /// When its turn is.
    pub order: EvictionOrder,
    /// The index in `policy.protection` of the rule that fits.
    pub rule: Option<usize>,
    /// No controller would bring it back, and it has not consented.
    pub without_controller: bool,
    /// What its annotation asks for among its like, from -100 to 100: lower goes first.
    pub hint: i8,
    /// With whose evictions its own is counted. Shared, so that to remember it takes no memory.
    pub rate_limit_key: Arc<RateLimitKey>,
    /// Its annotations that say nothing.
    pub ignored: Vec<IgnoredAnnotation>,
}

impl PodProtection {
    /// What a pod and the rules say. Nobody is protected in the kubelet's profile.
    ///
    /// The operator's `never` is the last word, then the pod's opt-out. A rule that fits also
    /// beats a pod's wish to go after others, so that nobody escapes `first` by an annotation.
    pub(crate) fn of(pod: &Pod, rules: &Rules) -> Self {
        let account = Arc::new(RateLimitKey::of(pod));
        let Some(preferences) = &rules.preferences else {
            return Self { rate_limit_key: account, ..Self::default() };
        };
        let PodAnnotations { opts_out, allows_eviction: consents, prefers_to_stay, hint, ignored } =
            PodAnnotations::of(&pod.annotations);
        let rule = preferences.protection.iter().position(|rule| fits(rule, pod));
        let table = rule.and_then(|index| preferences.protection.get(index)).map(|rule| rule.order);
        let turn = match table {
            Some(Protection::Never) => EvictionOrder::Never,
            _ if opts_out => EvictionOrder::OptedOut,
            Some(Protection::First) => EvictionOrder::First,
            Some(Protection::Last) => EvictionOrder::Last,
            None if prefers_to_stay => EvictionOrder::Last,
            Some(Protection::Normal) | None => EvictionOrder::Normal,
        };
        let bare = pod.owner.is_none() && !consents;
        Self { order: turn, rule, without_controller: bare, hint, rate_limit_key: account, ignored }
    }
}

/// Whether all conditions that a rule gives fit. The configuration has checked that it gives one.
fn fits(rule: &ProtectionRule, pod: &Pod) -> bool {
    let ProtectionRule { namespaces, selector, priority_classes, order: _ } = rule;
    let one_of = |names: &[String], name: &str| names.is_empty() || names.iter().any(|one| one == name);
    one_of(namespaces, &pod.namespace)
        && one_of(priority_classes, &pod.priority_class)
        && selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
}

/// Where the kubelet has a pod from. Present and other than `api`: a static pod.
pub(super) const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Present: the API server's image of a static pod.
pub(super) const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// On a static pod: the uid that its cgroup carries, which is not the one that the API shows.
pub(super) const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The uid by which the cgroup of a static pod is known, if this is the API server's image of one: there
/// both annotations say it (`pkg/kubelet/pod/mirror_client.go: CreateMirrorPod`). Anybody may write
/// one of them on a pod of his own, which makes it no other pod.
pub fn mirrored_uid(pod: &Pod) -> Option<&str> {
    let hash = pod.annotations.get(CONFIG_HASH)?;
    (pod.annotations.get(CONFIG_MIRROR)? == hash).then_some(hash)
}

/// A pod of the API server as the kubelet has it, which notes by itself where it has pods from
/// (`pkg/kubelet/config/config.go: updatePodsFunc`): what the object says of that is anybody's word.
pub fn from_api(mut pod: Pod) -> Pod {
    if pod.annotations.contains_key(CONFIG_SOURCE) {
        let others = pod.annotations.iter().filter(|(key, _)| *key != CONFIG_SOURCE);
        pod.annotations = others.map(|(key, value)| (key.into(), value.clone())).collect();
    }
    pod
}

/// Whether anything depends on the annotation. Others are not kept: a pod may have 256 KiB of them.
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

/// `"false"`: the pod is not evicted. `"true"`: it may be, although nothing would bring it back.
pub const EVICT: &str = "eviction-agent.io/evict";
/// A whole number from -100 to 100, lower goes first, as with a pod's priority: when the pod
/// goes among those of its standing and priority.
pub const PRIORITY_HINT: &str = "eviction-agent.io/priority-hint";
/// The descheduler's: the pod may be evicted, although checks speak against it. Its presence
/// counts, whatever its value: `evictions/utils.go: HaveEvictAnnotation`.
pub const DESCHEDULER_EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
/// The descheduler's: better evict another pod. Its presence counts, whatever its value:
/// `evictions/utils.go: HaveNoEvictionAnnotation`.
pub const DESCHEDULER_PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";

/// The least and the most that a hint can say.
const LEAST_HINT: i8 = -100;
const MOST_HINT: i8 = 100;
/// How many characters of a mistaken value are kept.
const KEPT: usize = 64;

/// An annotation of ours with a value that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IgnoredAnnotation {
    /// Which.
    pub annotation: &'static str,
    /// Its value, at most 64 characters of it.
    pub value: Box<str>,
    /// What is wrong with it.
    pub mistake: AnnotationError,
}

/// What is wrong with an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnotationError {
    /// It must be `"true"` or `"false"`.
    NotTrueOrFalse,
    /// It must be a whole number from -100 to 100.
    NotANumberInRange,
    /// The descheduler takes any value for a yes. This one is so likely meant as a no that it
    /// is not taken for one here.
    SaysFalse,
}

/// What the annotations of a pod say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodAnnotations {
    /// It must not be evicted.
    pub(crate) opts_out: bool,
    /// It may be evicted although it is bare.
    pub(crate) allows_eviction: bool,
    /// Others should go before.
    pub(crate) prefers_to_stay: bool,
    /// Its hint.
    pub(crate) hint: i8,
    /// What was not understood.
    pub(crate) ignored: Vec<IgnoredAnnotation>,
}

impl PodAnnotations {
    pub(crate) fn of(annotations: &SortedMap<Box<str>>) -> Self {
        let mut wishes = Self {
            prefers_to_stay: annotations.contains_key(DESCHEDULER_PREFER_NO_EVICTION),
            ..Self::default()
        };
        if let Some(value) = annotations.get(DESCHEDULER_EVICT) {
            if says(value, "false") {
                wishes.ignore(DESCHEDULER_EVICT, value, AnnotationError::SaysFalse);
            } else {
                wishes.allows_eviction = true;
            }
        }
        if let Some(value) = annotations.get(EVICT) {
            match () {
                () if says(value, "false") => (wishes.opts_out, wishes.allows_eviction) = (true, false),
                () if says(value, "true") => wishes.allows_eviction = true,
                () => wishes.ignore(EVICT, value, AnnotationError::NotTrueOrFalse),
            }
        }
        if let Some(value) = annotations.get(PRIORITY_HINT) {
            match value.parse() {
                Ok(hint @ LEAST_HINT..=MOST_HINT) => wishes.hint = hint,
                _ => wishes.ignore(PRIORITY_HINT, value, AnnotationError::NotANumberInRange),
            }
        }
        wishes
    }

    fn ignore(&mut self, annotation: &'static str, value: &str, mistake: AnnotationError) {
        let value: String = value.chars().take(KEPT).collect();
        self.ignored.push(IgnoredAnnotation { annotation, value: value.into(), mistake });
    }
}

/// Whether a pod asks not to be evicted.
pub(crate) fn opts_out(annotations: &SortedMap<Box<str>>) -> bool {
    PodAnnotations::of(annotations).opts_out
}

/// `False` and `FALSE` are what YAML's booleans look like once they are quoted.
fn says(value: &str, word: &str) -> bool {
    value.eq_ignore_ascii_case(word)
}

/// `scheduling.SystemCriticalPriority`.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Static pods, their mirrors, and pods of system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let is_static = pod.annotations.get(CONFIG_SOURCE).is_some_and(|source| &**source != "api");
    is_static
        || pod.annotations.contains_key(CONFIG_MIRROR)
        || pod.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

/// Under what the eviction of a pod is entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitKey {
    /// The pod's own uid.
    pub uid: Box<str>,
    /// Its namespace.
    pub namespace: Box<str>,
    /// The uid of its owner, or the next best.
    pub owner: Option<Box<str>>,
}

impl RateLimitKey {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { uid: pod.uid.clone(), namespace: pod.namespace.clone(), owner: owner(pod) }
    }

    pub(crate) fn is_with(&self, other: &Self, scope: RateLimitScope) -> bool {
        match scope {
            RateLimitScope::Namespace => self.namespace == other.namespace,
            RateLimitScope::Owner => self.owner.is_some() && self.owner == other.owner,
        }
    }
}

/// A pod from a file may have an owner without a uid.
fn owner(pod: &Pod) -> Option<Box<str>> {
    let owner = pod.owner.as_ref()?;
    if owner.uid.is_empty() {
        return Some(format!("{}/{}/{}", pod.namespace, owner.kind, owner.name).into());
    }
    Some(owner.uid.clone())
}

/// A pod to which something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodEventTime {
    /// Which.
    pub uid: Box<str>,
    /// When.
    pub at: Timestamp,
}
