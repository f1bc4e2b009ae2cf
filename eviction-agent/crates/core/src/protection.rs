//! Which pods are protected, for how long, and which are evicted first or last: the annotations of pods, the
//! operator's table, the cool-down after an OOM kill, rate limits, refusals by a PodDisruptionBudget, and pods
//! that no controller would recreate.
//!
//! What depends only on a pod and the policy is its [`PodProtection`], which is
//! derived once. What depends on earlier events is the state of the [`EvictionGuard`]. The engine calls
//! [`EvictionGuard::refusal`] for each pod that it considers. In the kubelet's profile no pod is protected
//! and none is refused.
//!
//! Only the executor asks a budget, because what the budget allows changes with every pod that becomes ready.
//! A refusal holds for [`RETRY_AFTER`]. A soft threshold then evicts the next candidate. A hard threshold
//! evicts the next one of the same class; if there is none, it evicts the pod without asking the budget,
//! unless that is disabled.

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::in_flight::RETRY_AFTER;
use crate::pods::{KnownPod, PodProtection, PodSet, RateLimitKey};
use crate::policy::preferences::{EvictionLimit, EvictionOrder, RateLimitScope};
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

/// The number of evictions that are stored: one a second for more than four hours.
const MAX_ENTRIES: usize = 16_384;

impl EvictionGuard {
    /// Returns the first limit that the eviction would exceed. The pod's own earlier eviction does not count:
    /// a second decision about the same pod evicts no other.
    fn rate_limit_refusal(
        &self,
        limits: &[EvictionLimit],
        at: Timestamp,
        known: &KnownPod,
    ) -> Option<Refusal> {
        let is_reached = |limit: &&EvictionLimit| {
            let own = &known.protection.rate_limit_key;
            let counts = |entry: &&CountedEviction| {
                difference(at, entry.at) < limit.window
                    && entry.key.counts_with(own, limit.scope)
                    && entry.key.uid != own.uid
            };
            let most = usize::try_from(limit.max_evictions).unwrap_or(usize::MAX);
            self.evictions.iter().filter(counts).take(most).count() >= most
        };
        let EvictionLimit { scope, max_evictions, window } = *limits.iter().find(is_reached)?;
        Some(Refusal::RateLimit { scope, max_evictions, window })
    }

    /// Records the eviction of a pod. If the pod was evicted before, the later time counts. Entries are kept
    /// for twice the longest window, so that they count again after the clock was set back by up to one window.
    pub fn record_eviction(&mut self, rules: &Rules, at: Timestamp, known: &KnownPod) {
        let Some(longest) = rules.rate_limits().iter().map(|limit| limit.window).max() else { return };
        self.remove_eviction(&known.pod.uid);
        self.evictions.retain(|entry| difference(at, entry.at) < twice(longest));
        while self.evictions.len() >= MAX_ENTRIES {
            self.evictions.pop_front();
        }
        self.evictions.push_back(CountedEviction { at, key: Arc::clone(&known.protection.rate_limit_key) });
    }

    fn remove_eviction(&mut self, uid: &str) {
        self.evictions.retain(|entry| &*entry.key.uid != uid);
    }

    /// Returns the latest [`MAX_COUNTED`] evictions that count against limits.
    pub fn counted(&self) -> Vec<CountedEviction> {
        self.evictions.iter().skip(self.evictions.len().saturating_sub(MAX_COUNTED)).cloned().collect()
    }

    /// Continues with the evictions of another engine. Must be called before any other method.
    fn restore_evictions(&mut self, counted: Vec<CountedEviction>) {
        let surplus = counted.len().saturating_sub(MAX_COUNTED);
        self.evictions.extend(counted.into_iter().skip(surplus));
    }
}

/// The number of evictions that count against limits and are persisted: one in five seconds for more than five hours.
pub const MAX_COUNTED: usize = 4096;

/// An eviction that counts against limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CountedEviction {
    /// When the eviction was decided.
    pub at: Timestamp,
    /// The keys under which the eviction counts.
    pub key: Arc<RateLimitKey>,
}

/// The number of pods that are stored. A node runs some hundreds.
const MAX_PODS: usize = 4096;

impl EvictionGuard {
    /// Records that the kernel killed a process of a pod for lack of memory. Kills may be reported in any order:
    /// the latest counts, unless it is far in the future.
    pub fn record_oom_kill(&mut self, rules: &Rules, at: Timestamp, uid: &str) {
        let Some(preferences) = &rules.preferences else { return };
        let cool_down = preferences.cool_down_after_oom_kill;
        if cool_down <= GoDuration::ZERO {
            return;
        }
        // Twice the time, so that a kill counts again after the clock was set back by up to the cool-down.
        self.oom_killed.retain(|_, last| difference(at, *last) < twice(cool_down));
        if self.oom_killed.len() >= MAX_PODS
            && !self.oom_killed.contains_key(uid)
            && let Some((oldest, _)) = self.oom_killed.iter().min_by_key(|(uid, last)| (**last, *uid))
        {
            let oldest = oldest.clone();
            self.oom_killed.remove(&oldest);
        }
        let last = self.oom_killed.entry(uid.into()).or_insert(at);
        *last = at.max(*last);
    }

    /// Returns the OOM kills because of which pods are not evicted.
    pub fn oom_killed(&self) -> &BTreeMap<Box<str>, Timestamp> {
        &self.oom_killed
    }

    fn cool_down_refusal(&self, cool_down: GoDuration, at: Timestamp, uid: &str) -> Option<Refusal> {
        let since = *self.oom_killed.get(uid)?;
        let remaining = cool_down.as_nanos().saturating_sub(difference(at, since).as_nanos());
        (remaining > 0)
            .then_some(Refusal::CoolingDown { since, remaining: GoDuration::from_nanos(remaining) })
    }
}

fn twice(duration: GoDuration) -> GoDuration {
    GoDuration::from_nanos(duration.as_nanos().saturating_mul(2))
}

impl EvictionGuard {
    fn record_pdb_refusal(&mut self, at: Timestamp, uid: &str) {
        self.pdb_refused.retain(|_, refused| difference(at, *refused) < RETRY_AFTER);
        self.pdb_refused.insert(uid.into(), at);
    }

    /// Returns all refusals by a PodDisruptionBudget.
    pub fn pdb_refused(&self) -> &BTreeMap<Box<str>, Timestamp> {
        &self.pdb_refused
    }

    /// Removes the refusals of pods that are no longer active.
    pub fn update_pods(&mut self, pods: &PodSet) {
        self.pdb_refused.retain(|uid, _| pods.index_of(uid).is_some());
    }

    /// Returns the refusal of a pod's eviction by its PodDisruptionBudget, if that still counts.
    pub fn pdb_refusal(&self, at: Timestamp, uid: &str) -> Option<Refusal> {
        let age = difference(at, *self.pdb_refused.get(uid)?);
        (age < RETRY_AFTER).then_some(Refusal::DisruptionBudget { age })
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedPod<P = u32> {
    /// The pod: in an evaluation its index among the pods, in a record its name.
    pub pod: P,
    /// Why the pod is not evicted.
    #[serde(flatten)]
    pub why: Refusal,
}
