//! Whether and when a pod may be evicted, as far as it follows from the pod and the policy.

use std::sync::Arc;

use serde::Serialize;

use crate::pod::Pod;
use crate::policy::Rules;
use crate::policy::preferences::{Protection, ProtectionRule};

use super::eviction_annotations::{IgnoredAnnotation, PodAnnotations};
use super::rate_limit_key::RateLimitKey;

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
    pub turn: EvictionOrder,
    /// The place in `policy.protection` of the rule that fits.
    pub rule: Option<usize>,
    /// No controller would bring it back, and it has not consented.
    pub bare: bool,
    /// What its annotation asks for among its like, from -100 to 100: lower goes first.
    pub hint: i8,
    /// With whose evictions its own is counted. Shared, so that to remember it takes no memory.
    pub account: Arc<RateLimitKey>,
    /// Its annotations that say nothing.
    pub ignored: Vec<IgnoredAnnotation>,
}

impl PodProtection {
    /// What a pod and the rules say. Nobody is sheltered in the kubelet's profile.
    ///
    /// The operator's `never` is the last word, then the pod's opt-out. A rule that fits also
    /// beats a pod's wish to go after others, so that nobody escapes `first` by an annotation.
    pub(crate) fn of(pod: &Pod, rules: &Rules) -> Self {
        let account = Arc::new(RateLimitKey::of(pod));
        let Some(preferences) = &rules.preferences else {
            return Self { account, ..Self::default() };
        };
        let PodAnnotations { opts_out, consents, prefers_to_stay, hint, ignored } =
            PodAnnotations::of(&pod.annotations);
        let rule = preferences.protection.iter().position(|rule| fits(rule, pod));
        let table = rule.and_then(|place| preferences.protection.get(place)).map(|rule| rule.order);
        let turn = match table {
            Some(Protection::Never) => EvictionOrder::Never,
            _ if opts_out => EvictionOrder::OptedOut,
            Some(Protection::First) => EvictionOrder::First,
            Some(Protection::Last) => EvictionOrder::Last,
            None if prefers_to_stay => EvictionOrder::Last,
            Some(Protection::Normal) | None => EvictionOrder::Normal,
        };
        let bare = pod.owner.is_none() && !consents;
        Self { turn, rule, bare, hint, account, ignored }
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
