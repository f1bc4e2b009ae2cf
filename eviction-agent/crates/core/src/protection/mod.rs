//! Which pods are protected, for how long, and which are evicted first or last: the annotations of pods, the
//! operator's table, the cool-down after an OOM kill, rate limits, and pods that no controller would
//! recreate.
//!
//! What depends only on a pod and the policy is its [`PodProtection`], which is
//! derived once. What depends on earlier events is the state of the [`EvictionGuard`]. The engine calls
//! [`EvictionGuard::refusal`] for each pod that it considers. In the kubelet's profile no pod is protected
//! and none is refused.

mod limits;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

pub use limits::{CountedEviction, MAX_COUNTED};
use serde::Serialize;

use crate::pods::{EvictionOrder, KnownPod, PodProtection};
use crate::policy::preferences::RateLimitScope;
use crate::policy::{Rules, Threshold};
use crate::progress::NotEvicted;
use crate::signal::Resource;
use crate::time::Timestamp;
use crate::units::GoDuration;

/// Stores evictions, OOM kills and refusals by PodDisruptionBudgets, and refuses evictions because of them or
/// because of the pod's protection. Under the kubelet's rules it only stores the refusals.
#[derive(Clone, Debug)]
pub struct EvictionGuard {
    /// The evictions that still count, in the order in which they were decided.
    evictions: VecDeque<CountedEviction>,
    /// The last OOM kill of each pod, while it matters.
    oom_killed: BTreeMap<Box<str>, Timestamp>,
    /// When the PodDisruptionBudget of each pod has refused its eviction, if that was lately.
    pdb_refused: BTreeMap<Box<str>, Timestamp>,
}

impl Default for EvictionGuard {
    /// Reserves some space, because a pod is evicted when memory is short.
    fn default() -> Self {
        let evictions = VecDeque::with_capacity(64);
        Self { evictions, oom_killed: BTreeMap::new(), pdb_refused: BTreeMap::new() }
    }
}

impl EvictionGuard {
    /// Drops the state that other rules do not use.
    pub fn adopt(&mut self, rules: &Rules) {
        if rules.rate_limits().is_empty() {
            self.evictions.clear();
        }
        if rules.are_kubelets() {
            self.oom_killed.clear();
        }
    }

    /// Returns why a pod may not be evicted for a threshold of the node, or, without one, for its own limits
    /// of local storage. None if it may. The pod is the last resort if all pods that were considered before
    /// were refused and no pod is terminating. The engine does not call it for critical pods.
    pub fn refusal(
        &self,
        rules: &Rules,
        at: Timestamp,
        threshold: Option<&Threshold>,
        is_last_resort: bool,
        known: &KnownPod,
    ) -> Option<Refusal> {
        let preferences = rules.preferences.as_ref()?;
        let protection = &known.protection;
        let may_override = preferences.hard.override_opt_out && is_last_resort;
        let overrides = may_override && threshold.is_some_and(is_hard_memory);
        match Refusal::by(protection) {
            Some(Refusal::OptedOut) if overrides => {}
            Some(refusal) => return Some(refusal),
            None => {}
        }
        let soft = threshold.is_some_and(|threshold| !threshold.is_hard());
        if soft && protection.without_controller && !preferences.soft.evict_pods_without_controller {
            return Some(Refusal::WithoutController);
        }
        let cool_down = preferences.cool_down_after_oom_kill;
        let cooling_down = self.cool_down_refusal(cool_down, at, &known.pod.uid);
        cooling_down.or_else(|| self.rate_limit_refusal(&preferences.rate_limits, at, known))
    }

    /// Records the result of an eviction. A failed eviction does not count.
    pub fn record_result(&mut self, at: Timestamp, uid: &str, result: &Result<(), NotEvicted>) {
        if result.is_err() {
            self.remove_eviction(uid);
        }
        if *result == Err(NotEvicted::PdbDenied) {
            self.record_pdb_refusal(at, uid);
        }
    }

    /// Takes over the state of another guard, as far as the rules use it.
    pub fn restore(
        &mut self,
        rules: &Rules,
        counted: Vec<CountedEviction>,
        oom_killed: BTreeMap<Box<str>, Timestamp>,
        pdb_refused: BTreeMap<Box<str>, Timestamp>,
    ) {
        if !rules.rate_limits().is_empty() {
            self.restore_evictions(counted);
        }
        for (uid, at) in oom_killed {
            self.record_oom_kill(rules, at, &uid);
        }
        self.pdb_refused = pdb_refused;
    }
}

/// Returns whether a threshold is a hard one of memory. The threshold of allocatable memory counts, because
/// it is a copy of that of memory.
fn is_hard_memory(threshold: &Threshold) -> bool {
    threshold.is_hard() && threshold.signal.resource() == Resource::Memory
}

/// Returns how far two times are apart, whichever is later.
///
/// Therefore a clock that is set back makes no pod wait longer than the time by which it was set back, and
/// records that arrive out of order count correctly.
fn difference(a: Timestamp, b: Timestamp) -> GoDuration {
    crate::time::since(a.max(b), a.min(b))
}

/// Why a pod is not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// A rule of `policy.protection` has the order `Never`.
    ProtectedByRule {
        /// The index of the rule in the list.
        rule: usize,
    },
    /// The pod's annotation `eviction-agent.io/evict` is `"false"`.
    OptedOut,
    /// The threshold is soft, and no controller would recreate the pod.
    WithoutController,
    /// The pod has nothing on the file system that is short.
    FreesNothing,
    /// The kernel killed one of the pod's processes for lack of memory, not long ago.
    CoolingDown {
        /// The time of the kill.
        since: Timestamp,
        /// How much longer the pod is not evicted.
        remaining: GoDuration,
    },
    /// The pod's PodDisruptionBudget does not allow the eviction.
    DisruptionBudget {
        /// How long ago it refused the eviction.
        age: GoDuration,
    },
    /// A rate limit is reached: too many similar pods were evicted.
    RateLimit {
        /// What these pods have in common.
        scope: RateLimitScope,
        /// The most evictions that are allowed.
        max_evictions: u32,
        /// The window in which they are counted.
        window: GoDuration,
    },
}

impl Refusal {
    /// Returns why a pod is never evicted, if its protection says so.
    pub(crate) fn by(protection: &PodProtection) -> Option<Self> {
        match protection.order {
            EvictionOrder::Never => Some(Self::ProtectedByRule { rule: protection.rule.unwrap_or(0) }),
            EvictionOrder::OptedOut => Some(Self::OptedOut),
            EvictionOrder::First | EvictionOrder::Normal | EvictionOrder::Last => None,
        }
    }
}

/// Writes a sentence without its subject.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtectedByRule { rule } => write!(f, "is protected by policy.protection[{rule}]"),
            Self::OptedOut => f.write_str("opted out by annotation"),
            Self::WithoutController => {
                f.write_str("has no owner to bring it back, and the threshold is soft")
            }
            Self::FreesNothing => f.write_str("has nothing on the file system that is short"),
            Self::CoolingDown { since, remaining } => {
                write!(f, "is spared for {remaining} more: the kernel killed in it at {since}")
            }
            Self::DisruptionBudget { age } => {
                write!(f, "is spared: its PodDisruptionBudget said no {age} ago")
            }
            Self::RateLimit { scope, max_evictions, window } => {
                let scope_name = match scope {
                    RateLimitScope::Namespace => "namespace",
                    RateLimitScope::Owner => "owner",
                };
                let pods = if *max_evictions == 1 { "pod" } else { "pods" };
                write!(f, "is spared: {max_evictions} {pods} of its {scope_name} in {window} is the limit")
            }
        }
    }
}

/// A pod that was considered, but is not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPod {
    /// The index of the pod among the pods of the evaluation.
    pub pod: u32,
    /// Why the pod is not evicted.
    pub why: Refusal,
}
